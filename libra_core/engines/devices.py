"""Accelerators that this process can see."""

import torch


def visible_gpus() -> int:
    """0 also for a build of torch without CUDA."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0
