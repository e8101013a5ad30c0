"""Whatever comments, docstrings, configurations and pages name exists: paths, sections, commands, keys, metrics, tests, links.

    python tests/checks/references.py

Read are comments and docstrings of Python files, sentences that the product says, and YAML, Markdown, shell and make files whole.
Published sources need not be in the repository, but an arXiv number must be listed in docs/references.md; `data/…` means the
recorded data that are described there.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cached_property
from os.path import normpath
from pathlib import Path

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

SUFFIXES = {".py", ".yaml", ".yml", ".md", ".sbatch", ".sh", ".toml"}
NAMES = {"Makefile", "run"}
SKIPPED = {".git", ".venv", "runs", "mlruns", "build"}
PRODUCT = ("libra_core", "flows", "tasks")
HISTORY = "CHANGELOG.md"
"""May name what is gone; only its links are followed."""
REFERENCES = "docs/references.md"
ELSEWHERE = {
    "config.yaml": "every run folder has one",
    "plan.yaml": "a run folder that was planned has one",
    "other.yaml": "a name in an example",
    "a100_sxm.yaml": "a file of aiconfigurator",
    "h100_sxm.yaml": "a file of aiconfigurator",
    "model.safetensors": "a file of a model folder",
    "routing/prefix_tree": "a file of a run folder",
    "replanning.share_of_run": "in the JSON of `libra train`",
    "run.asks": "a field of the simulator's kernel",
    "test_patch": "a column of SWE-bench",
    "a.b": "any key",
}
"""Names that look like something of the repository and are not, and what they are."""

_PATH = re.compile(r"(?<![\w/.$<>{}~:@%-])(?:\.{1,2}/)?[\w.*-]+(?:/[\w.*{},-]+)*/?")
_FILE = re.compile(r"\.(py|md|ya?ml|sbatch|lock|toml)$")
_MODULE = re.compile(r"\b(?:libra_core|flows|tasks)(?:\.\w+)+")
_SECTION = re.compile(r"(?:\b[Ss]ections? |§ ?)\d")
_TITLE = re.compile(r"\b[Ss]ection [\"'`“]?([A-Z][\w ]*\w)")
_ARXIV = re.compile(r"arXiv[: ]+(\d{4}\.\d{4,5})")
_PUBLISHED = re.compile(r"arXiv|\b(19|20)\d\d\b")
_ANCHOR = re.compile(r"([\w./-]+\.md)#([\w%η-]+)")
_OUTSIDE = re.compile(r"\bDESIGN\b|(?<![\w/])(?:notes|spikes)/|\.\./shared(?!/data)")
_DATA = re.compile(r"(?<![\w/])(?:\.\./shared/)?(data/[\w./-]*\w)")
_INSIDE = re.compile(r"`([\w/.]+\.py)` \(`(\w+)`|`(\w+)` of `([\w/.]+\.\w+)`")
_SPAN = re.compile(r"`([^`\n]+)`")
_TEST = re.compile(r"\btest_\w+\b(?!\.py)")
_LINK = re.compile(r"!?\[[^\]\n]*\]\(([^)\s]+)\)|^\[[^\]\n]+\]: (\S+)|\b(?:src|href)=\"([^\"]+)\"")
_HEADING = re.compile(r"^#{1,6} +(.*?)\s*$", re.MULTILINE)
_COMMAND = re.compile(r"\blibra ([a-z][a-z-]+)(?: ([a-z]+))?")
_SYSTEM = re.compile(r"on|over|that|the|whose|with|without")
"""Words that follow where `libra` is the system of the study, not the command."""
_TARGET = re.compile(r"^make (?:PYTHON=\S+ )?([a-z][\w-]*)")
_SCRIPT = re.compile(r"\bpython3? ((?:tests|examples)/[\w/]+\.py)([^`]*)")
_SET = re.compile(r"--set ([\w.]+)=")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_KEY = re.compile(r"^[a-z_]+(?:\.[a-z_]+)+$")
_METRIC = re.compile(r"^[a-z_]+/[a-z_0-9]+$")
_SAID = re.compile(r"\b[a-z]+(?:\.[a-z_]+)+\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Something that is named and does not exist."""

    where: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of prose of a file, whose path is relative to the repository."""

    path: str
    number: int
    text: str
    fenced: bool = False
    """Within a block of code or an indented example, where commands stand without backticks."""
    said: bool = False
    """A sentence that the product says: names stand in it without backticks."""

    def missing(self, kind: str, name: str) -> Missing:
        return Missing(where=f"{self.path}:{self.number}", kind=kind, name=name)


@dataclass(frozen=True, kw_only=True)
class Repository:
    """What exists. `commands` has the options of each command, as `{"train": {"--set"}, "docs config": set()}`."""

    root: Path
    commands: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @cached_property
    def files(self) -> frozenset[str]:
        found: set[str] = set()
        for top in self.root.iterdir():
            if top.name in SKIPPED or top.name.endswith(("_cache", ".egg-info")):
                continue
            below = [top] if top.is_file() else [p for p in top.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
            found.update(str(path.relative_to(self.root)) for path in below)
        return frozenset(found)

    @cached_property
    def endings(self) -> frozenset[str]:
        """All files and folders, each by every ending of its path: `a/b/c`, `b/c`, `c`."""
        paths = {str(parent) for file in self.files for parent in (Path(file), *Path(file).parents)} - {"."}
        return frozenset("/".join(parts[start:]) for parts in (p.split("/") for p in paths) for start in range(len(parts)))

    @cached_property
    def tops(self) -> frozenset[str]:
        return frozenset(file.split("/")[0] for file in self.files if "/" in file)

    @cached_property
    def anchors(self) -> Mapping[str, frozenset[str]]:
        pages = (file for file in self.files if file.endswith(".md"))
        return {page: frozenset(anchors_of(self.read(page))) for page in pages}

    @cached_property
    def targets(self) -> frozenset[str]:
        return frozenset(re.findall(r"^([a-z][\w-]*):", self.read("Makefile"), re.MULTILINE))

    @cached_property
    def keys(self) -> frozenset[str]:
        return frozenset(keys_of(self.read("docs/configuration.md")))

    @cached_property
    def metrics(self) -> frozenset[str]:
        return frozenset(re.findall(r"^\| `([a-z_]+/[\w{}*]+)`", self.read("docs/metrics.md"), re.MULTILINE))

    @cached_property
    def tests(self) -> frozenset[str]:
        """Names of tests and of the files that hold them."""
        files = [file for file in self.files if file.startswith("tests/") and file.endswith(".py")]
        names = {name for file in files for name in re.findall(r"def (test_\w+)", self.read(file))}
        return frozenset(names | {Path(file).stem for file in files})

    @cached_property
    def references(self) -> str:
        return self.read(REFERENCES)

    def read(self, file: str) -> str:
        path = self.root / file
        return path.read_text(encoding="utf-8") if path.is_file() else ""


def anchors_of(page: str) -> Iterator[str]:
    """Anchors of a page's headings as GitHub makes them; the second of a name gets `-1`."""
    seen: dict[str, int] = {}
    for heading in _HEADING.findall(re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)):
        name = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()).replace(" ", "-")
        seen[name] = seen.get(name, -1) + 1
        yield name if seen[name] == 0 else f"{name}-{seen[name]}"


