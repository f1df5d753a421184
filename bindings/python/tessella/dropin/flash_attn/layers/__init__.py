"""flash_attn.layers: rotary embeddings."""
