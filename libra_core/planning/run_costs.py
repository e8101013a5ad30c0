"""The evaluators of a configuration: the kernels of its device, or this host's calibration where that fits device and model.

Reads the profile that `planner.profile` names, and the versions of the installed software.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from libra_core.config import LibraConfig
from libra_core.costs.api import (
    CalibratedEngines,
    CalibratedTrainer,
    DeviceProfile,
    Fit,
    MeasuredProfile,
    ModelFacts,
    RolloutCosts,
    StepCoefficients,
    TrainingCosts,
    TrainingShape,
    load_device,
    read_measured,
    require_software,
)
from libra_core.errors import ConfigError
from libra_core.planning.problem import EngineCosts, TrainerCosts
from libra_core.planning.training_tree import shape_in
from libra_core.types.plan import Plan

_CPU_DEVICE = "cpu_host"
_VALUE_BYTES = {"float32": 4.0, "bfloat16": 2.0}


@dataclass(frozen=True, slots=True)
class FixedCache:
    """Engines whose cache is configured in bytes per process instead of filling the memory, as on the CPU backend."""

    engines: EngineCosts
    tokens_per_rank: float

    def coefficients(self, tp: int) -> StepCoefficients:
        return self.engines.coefficients(tp)

    def fits(self, tp: int) -> Fit:
        return self.engines.fits(tp)

    def kv_tokens(self, tp: int, utilization: float | None = None) -> int:
        del utilization
        return int(tp * self.tokens_per_rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCosts:
    """Engines and trainer of one configuration and model, and where their numbers come from."""

    device: DeviceProfile
    engines: EngineCosts
    trainer: TrainerCosts
    calibrated_engines: CalibratedEngines | None
    """None: the kernels' sums."""
    calibrated_trainer: CalibratedTrainer | None
    shape: TrainingShape
    """What a training layout of this configuration has besides its degrees."""
    unused: str = ""
    """Why the profile that was named is not used."""

    @property
    def uses_profile(self) -> bool:
        return self.calibrated_engines is not None or self.calibrated_trainer is not None

    def engine_grounding(self, plan: Plan) -> str:
        """One sentence on the engines' coefficients."""
        if self.calibrated_engines is None:
            return self._kernels()
        return "; ".join(self.calibrated_engines.grounding(tp) for tp, _ in plan.rollout.engines)

    def trainer_grounding(self, plan: Plan) -> str:
        """One sentence on the trainer's times."""
        if self.calibrated_trainer is None:
            return self._kernels()
        return self.calibrated_trainer.grounding(shape_in(self.shape, plan.train))

    def _kernels(self) -> str:
        because = f"; {self.unused}" if self.unused else ""
        return f"kernels of {self.device.name}, {self.device.grounding}{because}"


def run_costs(config: LibraConfig, model: ModelFacts) -> RunCosts:
    """Raises `ConfigError` for an unknown device, and for a profile that is missing, damaged or of other software.

    A sound profile of another model or for another device is not used, and the grounding says so.
    """
    device = load_device(device_of(config))
    profile, unused = _profile(config, model, device)
    return _costs(config, model, device, profile, unused)


def kernel_costs(config: LibraConfig, model: ModelFacts, why: str) -> RunCosts:
    """Without any profile, for the reason given."""
    return _costs(config, model, load_device(device_of(config)), None, why)


def device_of(config: LibraConfig) -> str:
    """`planner.device`, or this host on the CPU backend."""
    return _CPU_DEVICE if config.backend.kind == "cpu" else config.planner.device


def engine_degrees(costs: RunCosts, most: int) -> tuple[int, ...]:
    """Powers of two up to `most` GPUs that divide the model, fit the device and have a law, ascending."""
    powers = (2**exponent for exponent in range(most.bit_length()))
    return tuple(tp for tp in powers if costs.engines.fits(tp).fits and _has_law(costs.engines, tp))


def _has_law(engines: EngineCosts, tp: int) -> bool:
    try:
        engines.coefficients(tp)
    except ConfigError:
        return False
    return True


def _costs(
    config: LibraConfig, model: ModelFacts, device: DeviceProfile, profile: MeasuredProfile | None, unused: str
) -> RunCosts:
    kernels = RolloutCosts(device, model, utilization=config.rollout.gpu_memory_utilization)
    is_cpu = config.backend.kind == "cpu"
    trainer = TrainingCosts(
        device,
        model,
        node_size=device.gpus_per_node if is_cpu else config.planner.gpus_per_node,
        logprob_pass=config.training.loss.old_logprobs == "recompute",
    )
    calibrated = CalibratedEngines(profile, kernels) if profile and profile.engines else None
    calibrated_trainer = CalibratedTrainer(profile, trainer) if profile and profile.trainers else None
    engines: EngineCosts = calibrated or kernels
    if is_cpu:
        bytes_per_token = model.kv_bytes_per_token / model.kv_bytes_per_value * _VALUE_BYTES[config.model.dtype]
        engines = FixedCache(engines, config.rollout.kv_cache_mib * 2**20 / bytes_per_token)
    layout = config.training.layout
    return RunCosts(
        device=device,
        engines=engines,
        trainer=calibrated_trainer or trainer,
        calibrated_engines=calibrated,
        calibrated_trainer=calibrated_trainer,
        shape=TrainingShape(
            recompute=layout.recompute,
            distributed_optimizer=layout.distributed_optimizer,
            sequence_parallel=layout.sequence_parallel or (layout.tp == 1 and not is_cpu),  # tp 1 cannot ask for it
        ),
        unused=unused or ("the profile holds no such measurement" if profile else ""),
    )


def _profile(config: LibraConfig, model: ModelFacts, device: DeviceProfile) -> tuple[MeasuredProfile | None, str]:
    """The profile where it fits, else the reason."""
    if config.planner.profile is None:
        return None, ""
    path = Path(config.planner.profile)
    profile = read_measured(path)
    if device.name != load_device(_CPU_DEVICE).name:
        return None, f"{path} was measured on {profile.device}, this plan is for {device.name}"
    shape = f"hidden {model.hidden_size}, {model.num_layers} layers, {config.model.dtype}"
    if shape not in profile.model:
        return None, f"{path} was measured with {profile.model}, this model has {shape}"
    require_software(profile, _installed(profile.software), str(path))
    return profile, ""


def _installed(names: Iterable[str]) -> dict[str, str]:
    versions: dict[str, str] = {}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "absent"
    return versions