def keys_of(page: str) -> Iterator[str]:
    """Configuration keys of docs/configuration.md: its sections, and the rows of their tables."""
    section = ""
    for line in page.splitlines():
        if heading := re.match(r"## (?:`([\w.]+)`|Top level)", line):
            section = heading[1] or ""
            yield section
        elif row := re.match(r"\| `(\w+)` \|", line):
            yield f"{section}.{row[1]}".lstrip(".")


def lines_of(path: str, text: str) -> Iterator[Line]:
    """Prose of a file: all of it, or comments and docstrings of Python."""
    if path.endswith(".py"):
        yield from _python_prose(path, text)
        return
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        fenced ^= line.startswith("```")
        yield Line(path=path, number=number, text=line, fenced=fenced or Path(path).suffix not in {".md", ".yaml"})


def _python_prose(path: str, text: str) -> Iterator[Line]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield Line(path=path, number=token.start[0], text=token.string)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for offset, line in enumerate(node.value.value.splitlines()):
                yield Line(path=path, number=node.lineno + offset, text=line, fenced=line.startswith("    "))
    if path.split("/")[0] in PRODUCT:
        yield from _sentences(path, ast.parse(text))


def _sentences(path: str, tree: ast.AST) -> Iterator[Line]:
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings and " " in node.value:
            yield Line(path=path, number=node.lineno, text=node.value.replace("\n", " "), said=True)


