"""The stream of prompts depends on the seed and the index alone."""

from itertools import islice

from libra_core.types.trajectory import Prompt
from libra_core.workloads.search_r1.facts import load_world, split_world
from libra_core.workloads.search_r1.source import SearchPromptSource
from support.search_worlds import CODEC

SPLIT = split_world(load_world(), 0.2)


def source(seed: int = 0, two_hop_share: float = 0.5, heldout_share: float = 0.2) -> SearchPromptSource:
    return SearchPromptSource(CODEC, split_world(load_world(), heldout_share), two_hop_share=two_hop_share, seed=seed)


def drawn(seed: int = 0, start: int = 0, count: int = 40, two_hop_share: float = 0.5) -> list[Prompt]:
    return list(islice(source(seed, two_hop_share).training(start), count))


def test_stream_resumes_identically_at_any_index() -> None:
    assert drawn(start=17, count=10) == drawn(count=27)[17:]


def test_other_seeds_ask_other_questions() -> None:
    assert drawn(seed=1) != drawn(seed=2)


def test_training_prompts_never_ask_about_heldout_countries() -> None:
    heldout_places = {place for country in SPLIT.heldout.countries for place in (country.name, country.capital, *country.cities)}
    places = {prompt.prompt_id.rpartition("/")[2] for prompt in drawn(count=400)}
    assert not places & heldout_places


def test_heldout_prompts_are_the_same_for_every_seed_and_marked() -> None:
    assert source(seed=1).heldout(20) == source(seed=2).heldout(20)
    assert {prompt.kind for prompt in source().heldout(20)} == {"heldout/one_hop", "heldout/two_hop"}


def test_no_country_held_out_means_no_heldout_prompt() -> None:
    assert source(heldout_share=0.0).heldout(5) == ()


def test_share_of_two_hop_questions_is_kept() -> None:
    assert {prompt.kind for prompt in drawn(two_hop_share=1.0)} == {"two_hop"}
    assert {prompt.kind for prompt in drawn(two_hop_share=0.0)} == {"one_hop"}


def test_prompt_is_the_question_in_the_chat_template() -> None:
    prompt = drawn(count=1)[0]
    assert CODEC.decode(prompt.token_ids) == f"<|im_start|>user\n{prompt.text}<|im_end|>\n<|im_start|>assistant\n"
