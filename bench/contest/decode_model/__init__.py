"""A decoding step of a whole model: what bench/decode_model.py measures."""