def _paths(line: Line, repository: Repository) -> Iterator[Missing]:
    for match in _PATH.finditer(re.sub(r"https?://\S+|\{value.*?source: ", "", line.text)):
        name = match[0].rstrip(".,:;-").removeprefix("./")
        is_placed = "/" in name and name.split("/")[0] in repository.tops
        is_file = _FILE.search(name) and not name.startswith((".", "*")) and not line.said
        if not (is_placed or is_file) or name in ELSEWHERE:
            continue
        if not _exists(name.rstrip("/"), line, repository):
            yield line.missing("path", name)


def _exists(name: str, line: Line, repository: Repository) -> bool:
    if any(mark in name for mark in "*{"):
        return "{" in name or any(fnmatch(file, name) or fnmatch(file, f"*/{name}") for file in repository.files)
    beside = (repository.root / line.path).parent / name
    return name in repository.endings or beside.exists()


def _inside(line: Line, repository: Repository) -> Iterator[Missing]:
    """A name that is said to be in a file, in parentheses after it or with "of" before it."""
    for file, name, other, owner in _INSIDE.findall(line.text):
        held = [repository.read(path) for path in repository.files if f"/{path}".endswith(f"/{file or owner}")]
        if held and not any(re.search(rf"\b{name or other}\b", text) for text in held):
            yield line.missing("name", f"{name or other} in {file or owner}")


def _modules(line: Line, repository: Repository) -> Iterator[Missing]:
    for match in _MODULE.finditer(line.text):
        parts = match[0].split(".")
        if parts[-1] in {"py", "md"}:
            continue
        known = max(n for n in range(len(parts) + 1) if n == 0 or _module_file(parts[:n], repository))
        inside = repository.read(_module_file(parts[:known], repository) or "")
        if known < len(parts) and not re.search(rf"\b{parts[known]}\b", inside):
            yield line.missing("module", match[0])


def _module_file(parts: list[str], repository: Repository) -> str | None:
    stem = "/".join(parts)
    return next((file for file in (f"{stem}.py", f"{stem}/__init__.py") if file in repository.files), None)


def _outside(line: Line, repository: Repository) -> Iterator[Missing]:
    for match in _OUTSIDE.finditer(line.text):
        yield line.missing("document outside the repository", match[0])
    for match in _DATA.finditer(line.text):
        if not all(part in repository.references for part in match[1].split("/")):
            yield line.missing(f"recorded data that {REFERENCES} does not describe:", match[1])


def _sections(line: Line, repository: Repository) -> Iterator[Missing]:
    for number in _ARXIV.findall(line.text):
        if number not in repository.references:
            yield line.missing(f"source that {REFERENCES} does not list: arXiv", number)
    if (section := _SECTION.search(line.text)) and not _PUBLISHED.search(line.text):
        yield line.missing("section without a source in its line", section[0])
    for title in _TITLE.findall(line.text):
        slug = title.split(" of ")[0].lower().replace(" ", "-")
        pages = [page for page in repository.anchors if page in line.text] or repository.anchors
        if not any(anchor.startswith(slug) for page in pages for anchor in repository.anchors[page]):
            yield line.missing("section", title)
    for page, anchor in _ANCHOR.findall(_LINK.sub("", line.text)):
        inside = page if page in repository.anchors else normpath(Path(line.path).parent / page)
        if anchor not in repository.anchors.get(inside, ()):
            yield line.missing("section", f"{page}#{anchor}")


def _spans(line: Line) -> Iterator[str]:
    yield from _SAID.findall(line.text) if line.said else _SPAN.findall(line.text)
    if line.fenced:
        yield line.text.strip().removeprefix("# ")


def _commands(line: Line, repository: Repository) -> Iterator[Missing]:
    """Commands of `libra` and their options, wherever they stand, and values that are set."""
    for match in _COMMAND.finditer(line.text):
        name = next((name for name in (f"{match[1]} {match[2]}", match[1]) if name in repository.commands), None)
        if name is None and not _SYSTEM.fullmatch(match[1]):
            yield line.missing("command", f"libra {match[1]}")
        rest = re.split(r"`|  #|\blibra ", line.text[match.end() :])[0] if name is not None else ""
        for option in _OPTION.findall(rest):
            if option not in repository.commands[name or ""]:
                yield line.missing("option", f"libra {name} {option}")
    for key in _SET.findall(line.text):
        if key not in repository.keys | ELSEWHERE.keys():
            yield line.missing("configuration key", key)


