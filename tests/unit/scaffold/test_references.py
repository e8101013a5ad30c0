import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


def _references_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("references", ROOT / "tests" / "checks" / "references.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["references"] = module
    spec.loader.exec_module(module)
    return module


references = _references_module()

FILES = {
    "Makefile": "check: setup\n",
    "README.md": "# Small\n",
    "docs/page.md": "# Page\n\n## What is minimised\n\n## Errors (`libra plan`)\n\n```\n# no heading\n```\n",
    "docs/configuration.md": "## Top level\n| `seed` | 0 |\n## `rollout`\n| `kv_fill` | 0.7 |\n| `test_wall_s` | 1 |\n",
    "docs/metrics.md": "| `train/loss` | x |\n| `tools/{name}_s` | x |\n",
    "docs/references.md": "arXiv 2402.03300; `data/trajectories/agents`\n",
    "docs/figure.png": "",
    "libra_core/planning/objective.py": '"""Terms."""\n\ndef iteration_s(): ...\n',
    "tests/unit/test_objective.py": "def test_terms_add_up(): ...\n",
}
COMMANDS = {"plan": frozenset({"--json", "--set"}), "docs": frozenset(), "docs config": frozenset()}


@pytest.fixture
def repository(tmp_path: Path) -> object:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return references.Repository(root=tmp_path, commands=COMMANDS)


def _found(path: str, text: str, repository: object) -> list[str]:
    return [f"{one.kind} {one.name}" for one in references.missing_in(path, text, repository)]


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("See libra_core/planning/gone.py.", "path libra_core/planning/gone.py"),
        ("See `gone.py` for more.", "path gone.py"),
        ("See docs/gone/page.md.", "path docs/gone/page.md"),
        ("By `planning/objective.py` (`gone_s`).", "name gone_s in planning/objective.py"),
        ("By `gone_s` of `libra_core/planning/objective.py`.", "name gone_s in libra_core/planning/objective.py"),
        ("See `libra_core.planning.gone`.", "module libra_core.planning.gone"),
        ("As DESIGN says.", "document outside the repository DESIGN"),
        ("Measured in spikes/vllm.", "document outside the repository spikes/"),
        (
            "Lengths of data/trajectories/others.",
            "recorded data that docs/references.md does not describe: data/trajectories/others",
        ),
        ("By docs/page.md#what-is-gone.", "section docs/page.md#what-is-gone"),
        ("The formula of section 5.", "section without a source in its line section 5"),
        ("As in § 3.", "section without a source in its line § 3"),
        ("See docs/page.md, section Lengths.", "section Lengths"),
        ("See section 'Lengths'.", "section Lengths"),
        ("GRPO (arXiv 2402.99999, section 4).", "source that docs/references.md does not list: arXiv 2402.99999"),
        ("Run `libra plot FILE`.", "command libra plot"),
        ("Then libra plot draws it.", "command libra plot"),
        ("Run `libra plan FILE --yaml`.", "option libra plan --yaml"),
        ("Run `libra plan FILE --set rollout.kv_full=1`.", "configuration key rollout.kv_full"),
        ("Run `python tests/unit/test_objective.py --loud`.", "option tests/unit/test_objective.py --loud"),
        ("Run `make coffee`.", "target make coffee"),
        ("Set `rollout.kv_full`.", "configuration key rollout.kv_full"),
        ("It shows as `train/gain`.", "metric train/gain"),
    ],
)
def test_what_is_named_and_missing_is_found_in_comments_docstrings_and_pages(text: str, missing: str, repository: object) -> None:
    assert _found("libra_core/a.py", f"# {text}\n", repository) == [missing]
    assert _found("libra_core/a.py", f'def f():\n    """Works.\n\n    {text}\n    """\n', repository) == [missing]
    assert _found("configs/a.yaml", f"# {text}\n", repository) == [missing]
    assert _found("docs/other.md", f"{text}\n", repository) == [missing]


@pytest.mark.parametrize(
    "text",
    [
        "See libra_core/planning/objective.py, planning/objective.py, `objective.py`, libra_core/planning, tests/**/test_*.py.",
        "See `libra_core.planning.objective.iteration_s`, `objective.py` (`iteration_s`), `iteration_s` of `objective.py`.",
        "By docs/page.md#what-is-minimised and docs/page.md#errors-libra-plan.",
        "See docs/page.md, section What is minimised, or section Errors of docs/page.md.",
        "GRPO (arXiv 2402.03300, section 4.1.2); FlashAttention-2 (Dao 2023, section 3.1).",
        "Lengths of data/trajectories/agents.",
        "Run `libra plan FILE --json`, `libra docs config` and `make check`. Libra makes decisions; libra over the best.",
        "Set `rollout.kv_fill` and `seed`; it shows as `train/loss` and `tools/search_s`.",
    ],
)
def test_what_is_there_is_no_finding(text: str, repository: object) -> None:
    assert _found("libra_core/a.py", f"# {text}\n", repository) == []
    assert _found("docs/other.md", f"{text}\n", repository) == []


@pytest.mark.parametrize("target", ["gone.md", "page.md#gone", "#gone", "gone.png", "../GONE.md"])
def test_a_link_or_an_image_to_nowhere_is_found(target: str, repository: object) -> None:
    assert f"link {target}" in _found("docs/page.md", f"[text]({target})\n", repository)
    assert f"link {target}" in _found("docs/page.md", f"![figure]({target})\n", repository)
    assert f"link {target}" in _found("docs/page.md", f'<img src="{target}">\n', repository)
    assert f"link {target}" in _found("docs/page.md", f"[text][1]\n\n[1]: {target}\n", repository)


def test_links_that_lead_somewhere_are_no_findings(repository: object) -> None:
    text = "[a](page.md) [b](page.md#what-is-minimised) [c](../README.md) ![d](figure.png) [e](https://example.org/x#y)\n"
    assert _found("docs/other.md", text, repository) == []


def test_a_page_that_names_a_test_which_is_gone_is_found(repository: object) -> None:
    assert _found("docs/other.md", "`test_terms_add_up`, test_objective.py, `test_wall_s`\n", repository) == []
    assert _found("docs/other.md", "`test_terms_are_gone`\n", repository) == ["test test_terms_are_gone"]


def test_sentences_of_the_product_are_read_and_other_strings_are_not(repository: object) -> None:
    said = 'x = "set rollout.kv_full or run libra plot first"\n'
    assert sorted(_found("libra_core/a.py", said, repository)) == [
        "command libra plot",
        "configuration key rollout.kv_full",
    ]
    assert _found("libra_core/a.py", 'x = "rollout.kv_full"\n', repository) == []
    assert _found("tests/unit/test_a.py", said, repository) == []


def test_commands_in_blocks_of_code_are_read(repository: object) -> None:
    block = "```\nlibra plan x.json --yaml  # a comment\nmake coffee\n```\n"
    assert _found("docs/other.md", block, repository) == ["option libra plan --yaml", "target make coffee"]


def test_the_changelog_may_name_what_is_gone(repository: object) -> None:
    assert _found("CHANGELOG.md", "- `libra plot` is gone, see docs/gone.md\n", repository) == []
    assert _found("CHANGELOG.md", "- [why](docs/gone.md)\n", repository) == ["link docs/gone.md"]


def test_a_heading_said_twice_has_two_anchors() -> None:
    assert list(references.anchors_of("# A\n## Errors\n## Errors\n")) == ["a", "errors", "errors-1"]


def test_the_commands_of_libra_are_known_with_their_options() -> None:
    commands = references.libra_commands()
    assert {"--set", "--json", "--resume"} <= commands["train"]
    assert "config show" in commands
