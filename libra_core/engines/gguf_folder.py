"""A GGUF file as an HF folder: weights dequantised, tokenizer and configuration restored from the file itself."""

import json
from pathlib import Path
from typing import Final

from libra_core.errors import ModelFolderError

_CHATML: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write `folder` in bfloat16; a minute per 100 million on two cores.

    Raises:
        ModelFolderError: when `gguf` or `accelerate` is not installed, or transformers does not know the file's architecture.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    try:
        dense = GgufConfig(dequantize=True)
        model = AutoModelForCausalLM.from_pretrained(
            str(gguf.parent), gguf_file=gguf.name, quantization_config=dense, dtype=torch.bfloat16
        )
        tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    except (ImportError, ValueError, OSError) as error:
        raise ModelFolderError(f"{gguf} cannot be loaded ({error}); install the extra: pip install 'libra[models]'") from None
    folder.mkdir(parents=True, exist_ok=True)
    tied = bool(model.config.tie_word_embeddings)
    weights = {
        name: tensor.contiguous() for name, tensor in model.state_dict().items() if not (tied and name == "lm_head.weight")
    }
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    _write_config(model.config.to_dict(), folder)
    tokenizer.chat_template = tokenizer.chat_template or _CHATML
    tokenizer.save_pretrained(str(folder))


def _write_config(config: dict[str, object], folder: Path) -> None:
    """Without what speaks of quantisation: the weights no longer are."""
    kept = {name: value for name, value in config.items() if name not in {"quantization_config", "_name_or_path", "dtype"}}
    (folder / "config.json").write_text(json.dumps({**kept, "dtype": "bfloat16"}, indent=1, default=str), encoding="utf-8")
