"""Prompts that leave no room to answer are counted when a run starts, and never asked."""

import itertools
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra_core.errors import BorderError, ConfigError, PromptError
from libra_core.types.ids import PromptId
from libra_core.types.trajectory import Prompt
from libra_core.workloads.chat import Chat, ChatMessage
from libra_core.workloads.dapo_math.problems import MathProblem
from libra_core.workloads.dapo_math.source import FileProblemSource
from libra_core.workloads.fitting import FittingStream, PromptRoom
from support.search_worlds import CODEC


class Numbers:
    """Prompt `i` has `lengths[i mod n]` tokens."""

    def __init__(self, *lengths: int, token: int = 1) -> None:
        self.lengths, self.token = lengths, token

    def _prompt(self, index: int) -> Prompt:
        token_ids = (self.token,) * self.lengths[index % len(self.lengths)]
        return Prompt(prompt_id=PromptId(str(index)), token_ids=token_ids, text="", answers=())

    def training(self, start: int) -> Iterator[Prompt]:
        return map(self._prompt, itertools.count(start))

    def heldout(self, count: int) -> Sequence[Prompt]:
        return tuple(map(self._prompt, range(count)))


ROOM = PromptRoom(max_tokens=10, vocabulary=5)


def test_a_prompt_needs_room_for_one_token() -> None:
    assert [ROOM.fits(Numbers(length)._prompt(0)) for length in (0, 1, 9, 10, 11)] == [False, True, True, False, False]


@given(st.integers(0, 40), st.lists(st.integers(1, 14), min_size=1, max_size=5).filter(lambda lengths: min(lengths) < 10))
def test_an_endless_stream_gives_the_same_fitting_prompt_for_an_index_each_time(start: int, lengths: list[int]) -> None:
    stream = FittingStream(Numbers(*lengths), ROOM)
    prompts = list(itertools.islice(stream.training(start), 6))
    assert all(len(prompt.token_ids) < 10 for prompt in prompts)
    assert [next(stream.training(start + place)) for place in range(6)] == prompts
    assert all(len(prompt.token_ids) < 10 for prompt in stream.heldout(5))


def test_a_stream_says_how_many_do_not_fit_and_refuses_when_none_does() -> None:
    assert FittingStream(Numbers(3), ROOM).census() == ()
    assert FittingStream(Numbers(3, 12), ROOM).census()[0].startswith("8 of 16 training prompts leave no room to answer")
    with pytest.raises(
        ConfigError, match=r"none of 16 training prompts leaves room to answer within rollout\.max_context_tokens = 10"
    ):
        FittingStream(Numbers(12), ROOM).census()
    with pytest.raises(PromptError, match="17 prompts in a row leave no room"):
        next(FittingStream(Numbers(12), ROOM).training(0))


def test_prompts_of_another_models_tokenizer_are_refused() -> None:
    for use in (FittingStream.census, lambda stream: next(stream.training(0))):
        with pytest.raises(BorderError, match="prompt 0 has the token id 5; the model's vocabulary has 0 to 4"):
            use(FittingStream(Numbers(3, token=5), ROOM))


def test_rows_that_fit_are_asked_once_per_epoch() -> None:
    rows = [
        MathProblem(key=str(number), messages=(ChatMessage(role="user", content="x" * size),), answer="1", source="math")
        for number, size in enumerate((5, 300, 7, 400, 9))
    ]
    source = FileProblemSource(Chat(CODEC), rows, rows[:2], seed=0, room=PromptRoom(max_tokens=200))
    epoch = [prompt.prompt_id for prompt in itertools.islice(source.training(0), 3)]
    assert sorted(epoch) == ["0", "2", "4"]
    assert [prompt.prompt_id for prompt in source.heldout(5)] == ["heldout/0"]
    assert len(source.census()) == 3
