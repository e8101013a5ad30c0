"""From the configuration to the laws that a training run is forecast by; reads the device, the model's folder and the profile."""

from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from libra_core.config import LibraConfig
from libra_core.costs.api import (
    EngineLimits,
    MeasuredRolloutCosts,
    ModelFacts,
    RolloutCosts,
    TrainingCosts,
    TrainingShape,
    load_device,
    load_model,
    read_measured,
    require_software,
)
from libra_core.errors import ConfigError
from libra_core.planning.run_forecast import EngineOfRun, FleetLaw, RunLaws, TrainerLaw
from libra_core.types.plan import Plan

_CPU_DEVICE = "cpu_host"
_VALUE_BYTES = {"float32": 4.0, "bfloat16": 2.0}


def load_run_laws(config: LibraConfig, plan: Plan, model_folder: str) -> tuple[RunLaws, Sequence[str]]:
    """The laws of the plan's engines and trainer for the model in the folder, and a sentence for each that is not known."""
    missing: list[str] = []
    fleet: FleetLaw | None = None
    trainer: TrainerLaw | None = None
    try:
        model = load_model(model_folder)
    except ConfigError as error:
        return RunLaws(), [str(error)]
    try:
        fleet = _fleet_law(config, plan, model)
    except ConfigError as error:
        missing.append(f"no T_rollout: {error}")
    try:
        trainer = _trainer_law(config, plan, model)
    except ConfigError as error:
        missing.append(f"no T_train: {error}")
    return RunLaws(fleet=fleet, trainer=trainer), missing


def _device_of(config: LibraConfig) -> str:
    return _CPU_DEVICE if config.backend.kind == "cpu" else config.planner.device


def _fleet_law(config: LibraConfig, plan: Plan, model: ModelFacts) -> FleetLaw:
    costs = _measured_costs(config, model) if config.planner.profile else _kernel_costs(config, model)
    engines = [_engine(config, costs, model, tp) for tp, _ in plan.rollout.engines]
    return FleetLaw(engines=tuple(engines), num_engines=plan.rollout.num_engines)


def _engine(config: LibraConfig, costs: RolloutCosts | MeasuredRolloutCosts, model: ModelFacts, tp: int) -> EngineOfRun:
    capacity = float(_cpu_kv_tokens(config, model, tp) if config.backend.kind == "cpu" else costs.kv_tokens(tp))
    fill = 1.0 if config.rollout.kv_fill is None else config.rollout.kv_fill
    limits = EngineLimits(kv_tokens=fill * capacity, max_num_seqs=config.rollout.max_num_seqs, kv_capacity=capacity)
    return EngineOfRun(coefficients=costs.coefficients(tp), limits=limits)


def _cpu_kv_tokens(config: LibraConfig, model: ModelFacts, tp: int) -> int:
    """`rollout.kv_cache_mib` is that of one engine process, and an engine has `tp` of them."""
    bytes_per_token = model.kv_bytes_per_token / model.kv_bytes_per_value * _VALUE_BYTES[config.model.dtype]
    return int(tp * config.rollout.kv_cache_mib * 2**20 / bytes_per_token)


def _kernel_costs(config: LibraConfig, model: ModelFacts) -> RolloutCosts:
    return RolloutCosts(load_device(_device_of(config)), model, utilization=config.rollout.gpu_memory_utilization)


def _measured_costs(config: LibraConfig, model: ModelFacts) -> MeasuredRolloutCosts:
    """Refuses a profile of another model or of other software."""
    path = Path(config.planner.profile or "")
    profile = read_measured(path)
    require_software(profile, _installed(profile.software), str(path))
    shape = f"hidden {model.hidden_size}, {model.num_layers} layers, {config.model.dtype}"
    if shape not in profile.model:
        raise ConfigError(f"{path} was measured with {profile.model}, this run's model has {shape}")
    return MeasuredRolloutCosts(profile)


def _installed(names: Iterable[str]) -> dict[str, str]:
    versions: dict[str, str] = {}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "absent"
    return versions


def _trainer_law(config: LibraConfig, plan: Plan, model: ModelFacts) -> TrainerLaw:
    layout, train = config.training.layout, plan.train
    shape = TrainingShape(
        tp=train.tp,
        pp=train.pp,
        dp=train.dp,
        cp=train.cp,
        ep=train.ep,
        micro_batch_tokens=config.training.micro_batch_tokens,
        recompute=layout.recompute,
        distributed_optimizer=layout.distributed_optimizer,
        sequence_parallel=layout.sequence_parallel,
    )
    device = load_device(_device_of(config))
    node_size = device.gpus_per_node if config.backend.kind == "cpu" else config.planner.gpus_per_node
    logprob_pass = config.training.loss.old_logprobs == "recompute"
    costs = TrainingCosts(device, model, node_size=node_size, logprob_pass=logprob_pass)
    fit = costs.shape_fit(shape)
    if not fit.fits:
        raise ConfigError(fit.reason)
    return TrainerLaw(costs=costs, shape=shape)
