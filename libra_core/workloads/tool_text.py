"""Tool text within its bounds."""

from collections.abc import Sequence
from typing import Final

from libra_core.workloads.text_codec import TextCodec

_CUT: Final = "\n[... cut ...]\n"


def fitted(token_ids: Sequence[int], codec: TextCodec, max_tokens: int) -> tuple[int, ...]:
    """At most `max_tokens`: the beginning and the end, with a mark between. The ends of a cut may fall inside a character."""
    if len(token_ids) <= max_tokens:
        return tuple(token_ids)
    mark = codec.encode_plain(_CUT)
    room = max_tokens - len(mark)
    if room < 2:
        return tuple(token_ids[:max_tokens])
    head = room // 2
    return (*token_ids[:head], *mark, *token_ids[len(token_ids) - (room - head) :])
