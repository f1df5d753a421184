"""Entry points of plugins: each is a function, and to import it imports neither its program nor torch."""

import importlib
import pathlib
import subprocess
import sys

import pytest

GROUPS = {"vllm.general_plugins": "tessella.plugins.vllm", "sglang.srt.plugins": "tessella.plugins.sglang"}


def test_entry_points():
    tomllib = pytest.importorskip("tomllib")
    project = pathlib.Path(__file__).parents[3] / "pyproject.toml"
    if not project.is_file():
        pytest.skip("pyproject.toml is not beside the tests")
    groups = tomllib.loads(project.read_text())["project"]["entry-points"]
    assert groups == {group: {"tessella": f"{module}:register"} for group, module in GROUPS.items()}
    for module in GROUPS.values():
        assert callable(importlib.import_module(module).register)


def test_imports_are_late():
    program = f"""
import sys, tessella, tessella.plugins, {", ".join(GROUPS.values())}
print(*{{"torch", "vllm", "sglang"}} & set(sys.modules))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []
