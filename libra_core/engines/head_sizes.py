"""Which head sizes the engine's attention is made for, read from vLLM's source: importing vLLM takes seconds."""

import ast
import importlib.util
from pathlib import Path

from libra_core.errors import ConfigError

_CPU_ATTENTION = "v1/attention/backends/cpu_attn.py"
_LISTING = "get_supported_head_sizes"


def check_head_size(head_dim: int) -> None:
    """Of the CPU's attention, which has no fall-back; raises `ConfigError`."""
    supported = cpu_head_sizes()
    if supported and head_dim not in supported:
        raise ConfigError(
            f"the model's attention heads have size {head_dim}, and vLLM's attention on the CPU knows "
            f"{', '.join(map(str, supported))}; change model.path, or hidden_size and num_heads of model.tiny"
        )


def cpu_head_sizes() -> tuple[int, ...]:
    """Empty where vLLM is not installed or says it in another way; the engine's own start then decides."""
    package = importlib.util.find_spec("vllm")
    for place in (package.submodule_search_locations or ()) if package else ():
        file = Path(place) / _CPU_ATTENTION
        if file.is_file():
            return _listed(ast.parse(file.read_text(encoding="utf-8")))
    return ()


def _listed(module: ast.Module) -> tuple[int, ...]:
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and node.name == _LISTING and isinstance(node.body[-1], ast.Return):
            try:
                return tuple(ast.literal_eval(node.body[-1].value or ast.Constant(())))
            except (ValueError, TypeError):
                return ()
    return ()
