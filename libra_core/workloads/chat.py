"""Turns of a conversation as token ids. What users and tools say is plain text: a control token spelled in it stays text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from libra_core.workloads.text_codec import TextCodec

_START: Final = "<|im_start|>"
_END: Final = "<|im_end|>"
_PLAIN_ENDS: Final = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    role: str
    content: str


class Chat:
    """ChatML where the tokenizer has its two tokens, else `User:`/`Assistant:` lines with the tokenizer's end of text."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec, self._plain = codec, codec.encode_plain
        start, end = codec.special(_START), codec.special(_END)
        self._markers = (start, end) if start is not None and end is not None else None
        ends = [codec.special(text) for text in _PLAIN_ENDS]
        known = [token_id for token_id in ends if token_id is not None]
        self._ends = (end, *known) if end is not None and self._markers else tuple(known)

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Tokens that end a turn of the policy; may be empty for a tokenizer without any."""
        return self._ends

    def prompt(self, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
        """The whole conversation so far, open for the policy to speak."""
        spoken = [token for message in messages for token in self._message(message)]
        return (*spoken, *self._opening())

    def tool_turn(self, body: Sequence[int]) -> tuple[int, ...]:
        """What follows a turn of the policy that called a tool: the answer, then the policy again."""
        if self._markers is None:
            return (*self._plain("\nTool: "), *body, *self._opening())
        start, end = self._markers
        return (*self._plain("\n"), start, *self._plain("user\n"), *body, end, *self._plain("\n"), *self._opening())

    def said(self, turn: Sequence[int]) -> str:
        """Text of a turn without the token that ended it."""
        own = turn[:-1] if turn and turn[-1] in self._ends else turn
        return self._codec.decode(own)

    def _message(self, message: ChatMessage) -> tuple[int, ...]:
        if self._markers is None:
            return self._plain(f"{message.role.capitalize()}: {message.content}\n")
        start, end = self._markers
        return (start, *self._plain(f"{message.role}\n{message.content}"), end, *self._plain("\n"))

    def _opening(self) -> tuple[int, ...]:
        if self._markers is None:
            return self._plain("\nAssistant:")
        return (self._markers[0], *self._plain("assistant\n"))
