"""flash_attn.layers.rotary."""

from ..._rotary import apply_rotary_emb

apply_rotary_emb_func = apply_rotary_emb

__all__ = ["apply_rotary_emb", "apply_rotary_emb_func"]
