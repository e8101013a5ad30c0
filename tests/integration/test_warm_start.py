"""The warm start as `libra warm-start` calls it, with a policy too small and too short to learn anything."""

import json
import threading
from pathlib import Path

import pytest
from filelock import FileLock

from libra_core.config.loading import validate_config
from libra_core.config.models import LibraConfig
from libra_core.engines.warm_start import make as make_module
from libra_core.engines.warm_start.cache import cache_folder, cache_key, exclusive
from libra_core.engines.warm_start.ensure import ensure_policy
from libra_core.engines.warm_start.result import WarmStartResult
from libra_core.engines.warm_start.shipped import MADE_FILE, SHIPPED
from libra_core.errors import NumericsError
from libra_core.workloads.build import build_workload
from libra_core.workloads.search_r1.tags import SPECIAL_TOKENS

pytestmark = pytest.mark.integration

TINY = {"hidden_size": 32, "num_layers": 2, "ffn_size": 64, "vocab_size": 512}
QUICK = {"clean_steps": 2, "mixed_steps": 1, "batch_size": 2, "measured_prompts": 4, "base_success_low": 0.0}


def config_in(root: Path, **warm_start: float) -> LibraConfig:
    model = {"tiny": TINY, "warm_start": {**QUICK, "base_success_high": 1.0, **warm_start}}
    return validate_config({"run": {"root": str(root)}, "model": model})


def silent(_text: str, _share: float) -> None:
    return None


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[LibraConfig, WarmStartResult]:
    config = config_in(tmp_path_factory.mktemp("runs"))
    return config, ensure_policy(config, silent)


def test_second_call_is_served_from_the_cache(made: tuple[LibraConfig, WarmStartResult]) -> None:
    config, first = made
    second = ensure_policy(config, silent)
    assert not first.cached
    assert second.cached
    assert (second.folder, second.base_success) == (first.folder, first.base_success)


def test_hf_loads_the_folder_and_the_tags_are_single_tokens(made: tuple[LibraConfig, WarmStartResult]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = made[1].folder
    tokenizer = AutoTokenizer.from_pretrained(folder)
    policy = AutoModelForCausalLM.from_pretrained(folder)
    assert all(len(tokenizer.encode(tag, add_special_tokens=False)) == 1 for tag in SPECIAL_TOKENS)
    assert (tokenizer.eos_token, len(tokenizer)) == ("<|im_end|>", policy.config.vocab_size)
    assert str(next(policy.parameters()).dtype) == "torch.float32"


def test_prompts_equal_the_chat_template_of_the_folder(made: tuple[LibraConfig, WarmStartResult]) -> None:
    from transformers import AutoTokenizer

    config, result = made
    prompt = next(build_workload(config, result.folder).prompts.training(0))
    message = [{"role": "user", "content": prompt.text}]
    templated = AutoTokenizer.from_pretrained(result.folder).apply_chat_template(
        message, add_generation_prompt=True, tokenize=False
    )
    codec_ids = AutoTokenizer.from_pretrained(result.folder).encode(templated, add_special_tokens=False)
    assert tuple(codec_ids) == prompt.token_ids


def test_result_facts_lie_beside_the_weights(made: tuple[LibraConfig, WarmStartResult]) -> None:
    facts = json.loads((made[1].folder / "warm_start.json").read_text(encoding="utf-8"))
    assert set(facts) == {"skill_success", "base_success", "heldout_success"}
    assert {path.name for path in made[1].folder.iterdir()} >= {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_interruption_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    config = config_in(tmp_path)
    monkeypatch.setattr(make_module, "write_facts", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ensure_policy(config, silent)
    assert [path.name for path in cache_folder(config).parent.iterdir() if path.suffix != ".lock"] == []


def test_unreachable_base_success_is_an_error_in_a_sentence(tmp_path: Path) -> None:
    config = config_in(tmp_path, base_success_low=0.98)
    with pytest.raises(NumericsError, match=r"base success of 0\.00, outside 0\.98 to 1\.0"):
        ensure_policy(config, silent)
    assert not cache_folder(config).exists()


def test_a_wait_for_another_process_is_said(tmp_path: Path) -> None:
    folder, said = tmp_path / "policy", list[str]()
    holder = FileLock(folder.with_suffix(".lock"), thread_local=False)
    holder.acquire()
    threading.Timer(0.5, holder.release).start()
    with exclusive(folder, lambda text, share: said.append(text)):
        pass
    assert said == [f"waiting for another process that makes the same policy ({folder.with_suffix('.lock')})"]


def test_cache_key_ignores_the_run_and_follows_the_recipe(tmp_path: Path) -> None:
    base = config_in(tmp_path)
    assert cache_key(base.model_copy(update={"seed": 7})) == cache_key(base)
    assert cache_key(config_in(tmp_path, clean_steps=3)) != cache_key(base)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_remaking_the_shipped_policy_gives_one_that_is_as_good(tmp_path: Path) -> None:
    config = validate_config({"run": {"root": str(tmp_path)}})
    shipped = json.loads((SHIPPED / MADE_FILE).read_text(encoding="utf-8"))
    remade = ensure_policy(config, silent, take_shipped=False)
    settings = config.model.warm_start
    assert not remade.cached
    assert settings.base_success_low <= remade.base_success <= settings.base_success_high
    one_question = 1 / settings.measured_prompts  # another CPU rounds otherwise, and learns a slightly other policy
    assert remade.skill_success >= shipped["skill_success"] - 4 * one_question
