"""Drop-in modules under the names that others import, and the distributions that others look for."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable
from typing import Any

from .._errors import InvalidArgument, Unsupported

# Distribution -> its version, and its modules: names -> ours, below this package.
_FLASH_2 = {
    "flash_attn": "flash_attn",
    "flash_attn.flash_attn_interface": "flash_attn.flash_attn_interface",
    "flash_attn.bert_padding": "flash_attn.bert_padding",
    "flash_attn.layers": "flash_attn.layers",
    "flash_attn.layers.rotary": "flash_attn.layers.rotary",
    "flash_attn_2_cuda": "flash_attn.flash_attn_2_cuda",
}
_FLASH_3 = {
    "flash_attn_interface": "flash_attn_3.flash_attn_interface",
    "flash_attn_3": "flash_attn_3",
    "flash_attn_3.flash_attn_interface": "flash_attn_3.flash_attn_interface",
    "flash_attn_3._C": "flash_attn_3._C",
}
DISTRIBUTIONS = {
    "flash_attn": ("2.8.3+tessella", _FLASH_2),
    "flash_attn_3": ("3.0.0+tessella", _FLASH_3),
}


class _Distribution(importlib.metadata.Distribution):
    """One that is installed in this process alone."""

    def __init__(self, name: str) -> None:
        self._name = name

    def read_text(self, filename: str) -> str | None:
        version, modules = DISTRIBUTIONS[self._name]
        if filename == "METADATA":
            return f"Metadata-Version: 2.1\nName: {self._name}\nVersion: {version}\n"
        if filename == "top_level.txt":
            return "\n".join(name for name in modules if "." not in name)
        return None

    def locate_file(self, path: Any) -> Any:
        raise FileNotFoundError(f"{self._name} has no file {path}: it is tessella.dropin")


_EVERY = importlib.metadata.DistributionFinder.Context()


class _Finder(importlib.metadata.DistributionFinder):
    """Finds what is installed here."""

    def __init__(self) -> None:
        self.installed: set[str] = set()

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        return None

    def find_distributions(self, context: Any = _EVERY) -> Iterable[importlib.metadata.Distribution]:
        wanted = context.name
        for name in sorted(self.installed):
            if wanted is None or wanted.lower().replace("-", "_") == name:
                yield _Distribution(name)


_finder = _Finder()


def install(*names: str) -> None:
    """Gives this process the drop-in modules.

    Args:
        names: "flash_attn" and "flash_attn_3"; none = both.

    Raises:
        Unsupported: a real one is installed or imported; nothing is changed then.
        InvalidArgument: another name.
    """
    chosen = names or tuple(DISTRIBUTIONS)
    for name in chosen:
        if name not in DISTRIBUTIONS:
            raise InvalidArgument(f"install: {name!r} is no drop-in, expected some of {', '.join(DISTRIBUTIONS)}")
        if name not in _finder.installed:
            _require_absent(name)
    for name in chosen:
        _finder.installed.add(name)
        for public, own in DISTRIBUTIONS[name][1].items():
            sys.modules[public] = importlib.import_module(f"{__package__}.{own}")
    if _finder not in sys.meta_path:
        sys.meta_path.append(_finder)


def uninstall() -> None:
    """Takes them away again; whoever has imported one keeps it."""
    for name in sorted(_finder.installed):
        for public in DISTRIBUTIONS[name][1]:
            sys.modules.pop(public, None)
    _finder.installed.clear()
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


def _require_absent(name: str) -> None:
    for distribution in (name, name.replace("_", "-")):
        try:
            version = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        if not version.endswith("+tessella"):
            raise Unsupported(f"install: {distribution} {version} is installed, expected none beside the drop-in")
    for public in DISTRIBUTIONS[name][1]:
        if "." in public:
            continue
        module = sys.modules.get(public)
        if module is not None:
            is_ours = getattr(module, "__name__", "").startswith(__package__) or hasattr(module, "__tessella__")
            where = "imported already"
        else:
            spec = importlib.util.find_spec(public)
            is_ours = spec is None or _is_of_a_drop_in(name)
            where = f"found at {spec.origin}" if spec is not None else ""
        if not is_ours:
            raise Unsupported(f"install: {public} is {where}, expected none beside the drop-in")


def _is_of_a_drop_in(name: str) -> bool:
    """Whether the distribution of that name is Tessella's own."""
    try:
        return importlib.metadata.version(name).endswith("+tessella")
    except importlib.metadata.PackageNotFoundError:
        return False
