import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[3]


def _limits_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("limits", ROOT / "tests" / "checks" / "limits.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["limits"] = module
    spec.loader.exec_module(module)
    return module


limits = _limits_module()
LIMITS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["libra"]["limits"]


def _messages(text: str, path: str = "libra_core/planning/example.py") -> list[str]:
    return [finding.message for finding in limits.check_file(Path(path), text, LIMITS)]


def _errors(text: str) -> list[str]:
    path = Path("libra_core/planning/example.py")
    return [finding.message for finding in limits.check_file(path, text, LIMITS) if finding.is_error]


def test_sizes_that_only_ask_a_question_break_nothing() -> None:
    methods = "\n".join(f"    def m{number}(self): ..." for number in range(7))
    lines = "\n".join(f"    x{number} = {number}" for number in range(300))
    for text in (
        f"class Pool(Protocol):\n{methods}\n",
        f"class Table:\n{lines}\n",
        "def work(a, b, c, d, e, f, *, g): ...\n",
    ):
        assert _messages(text) != []
        assert _errors(text) == []


def test_a_flow_longer_than_any_function_is_broken() -> None:
    body = "\n".join(f"    x{number} = {number}" for number in range(60))
    assert _errors(f"@flow(name='x')\ndef work():\n{body}\n") == ["function of 61 lines, at most 50"]


def test_long_function_is_found() -> None:
    body = "\n".join(f"    x{number} = {number}" for number in range(60))
    assert _messages(f"def work():\n{body}\n") == ["function of 61 lines, at most 50"]


def test_flow_has_its_own_limit() -> None:
    body = "\n".join(f"    x{number} = {number}" for number in range(44))
    assert _messages(f"@flow(name='x')\ndef work():\n{body}\n") == ["flow of 45 lines, at most 40"]


def test_seven_parameters_are_too_many() -> None:
    assert _messages("def work(a, b, c, d, e, f, *, g): ...\n") == ["7 parameters, at most 6"]


def test_environment_is_read_only_where_allowed() -> None:
    text = "import os\nHOME = os.environ['HOME']\n"
    assert _messages(text)[0].startswith("reads the environment")
    assert _messages(text, "libra_core/config/loading.py") == []


def test_port_with_seven_methods_is_found() -> None:
    methods = "\n".join(f"    def m{number}(self): ..." for number in range(7))
    assert _messages(f"class Pool(Protocol):\n{methods}\n") == ["port of 7 methods, at most 6"]


def test_docstring_that_repeats_the_name_is_found() -> None:
    assert _messages('def decide_plan():\n    """Decide the plan."""\n') == ["docstring only repeats the name"]