def _programs(line: Line, repository: Repository) -> Iterator[Missing]:
    """Targets of make, and options of the programs under tests/ and examples/."""
    for span in _spans(line):
        target, script = _TARGET.match(span), _SCRIPT.search(span)
        if target and target[1] not in repository.targets:
            yield line.missing("target", f"make {target[1]}")
        for option in _OPTION.findall(script[2].split("  #")[0]) if script else ():
            if option not in repository.read(script[1]):
                yield line.missing("option", f"{script[1]} {option}")


def _keys(line: Line, repository: Repository) -> Iterator[Missing]:
    """Configuration keys, known by their section."""
    sections = {key.split(".")[0] for key in repository.keys if "." in key}
    for span in set(_spans(line)) - ELSEWHERE.keys() - repository.keys:
        module = "/".join(span.split(".")[:2]) + ".py"
        if _KEY.match(span) and span.split(".")[0] in sections and module not in repository.endings:
            yield line.missing("configuration key", span)


def _metrics(line: Line, repository: Repository) -> Iterator[Missing]:
    """Metrics, known by their family."""
    families = {metric.split("/")[0] for metric in repository.metrics}
    patterns = [re.sub(r"\{\w*\}", "*", metric) for metric in repository.metrics]
    for span in set(_spans(line)) - ELSEWHERE.keys() - repository.endings:
        is_metric = _METRIC.match(span) and span.split("/")[0] in families
        if is_metric and not any(fnmatch(span, pattern) for pattern in patterns):
            yield line.missing("metric", span)


def _tests(line: Line, repository: Repository) -> Iterator[Missing]:
    """Tests that a page names as proof."""
    if line.path.endswith(".md"):
        rows = {key.split(".")[-1] for key in repository.keys}
        for name in _TEST.findall(line.text):
            if name not in repository.tests | ELSEWHERE.keys() | rows:
                yield line.missing("test", name)


def _links(line: Line, repository: Repository) -> Iterator[Missing]:
    if not line.path.endswith(".md") or line.fenced:
        return
    for target in filter(None, (name for names in _LINK.findall(line.text) for name in names)):
        page, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        place = (repository.root / line.path).parent / page if page else repository.root / line.path
        inside = str(place.resolve().relative_to(repository.root.resolve())) if place.exists() else None
        if inside is None or (anchor and anchor not in repository.anchors.get(inside, ())):
            yield line.missing("link", target)


CHECKS: tuple[Callable[[Line, Repository], Iterator[Missing]], ...] = (
    _paths,
    _inside,
    _modules,
    _outside,
    _sections,
    _commands,
    _programs,
    _keys,
    _metrics,
    _tests,
    _links,
)


def missing_in(path: str, text: str, repository: Repository) -> list[Missing]:
    """Everything that a file, by its path in the repository, names and that does not exist."""
    checks = (_links,) if path == HISTORY else CHECKS
    return list(dict.fromkeys(found for line in lines_of(path, text) for check in checks for found in check(line, repository)))


def missing(repository: Repository) -> list[Missing]:
    files = sorted(f for f in repository.files if Path(f).suffix in SUFFIXES or Path(f).name in NAMES)
    return [found for file in files for found in missing_in(file, repository.read(file), repository)]


def libra_commands() -> dict[str, frozenset[str]]:
    """Every `libra` command with its options, groups with none."""
    import typer

    from flows.cli import app

    def below(command: object, name: str) -> Iterator[tuple[str, frozenset[str]]]:
        options = {text for parameter in getattr(command, "params", ()) for text in parameter.opts}
        yield name, frozenset(options | {"--help"})
        for word, child in getattr(command, "commands", {}).items():
            yield from below(child, f"{name} {word}".strip())

    return {name: options for name, options in below(typer.main.get_command(app), "") if name}


def main() -> int:
    found = missing(Repository(root=ROOT, commands=libra_commands()))
    for one in found:
        print(f"{one.where}: {one.kind} {one.name}")
    print(f"references: {len(found)} missing" if found else "references: all exist")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
