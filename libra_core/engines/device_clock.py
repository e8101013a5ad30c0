"""Seconds in which a device worked, not those in which work was handed to it.

CUDA calls return before their kernels have run: without waiting for the device their time falls to whoever reads a value next.
"""

from time import monotonic

import torch


def await_device(device: torch.device | str) -> None:
    """Return once everything that was handed to the device is done; at once on a CPU."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def device_time_s(device: torch.device | str) -> float:
    """`monotonic` after everything before it has been computed. One wait for the device, so not once a micro-batch."""
    await_device(device)
    return monotonic()
