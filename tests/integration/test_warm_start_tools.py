"""What a policy imitates is what the workload asks, what its tools answer and what is right."""

import random
from pathlib import Path

import pytest

from libra_core.config.loading import validate_config
from libra_core.engines.warm_start.cache import cache_key
from libra_core.engines.warm_start.ensure import ensure_policy
from libra_core.engines.warm_start.lessons import MathLessons, encoded
from libra_core.errors import ConfigError
from libra_core.workloads.build import build_workload
from libra_core.workloads.chat import Chat
from libra_core.workloads.check.codec import byte_codec
from libra_core.workloads.dapo_math.answers import extract_answer
from libra_core.workloads.dapo_math.environment import PYTHON_HELP
from libra_core.workloads.dapo_math.generated import generated_problem
from libra_core.workloads.dapo_math.source import MathPromptSource

pytestmark = pytest.mark.integration

CODEC = byte_codec()


def test_a_lesson_is_encoded_as_the_prompt_source_writes_it_and_teaches_what_is_said() -> None:
    lesson = MathLessons(("gcd",)).draw(random.Random(3))
    shown = encoded(lesson, CODEC, 64)
    problem = generated_problem(("gcd",), "lesson", random.Random(3).randrange(2**31))
    source = MathPromptSource(Chat(CODEC), lambda index: problem, lambda count: ()).helped(PYTHON_HELP)
    prompt = next(source.training(0))
    assert shown.token_ids[: len(prompt.token_ids)] == prompt.token_ids
    spoken = CODEC.decode([token for token, own in zip(shown.token_ids, shown.loss_mask, strict=True) if own])
    call, answer, rest = spoken.split("<|im_end|>")
    assert (call, rest) == (lesson.turns[0][0], "")
    assert extract_answer(answer).answer == problem.answer


def test_what_cannot_be_taught_is_refused_in_a_sentence(tmp_path: Path) -> None:
    def refused(workload: dict[str, object], steps: int) -> str:
        config = validate_config(
            {"run": {"root": str(tmp_path)}, "workload": workload, "model": {"warm_start": {"tool_steps": steps}}}
        )
        with pytest.raises(ConfigError) as caught:
            ensure_policy(config, lambda text, share: None)
        return str(caught.value)

    assert "random weights unless model.warm_start.tool_steps" in refused({"kind": "dapo_math"}, 0)
    assert "tool_steps = 5 is not for search_r1" in refused({"kind": "search_r1"}, 5)
    assert "has nothing to imitate" in refused({"kind": "dapo_math"}, 5)
    assert "among chain_sum" in refused({"kind": "dapo_math", "python_tool": True, "generated_tasks": ["simple_equations"]}, 5)


def test_a_taught_policy_is_kept_apart_by_what_it_was_taught() -> None:
    def key(kind: str, **warm_start: int) -> str:
        return cache_key(validate_config({"workload": {"kind": kind}, "model": {"warm_start": warm_start}}))

    assert key("dapo_math", tool_steps=5) != key("dapo_math", tool_steps=6)
    assert key("dapo_math", tool_steps=5) != key("r2e_gym", tool_steps=5)
    assert key("dapo_math", tool_steps=5) == key("dapo_math", tool_steps=5, clean_steps=7)
    assert key("search_r1", clean_steps=7) != key("search_r1")


@pytest.mark.parametrize("name", ["dapo_math", pytest.param("r2e_gym", marks=pytest.mark.slow)])
def test_a_policy_is_taught_measured_with_real_tools_and_kept(name: str, tmp_path: Path) -> None:
    tiny = {"hidden_size": 32, "num_layers": 1, "ffn_size": 64, "vocab_size": 1024, "max_positions": 768}
    workload = {"dapo_math": {"python_tool": True, "generated_tasks": ["gcd"]}, "r2e_gym": {"heldout_share": 0.98}}[name]
    config = validate_config(
        {
            "run": {"root": str(tmp_path)},
            "workload": {"kind": name, **workload},
            "model": {"tiny": tiny, "warm_start": {"tool_steps": 1, "batch_size": 1}},
        }
    )
    made = ensure_policy(config, lambda text, share: None)
    again = ensure_policy(config, lambda text, share: None)
    assert (made.base_success, made.heldout_success, made.cached) == (0.0, None, False)
    assert (again.folder, again.cached) == (made.folder, True)
    prompts = build_workload(config, made.folder).prompts.training(0)
    assert len(next(prompts).token_ids) < 768
