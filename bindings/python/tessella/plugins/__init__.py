"""Plugins of programs that look for other attention: they are found by entry points, and import their program alone.

vllm: `vllm serve MODEL --attention-backend TESSELLA`.
sglang: `python -m sglang.launch_server --model-path MODEL --attention-backend tessella`.

torch's own is part of tessella.torch: `torch.nn.attention.activate_flash_attention_impl("TESSELLA")`.
"""
