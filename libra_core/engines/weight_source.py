"""Where an engine finds the weights of a version. Plain values: they travel between processes by pickle."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWeights:
    """One safetensors file with every Hugging Face tensor, readable on the engine's host.

    The engine maps it, so it must not be changed in place; it may be removed once the publication is over.
    """

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMeta:
    """One full Hugging Face tensor, before any tensor-parallel split."""

    name: str
    dtype: str
    """torch name without the prefix, such as `float32`."""
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastWeights:
    """Rank 0 of the transport's group broadcasts these tensors one by one, in this order."""

    tensors: tuple[TensorMeta, ...]


WeightSource = FileWeights | BroadcastWeights
