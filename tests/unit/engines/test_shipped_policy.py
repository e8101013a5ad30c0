import json
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch

from libra_core.config import LibraConfig, load_config
from libra_core.config.loading import validate_config
from libra_core.engines.model_folder import check_model_folder
from libra_core.engines.warm_start import cache, shipped, sources
from libra_core.engines.warm_start.cache import cache_folder, cache_key
from libra_core.engines.warm_start.ensure import ensure_policy
from libra_core.engines.warm_start.muon import Muon, orthogonal
from libra_core.engines.warm_start.shipped import MADE_FILE, SHIPPED, is_shipped

QUICKSTART = Path(__file__).parents[3] / "configs" / "experiment" / "quickstart.yaml"


def config_in(root: Path, **sections: object) -> LibraConfig:
    return validate_config({"run": {"root": str(root)}, **sections})


def silent(_text: str, _share: float) -> None:
    return None


def test_the_shipped_policy_is_that_of_the_quickstart() -> None:
    made = json.loads((SHIPPED / MADE_FILE).read_text(encoding="utf-8"))
    assert made["key"] == cache_key(load_config(QUICKSTART)), "remake it: libra warm-start --write-package"
    assert made["key"] == cache_key(LibraConfig())
    assert made["sources"] == sources.sources_digest()


def test_the_shipped_policy_is_a_complete_and_small_model_folder() -> None:
    facts = check_model_folder(SHIPPED, layout=LibraConfig().training.layout)
    assert (facts.num_layers, facts.vocab_size) == (LibraConfig().model.tiny.num_layers, LibraConfig().model.tiny.vocab_size)
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) < 4.5e6


def test_the_shipped_policy_scores_inside_the_window() -> None:
    settings, made = LibraConfig().model.warm_start, json.loads((SHIPPED / MADE_FILE).read_text(encoding="utf-8"))
    assert settings.base_success_low <= made["base_success"] <= settings.base_success_high
    assert made["skill_success"] > 0.9


def test_a_wheel_holds_the_shipped_policy() -> None:
    project = tomllib.loads((QUICKSTART.parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["libra_core.engines.warm_start"]
    files = [str(file.relative_to(SHIPPED.parent)) for file in SHIPPED.iterdir()]
    assert MADE_FILE in {Path(file).name for file in files}
    assert all(any(fnmatch(file, pattern) for pattern in patterns) for file in files)


def test_a_first_run_takes_the_shipped_policy(tmp_path: Path) -> None:
    said: list[str] = []
    result = ensure_policy(config_in(tmp_path), lambda text, share: said.append(text))
    assert result.cached
    assert result.folder == cache_folder(config_in(tmp_path))
    assert (result.folder / "model.safetensors").read_bytes() == (SHIPPED / "model.safetensors").read_bytes()
    assert not any("teaching" in text for text in said)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"warm_start": {"clean_steps": 901}}},
        {"model": {"tiny": {"num_layers": 2}}},
        {"workload": {"heldout_share": 0.3}},
    ],
)
def test_another_recipe_is_made_and_not_taken(tmp_path: Path, changes: dict[str, object]) -> None:
    assert not is_shipped(config_in(tmp_path, **changes))


def test_other_facts_are_another_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "version", lambda name: "0.0")
    assert not is_shipped(config_in(tmp_path))


def test_a_checkout_without_the_file_makes_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "SHIPPED", tmp_path / "none")
    assert not is_shipped(config_in(tmp_path))


def test_comments_and_docstrings_are_no_other_code() -> None:
    plain, told = "def f(x=[]):\n    return x + 1\n", 'def f(x=[]):\n    """Adds."""\n    # one\n    return (x + 1)\n'
    assert sources.shape_of(plain) == sources.shape_of(told)
    assert sources.shape_of(plain) != sources.shape_of(plain.replace("1", "2"))


def test_updates_are_nearly_orthogonal() -> None:
    torch.manual_seed(0)
    for shape in ((64, 64), (64, 16), (16, 64)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(3, *shape)))
        assert values.max() < 1.3
        assert values.median() > 0.6


def test_muon_steps_as_torch_does_but_in_float32() -> None:
    torch.manual_seed(0)
    start = torch.randn(48, 16)
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    settings = {"lr": 0.03, "momentum": 0.95, "weight_decay": 0.01}
    optimizers = (Muon([ours], **settings), torch.optim.Muon([theirs], **settings))
    for _ in range(10):
        ours.grad = torch.randn(48, 16)
        theirs.grad = ours.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    moved = (theirs - start).norm()
    assert (ours - theirs).norm() < 0.02 * moved  # bfloat16 keeps three digits


def test_no_step_of_the_warm_start_computes_in_bfloat16() -> None:
    """A CPU without instructions for it takes thirty times as long over the same product."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Dtypes(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: set[torch.dtype] = set()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                self.seen.add(out.dtype)
            return out

    from libra_core.engines.warm_start.demonstrations import Demonstration
    from libra_core.engines.warm_start.imitation import Imitator
    from libra_core.engines.warm_start.policy import new_policy
    from libra_core.engines.warm_start.tokenizer import train_tokenizer
    from libra_core.workloads.search_r1.facts import load_world

    config = config_in(Path("runs"), model={"tiny": {"hidden_size": 32, "num_layers": 1, "ffn_size": 32, "vocab_size": 512}})
    policy = new_policy(config.model.tiny, train_tokenizer(load_world(), 512), 0)
    imitator = Imitator(policy, config.model.warm_start)
    with Dtypes() as dtypes:
        imitator.step([Demonstration(token_ids=(1, 2, 3, 4), loss_mask=(0, 0, 1, 1))], 1.0)
    assert torch.float32 in dtypes.seen
    assert not {torch.bfloat16, torch.float16} & dtypes.seen
