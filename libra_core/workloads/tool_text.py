"""Tool text within its bounds."""

from pathlib import Path
from typing import Final

from libra_core.borders import cut_middle
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
    return cut_middle(codec.encode_plain(text), codec.encode_plain(_CUT), max_tokens)


def cut_mark(model_folder: Path) -> tuple[int, ...]:
    """What stands where something was cut; empty for a folder without a tokenizer."""
    if not (model_folder / "tokenizer.json").is_file():
        return ()
    return TextCodec.from_folder(model_folder).encode(_CUT)
