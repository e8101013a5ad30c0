"""Tool text within its bounds."""

from collections.abc import Sequence
from typing import Final

from libra_core.workloads.text_codec import TextCodec

CHARACTERS_PER_TOKEN: Final = 8
"""More than tokens of prose and code cover on average."""
_CUT: Final = "\n[... cut ...]\n"


def tool_tokens(text: str, codec: TextCodec, max_tokens: int) -> tuple[int, ...]:
    """At most `max_tokens`: the beginning and the end of `text`, with a mark between. A cut may fall inside a character.

    Far longer texts are cut before they are encoded, which takes half a second for 256 KiB and would hold up the event loop.
    """
    room = CHARACTERS_PER_TOKEN * max_tokens
    if len(text) > 2 * room:
        text = f"{text[:room]}{_CUT}{text[-room:]}"
    return _fitted(codec.encode_plain(text), codec, max_tokens)


def _fitted(token_ids: Sequence[int], codec: TextCodec, max_tokens: int) -> tuple[int, ...]:
    if len(token_ids) <= max_tokens:
        return tuple(token_ids)
    mark = codec.encode_plain(_CUT)
    room = max_tokens - len(mark)
    if room < 2:
        return tuple(token_ids[:max_tokens])
    head = room // 2
    return (*token_ids[:head], *mark, *token_ids[len(token_ids) - (room - head) :])
