"""Becomes tessella.dropin's module of this name."""

import tessella.dropin

__tessella__ = True

tessella.dropin.install("flash_attn_3")
