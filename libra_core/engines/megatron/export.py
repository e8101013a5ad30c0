"""Weights out of the trainer: a streamed safetensors file, a complete HF folder, a digest."""

import hashlib
import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

_SAFETENSORS_NAMES = {"float32": "F32", "bfloat16": "BF16"}
_ITEM_BYTES = {"float32": 4, "bfloat16": 2}
_NOT_COPIED = (".safetensors", ".bin", ".pt", ".index.json")

Metadata = tuple[str, str, tuple[int, ...]]
"""Name, torch name of the dtype (`float32`) and full shape of one exported tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """One export, as this rank saw it; the file is complete when *rank 0* has returned."""

    bytes: int
    duration_s: float


def num_bytes(metadata: Sequence[Metadata]) -> int:
    return sum(_ITEM_BYTES[dtype] * prod(shape) for _, dtype, shape in metadata)


def write_safetensors(path: Path, metadata: Sequence[Metadata], tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Write tensors as they arrive, then rename into place: readers see the whole file or none.

    The header of the format lists all offsets first, which is possible because shapes are known beforehand.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, dtype, shape in metadata:
        size = _ITEM_BYTES[dtype] * prod(shape)
        header[name] = {"dtype": _SAFETENSORS_NAMES[dtype], "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as stream:
            stream.write(len(encoded).to_bytes(8, "little") + encoded)
            for (name, _, shape), (got, tensor) in zip(metadata, tensors, strict=True):
                assert (name, shape) == (got, tuple(tensor.shape)), f"export order: wanted {name} {shape}, got {got}"
                stream.write(tensor_bytes(tensor))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def digest_of(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """sha256 over names and raw values in order."""
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(name.encode())
        digest.update(tensor_bytes(tensor))
    return digest.hexdigest()


def copy_side_files(source: Path, target: Path) -> None:
    """Config, tokenizer and whatever else describes the model; everything but its weights."""
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.is_file() and not file.name.endswith(_NOT_COPIED):
            shutil.copyfile(file, target / file.name)


def tensor_bytes(tensor: Tensor) -> memoryview:
    flat = tensor.detach().contiguous().cpu().flatten()
    return memoryview(flat.view(torch.uint8).numpy())
