"""Modules with the names and the arguments of other attention libraries, whose calls Tessella computes.

    import tessella.dropin
    tessella.dropin.install()              # before whatever asks for flash_attn is imported
    from flash_attn import flash_attn_func

`flash_attn` 2 and `flash_attn_interface` of FlashAttention-3 are here, on CPUs and GPUs. They never replace a real one.
The distributions flash_attn-2.8.3+tessella and flash_attn_3-3.0.0+tessella do the same for every process of an
environment (bindings/dropin).
"""

from ._install import install, uninstall
from ._report import DropinReport, report

__all__ = ["DropinReport", "install", "report", "uninstall"]
