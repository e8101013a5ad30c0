"""The real engine and the real trainer; the only room that imports vllm and megatron."""
