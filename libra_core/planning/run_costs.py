"""The evaluators of a configuration: the kernels of its device, or this host's calibration where that fits device and model.

Reads the profile that `planner.profile` names, and the versions of the installed software.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from libra_core.config import LibraConfig
from libra_core.costs.api import (
    DeviceProfile,
    EngineLaws,
    MeasuredProfile,
    ModelFacts,
    RolloutCosts,
    TrainerLaw,
    TrainingCosts,
    TrainingShape,
    calibrated_engines,
    calibrated_trainer,
    load_device,
    read_measured,
    require_software,
)
from libra_core.planning.training_tree import shape_in
from libra_core.types.plan import Plan

_CPU_DEVICE = "cpu_host"
_VALUE_BYTES = {"float32": 4.0, "bfloat16": 2.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCosts:
    """Engines and trainer of one configuration and model."""

    device: DeviceProfile
    engines: EngineLaws
    trainer: TrainerLaw
    shape: TrainingShape
    """What a training layout of this configuration has besides its degrees."""
    uses_profile: bool = False
    """Whether any of it was measured on this host."""
    unused: str = ""
    """Why the profile that was named is not used."""

    def engine_grounding(self, plan: Plan) -> str:
        """One sentence on where the engines' laws come from."""
        engines = [
            self.engines.of[tp].source if tp in self.engines.of else self.engines.why_not(tp) for tp, _ in plan.rollout.engines
        ]
        return "; ".join(dict.fromkeys(engines))

    def trainer_grounding(self, plan: Plan) -> str:
        """One sentence on where the trainer's times come from."""
        return self.trainer.source(shape_in(self.shape, plan.train))


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
    return tuple(tp for tp in (2**exponent for exponent in range(most.bit_length())) if tp in costs.engines.of)


def _costs(
    config: LibraConfig, model: ModelFacts, device: DeviceProfile, profile: MeasuredProfile | None, unused: str
) -> RunCosts:
    is_cpu, unused = config.backend.kind == "cpu", unused or ("the profile holds no such measurement" if profile else "")
    rollout = RolloutCosts(device, model, utilization=config.rollout.gpu_memory_utilization)
    training = TrainingCosts(
        device,
        model,
        node_size=device.gpus_per_node if is_cpu else config.planner.gpus_per_node,
        logprob_pass=config.training.loss.old_logprobs == "recompute",
    )
    powers = (2**exponent for exponent in range(config.planner.gpus_per_node.bit_length()))
    degrees = {*powers, *(group.tp for group in config.rollout.engines)}
    engines = calibrated_engines(profile, rollout, degrees) if profile and profile.engines else rollout.laws(degrees, unused)
    if is_cpu:  # a cache is so many bytes a process instead of what the memory leaves
        bytes_per_token = model.kv_bytes_per_token / model.kv_bytes_per_value * _VALUE_BYTES[config.model.dtype]
        per_rank = config.rollout.kv_cache_mib * 2**20 / bytes_per_token
        engines = engines.mapped(lambda tp, law: replace(law, kv_tokens=int(tp * per_rank)))
    layout = config.training.layout
    return RunCosts(
        device=device,
        engines=engines,
        trainer=calibrated_trainer(profile, training) if profile and profile.trainers else training.law(unused),
        shape=TrainingShape(
            recompute=layout.recompute,
            distributed_optimizer=layout.distributed_optimizer,
            sequence_parallel=layout.sequence_parallel or (layout.tp == 1 and not is_cpu),  # tp 1 cannot ask for it
        ),
        uses_profile=bool(profile and (profile.engines or profile.trainers)),
        unused=unused,
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
