"""flash_attn_3, computed by Tessella; the functions are in flash_attn_3.flash_attn_interface."""

__version__ = "3.0.0+tessella"
__tessella__ = True
