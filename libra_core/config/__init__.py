"""Typed, closed and frozen configuration. Loads without torch, ray, vllm, prefect or mlflow."""

from libra_core.config.loading import load_config, resolved_yaml
from libra_core.config.models import LibraConfig

__all__ = ["LibraConfig", "load_config", "resolved_yaml"]
