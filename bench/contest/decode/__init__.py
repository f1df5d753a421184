"""Decoding: few queries a sequence over a long cache, beside other libraries and beside a kernel that only reads."""
