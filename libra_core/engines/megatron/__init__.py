"""The trainer: Megatron-Core on CUDA, and the same code on CPU through a small shim."""

import warnings

warnings.filterwarnings("ignore", message=".*(Apex|Transformer Engine).* not installed.*", category=UserWarning)
warnings.filterwarnings("ignore", message="full scope is deprecated.*", category=UserWarning)
