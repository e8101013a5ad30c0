"""Prompts of repositories to repair."""

import random
from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

from libra_core.types.ids import PromptId
from libra_core.types.trajectory import Prompt
from libra_core.workloads.chat import ChatMessage
from libra_core.workloads.epochs import EpochSource
from libra_core.workloads.r2e_gym.tools import USAGE

_SPLIT_SEED: Final = 1
_INSTRUCTION: Final = "The repository in the working folder has a fault. Find it, repair it and submit.\n\n{}\n\n{}"


class IssueTask(Protocol):
    """What every kind of task has."""

    @property
    def key(self) -> str: ...
    @property
    def issue(self) -> str: ...
    @property
    def package(self) -> str:
        """Stratum for reports."""
        ...


Task = TypeVar("Task", bound=IssueTask)


class IssueSource(EpochSource[IssueTask]):
    """The task is the issue's text and how to use the tools."""

    def messages(self, row: IssueTask) -> Sequence[ChatMessage]:
        return (issue_message(row),)

    def prompt(self, row: IssueTask, prefix: str = "") -> Prompt:
        return Prompt(
            prompt_id=PromptId(prefix + row.key),
            token_ids=self._chat.prompt(self.messages(row)),
            text=row.issue,
            answers=(),
            kind=prefix + row.package,
            instance=row.key,
        )


def issue_message(row: IssueTask) -> ChatMessage:
    return ChatMessage(role="user", content=_INSTRUCTION.format(row.issue, USAGE))


def split_tasks(tasks: Sequence[Task], heldout_share: float) -> tuple[list[Task], list[Task]]:
    """Training and held-out tasks, the same for every run seed; at least one stays for training."""
    order = list(tasks)
    random.Random(_SPLIT_SEED).shuffle(order)
    num_heldout = min(round(len(order) * heldout_share), len(order) - 1)
    return order[num_heldout:], order[:num_heldout]
