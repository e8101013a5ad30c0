"""Tool text within its bounds: the beginning and the end are kept, and the cut is marked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra_core.workloads.tool_text import tool_tokens
from support.search_worlds import CODEC


@given(st.text(max_size=300), st.integers(min_value=1, max_value=60))
def test_tool_text_never_passes_its_bound_and_short_text_is_whole(text: str, bound: int) -> None:
    tokens = tool_tokens(text, CODEC, bound)
    whole = CODEC.encode_plain(text)
    assert len(tokens) <= bound
    assert len(whole) > bound or tokens == whole


@pytest.mark.parametrize("length", [200, 10_000, 1_000_000])
def test_beginning_and_end_are_kept_around_a_mark(length: int) -> None:
    shown = CODEC.decode(tool_tokens("begin" + "x" * length + "end", CODEC, 100))
    assert shown.startswith("beginx")
    assert shown.endswith("xend")
    assert shown.count("[... cut ...]") == 1
