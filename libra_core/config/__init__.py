"""Typed, closed and frozen configuration. Loads without torch, ray, vllm, prefect or mlflow."""

from libra_core.config.loading import load_config, resolved_yaml
from libra_core.config.models import LibraConfig
from libra_core.config.plan import plan_of

__all__ = ["LibraConfig", "load_config", "plan_of", "resolved_yaml"]
