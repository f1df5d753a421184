"""The page of Python's names: directives for mkdocstrings, which reads the docstrings of the sources.

The names are those of `__all__`. Nothing is imported, so the library need not be built.
"""

from __future__ import annotations

import ast
import pathlib

MODULES = ("tessella", "tessella.ranges", "tessella.torch", "tessella.dropin")


def exported(source: pathlib.Path) -> list[str]:
    """`__all__` of a module, or what it defines without an underscore."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            names: list[str] = ast.literal_eval(node.value)
            return names
    kinds = (ast.FunctionDef, ast.ClassDef)
    return [node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]


def page(root: pathlib.Path) -> str:
    """A heading for each module, and a directive for each of its names."""
    lines = []
    for module in MODULES:
        path = root / "bindings/python" / module.replace(".", "/")
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        lines.append(f"## {module}\n")
        # The submodule ranges has a heading of its own.
        lines += [f"::: {module}.{name}\n" for name in exported(source) if f"{module}.{name}" not in MODULES]
    return "\n".join(lines)
