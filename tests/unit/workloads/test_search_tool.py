"""Calls are read from the policy's own tokens and always answered."""

import pytest

from libra_core.errors import ModelFolderError
from libra_core.types.trajectory import ToolCall, ToolReturn, ToolStatus
from libra_core.workloads.text_codec import TextCodec
from support.search_worlds import CODEC, environment, prompt


def call(turn: str) -> ToolCall:
    parsed = environment().parse_call(CODEC.encode(turn))
    assert parsed is not None
    return parsed


def answer(turn: str) -> ToolReturn:
    return environment().call_tool(prompt(), call(turn))


def test_turns_end_with_a_search_or_with_the_message() -> None:
    assert environment().stops().token_ids == (CODEC.token("</search>"), CODEC.token("<|im_end|>"))


def test_search_is_read_from_its_tags() -> None:
    assert call("<search> Kenya</search>") == ToolCall(tool="search", argument="Kenya")


@pytest.mark.parametrize("turn", ["<answer> Nairobi</answer><|im_end|>", "<search> Kenya", ""])
def test_other_endings_call_no_tool(turn: str) -> None:
    assert environment().parse_call(CODEC.encode(turn)) is None


@pytest.mark.parametrize("turn", ["Kenya</search>", "<search></search>", "<search> <answer> x</search>", "</search>"])
def test_malformed_call_is_answered_as_malformed(turn: str) -> None:
    returned = answer(turn)
    assert returned.status is ToolStatus.MALFORMED
    assert CODEC.decode(returned.token_ids) == "<information> This is not a search.</information>"


def test_search_returns_the_passage_between_information_tags() -> None:
    returned = answer("<search> nairobi</search>")
    assert returned.status is ToolStatus.OK
    assert CODEC.decode(returned.token_ids) == "<information> Nairobi: capital city, country Kenya.</information>"


def test_search_for_unknown_words_is_an_error_with_a_text() -> None:
    returned = answer("<search> Atlantis</search>")
    assert returned.status is ToolStatus.ERROR
    assert CODEC.decode(returned.token_ids) == "<information> Nothing found.</information>"


def test_failed_runner_is_answered_with_the_status_it_states() -> None:
    returned = environment().answer_failure(call("<search> Kenya</search>"), ToolStatus.TIMEOUT)
    assert returned.status is ToolStatus.TIMEOUT
    assert "failed" in CODEC.decode(returned.token_ids)


def test_long_passages_are_cut_to_their_budget_and_stay_closed() -> None:
    tight = environment(max_passage_tokens=8)
    returned = tight.call_tool(prompt(), call("<search> Kenya</search>"))
    assert CODEC.decode(returned.token_ids) == "<information> Kenya: </information>"
    assert returned.payload_tokens == 10


def test_several_passages_are_returned_best_first() -> None:
    wide = environment(top_k=2)
    text = CODEC.decode(wide.call_tool(prompt(), call("<search> Guinea</search>")).token_ids)
    assert text.startswith("<information> Guinea: continent")
    assert text.count("Guinea") > 1


def test_tokenizer_that_splits_the_tags_is_refused() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE(vocab={symbol: number for number, symbol in enumerate(alphabet)}, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    with pytest.raises(ModelFolderError, match="one special token"):
        TextCodec(plain).token("</search>")
