"""Prompts from files of questions."""

from collections.abc import Sequence

from libra_core.types.ids import PromptId
from libra_core.types.trajectory import Prompt
from libra_core.workloads.chat import ChatMessage
from libra_core.workloads.epochs import EpochSource
from libra_core.workloads.search_r1.questions_file import FileQuestion
from libra_core.workloads.search_r1.tag_environment import INSTRUCTION


class FileQuestionSource(EpochSource[FileQuestion]):
    """The question, after what the tags mean."""

    def messages(self, row: FileQuestion) -> Sequence[ChatMessage]:
        return (ChatMessage(role="user", content=INSTRUCTION.format(row.text)),)

    def prompt(self, row: FileQuestion, prefix: str = "") -> Prompt:
        return Prompt(
            prompt_id=PromptId(prefix + row.key),
            token_ids=self._chat.prompt(self.messages(row)),
            text=row.text,
            answers=row.answers,
            kind=prefix + row.source,
        )
