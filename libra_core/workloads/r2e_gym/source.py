"""Prompts of repositories to repair."""

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Final, Protocol, TypeVar

from libra_core.types.ids import PromptId
from libra_core.types.trajectory import Prompt
from libra_core.workloads.chat import Chat, Message
from libra_core.workloads.problem_order import row_at
from libra_core.workloads.r2e_gym.tools import USAGE

_SPLIT_SEED: Final = 1
_INSTRUCTION: Final = "The repository in the working folder has a fault. Find it, repair it and submit.\n\n{}\n\n{}"


class Issue(Protocol):
    """What every kind of task has."""

    @property
    def key(self) -> str: ...
    @property
    def issue(self) -> str: ...
    @property
    def package(self) -> str:
        """Stratum for reports."""
        ...


Task = TypeVar("Task", bound=Issue)


class IssueSource:
    """Implements `ports.environment.PromptSource`: every task once per epoch, in an order of the seed's."""

    def __init__(self, chat: Chat, training: Sequence[Issue], heldout: Sequence[Issue], *, seed: int) -> None:
        self._chat = chat
        self._training = tuple(training)
        self._heldout = tuple(heldout)
        self._seed = seed

    def training(self, start: int) -> Iterator[Prompt]:
        """Endless; the first prompt has index `start`."""
        for index in itertools.count(start):
            yield self.prompt(self._training[row_at(len(self._training), self._seed, index)])

    def heldout(self, count: int) -> Sequence[Prompt]:
        return tuple(self.prompt(issue, "heldout/") for issue in self._heldout[:count])

    def prompt(self, issue: Issue, prefix: str = "") -> Prompt:
        message = Message(role="user", content=_INSTRUCTION.format(issue.issue, USAGE))
        return Prompt(
            prompt_id=PromptId(prefix + issue.key),
            token_ids=self._chat.prompt((message,)),
            text=issue.issue,
            answers=(),
            kind=prefix + issue.package,
            instance=issue.key,
        )


def split_tasks(tasks: Sequence[Task], heldout_share: float) -> tuple[list[Task], list[Task]]:
    """Training and held-out tasks, the same for every run seed; at least one stays for training."""
    order = list(tasks)
    random.Random(_SPLIT_SEED).shuffle(order)
    num_heldout = min(round(len(order) * heldout_share), len(order) - 1)
    return order[num_heldout:], order[:num_heldout]
