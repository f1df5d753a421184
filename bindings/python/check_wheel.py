#!/usr/bin/env python3
"""Holds a wheel to what it promises, then installs it in a bare virtual environment and runs the examples there.

usage: check_wheel.py WHEEL EXAMPLE...
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import venv
import zipfile

# File names, each once; the two runtime libraries have hashes in theirs.
EXPECTED = [
    r"tessella/__init__\.py",
    r"tessella/py\.typed",
    r"tessella/libtessella\.so",
    r"tessella/libtessella_torch\.so",
    r"tessella/dropin/flash_attn/__init__\.py",
    r"tessella/plugins/vllm/backend\.py",
    r"tessella/plugins/sglang/backend\.py",
    r"tessella\.libs/libhwy-[0-9a-f]{8}\.so\.\d.*",
    r"tessella\.libs/libtbb-[0-9a-f]{8}\.so\.\d.*",
    r"tessella-.*\.dist-info/licenses/LICENSE",
    r"tessella-.*\.dist-info/licenses/NOTICE",
]
# Another oneTBB is in the process first, as torch or numba bring one.
BESIDE_ANOTHER_TBB = """
import ctypes
try:
    ctypes.CDLL("libtbb.so.12", mode=ctypes.RTLD_GLOBAL)
except OSError:
    pass
import numpy, tessella
q = numpy.ones((1, 700, 2, 16), numpy.float32)
assert numpy.allclose(tessella.attention(q, q, q), 1)
"""


def wrong(wheel):
    """What is not as it should be, a line each."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata, entry_points = (
            archive.read(next(name for name in names if name.endswith(f".dist-info/{file}"))).decode()
            for file in ("METADATA", "entry_points.txt")
        )
    if not re.search(r"-py3-none-manylinux_2_\d+_\w+\.whl$", wheel.name):
        yield f"the name is {wheel.name}, expected the tag py3-none-manylinux_2_..."
    for pattern in EXPECTED:
        num_found = sum(re.fullmatch(pattern, name) is not None for name in names)
        if num_found != 1:
            yield f"{num_found} files match {pattern}, expected one"
    for name in names:
        if name.endswith("/"):
            continue
        if not name.startswith(("tessella/", "tessella.libs/", "tessella-")) or "tests" in name:
            yield f"{name} is inside"
    if "Provides-Extra: cuda" not in metadata or "Requires-Dist: nvidia-cuda-nvrtc" not in metadata:
        yield "there is no extra [cuda] that brings nvidia-cuda-nvrtc"
    for group in ("vllm.general_plugins", "sglang.srt.plugins"):
        if f"[{group}]\ntessella" not in entry_points:
            yield f"there is no entry point in {group}"


def run_in_a_bare_environment(wheel, examples):
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = pathlib.Path(folder, "bin/python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True)
        for program in (["-c", BESIDE_ANOTHER_TBB], *([example] for example in examples)):
            subprocess.run([python, *program], check=True, cwd=folder, env={"PATH": "/usr/bin:/bin"})


def main():
    wheel, *examples = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
    problems = list(wrong(wheel))
    print(*problems, sep="\n", end="\n" if problems else "")
    run_in_a_bare_environment(wheel, examples)
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB, {len(problems)} wrong")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
