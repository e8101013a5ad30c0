"""How much of the host a run takes, roughly: enough to tell a start that cannot go well from one that can."""

from pathlib import Path

from libra_core.config import LibraConfig
from libra_core.engines.model_folder import DecoderShape, read_model_facts

GIB = 2**30
_ITEM_BYTES = {"float32": 4, "bfloat16": 2}
_STATE_BYTES = 12
"""Per parameter, of the optimizer: float32 weights and Adam's two means."""


def model_facts(config: LibraConfig) -> DecoderShape:
    """Of the folder, or of the embedded policy before it is made. Raises `ModelFolderError`."""
    if config.model.path is not None:
        return read_model_facts(config.model.path)
    tiny = config.model.tiny
    return DecoderShape(
        model_type="qwen3",
        num_layers=tiny.num_layers,
        hidden_size=tiny.hidden_size,
        num_heads=tiny.num_heads,
        num_kv_heads=tiny.num_kv_heads,
        head_dim=tiny.hidden_size // tiny.num_heads,
        ffn_size=tiny.ffn_size,
        vocab_size=tiny.vocab_size,
        tied_embeddings=True,
        max_positions=tiny.max_positions,
        rope_theta=1e4,
        norm_epsilon=1e-6,
    )


def parameters(facts: DecoderShape) -> int:
    attention = facts.hidden_size * facts.head_dim * 2 * (facts.num_heads + facts.num_kv_heads)
    layers = facts.num_layers * (attention + 3 * facts.hidden_size * facts.ffn_size)
    return layers + facts.vocab_size * facts.hidden_size * (1 if facts.tied_embeddings else 2)


def weight_bytes(config: LibraConfig, facts: DecoderShape) -> int:
    return parameters(facts) * _ITEM_BYTES[config.model.dtype]


def memory_bytes(config: LibraConfig, facts: DecoderShape) -> int:
    """On a CPU host: what processes take by themselves, weights and KV of engines, weights, gradients and state of trainers."""
    rollout, layout = config.rollout, config.training.layout
    gpus = sum(group.tp * group.count for group in rollout.engines)
    engines = rollout.num_engines * weight_bytes(config, facts) + gpus * (rollout.kv_cache_mib << 20)
    trainers = layout.dp * (2 * weight_bytes(config, facts) + _STATE_BYTES * parameters(facts))
    return int(config.backend.min_free_memory_gib * GIB) + engines + trainers


def disk_bytes(config: LibraConfig, facts: DecoderShape) -> int:
    """Checkpoints that are kept and the one that is written; records and logs."""
    checkpoint = weight_bytes(config, facts) + _STATE_BYTES * parameters(facts)
    return (config.training.checkpoint.keep + 1) * checkpoint + GIB // 2


def shared_bytes(config: LibraConfig, facts: DecoderShape) -> int:
    """Two versions of the weights where they travel by file, KV that is handed over, and vLLM's own queues between ranks."""
    weights = 2 * weight_bytes(config, facts) if config.weights_by_file else 0
    transfer = config.rollout.kv_transfer
    handed = transfer.max_mib << 20 if transfer.connector == "shared_folder" else 0
    queues = sum(group.count for group in config.rollout.engines if group.tp > 1) * (256 << 20)
    return weights + handed + queues + (16 << 20)


def existing(path: Path) -> Path:
    """The nearest folder that is there."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())
