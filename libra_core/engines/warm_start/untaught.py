"""The embedded policy with random weights, for workloads that teach nothing beforehand."""

import hashlib
import json
from pathlib import Path

from libra_core.config.models import LibraConfig
from libra_core.engines.model_folder import weight_files
from libra_core.engines.warm_start.cache import exclusive, made_whole
from libra_core.engines.warm_start.policy import new_policy, save_policy
from libra_core.engines.warm_start.tokenizer import train_tokenizer
from libra_core.errors import ModelFolderError
from libra_core.workloads.search_r1.facts import load_world


def ensure_untaught_policy(config: LibraConfig) -> Path:
    """Its HF folder, made in seconds when the cache has none; the same for the same `model.tiny` and `model.warm_start.seed`.

    Raises:
        DeadlineError: when another process holds the cache for too long.
    """
    shape, seed = config.model.tiny, config.model.warm_start.seed
    recipe = json.dumps({"tiny": shape.model_dump(mode="json"), "seed": seed}, sort_keys=True)
    folder = Path(config.run.root) / "cache" / "untaught" / hashlib.sha256(recipe.encode()).hexdigest()[:16]
    with exclusive(folder):
        if not _is_whole(folder):
            with made_whole(folder) as scratch:
                tokenizer = train_tokenizer(load_world(), shape.vocab_size)
                save_policy(new_policy(shape, tokenizer, seed), tokenizer, scratch)
    return folder


def _is_whole(folder: Path) -> bool:
    try:
        return bool(weight_files(folder))
    except ModelFolderError:
        return False
