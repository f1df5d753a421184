#!/usr/bin/env python3
"""Holds the tree to docs/design.md: which folder may include which, file names, file sizes.

usage: check.py [ROOT] [--self-test]     exit status 1 when an arrow or a name is wrong; long files are only reported
"""
import pathlib
import re
import subprocess
import sys
import tempfile

# Folder -> folders it may include from. A path stands for everything below it; the longest match of a file wins.
ARROWS = {
    "include/tessella": {"include/tessella"},
    "src/portable": {"src/portable"},
    "src/core": {"src/core", "src/portable"},
    "src/process": {"src/process", "src/core"},
    "src/cache": {"src/cache", "src/core"},
    "src/operations": {"src/operations", "src/core", "src/portable", "include/tessella"},
    "src/reference": {"src/reference", "src/process", "src/core", "src/portable"},
    "src/cpu": {"src/cpu", "src/cpu/amx", "src/cpu/vector", "src/process", "src/core", "src/portable"},
    "src/cpu/amx": {"src/cpu/amx", "src/cpu/vector", "src/cpu", "src/process", "src/core", "src/portable"},
    "src/cpu/vector": {"src/cpu/vector", "src/cpu", "src/process", "src/core", "src/portable"},
    "src/cuda/driver": {"src/cuda/driver", "src/process", "src/core", "src/portable"},
    "src/cuda/compile": {"src/cuda/compile", "src/cuda/driver", "src/process", "src/core", "src/portable"},
    "src/cuda/launch": {"src/cuda/launch", "src/cuda/compile", "src/cuda/driver", "src/process", "src/core", "src/portable"},
    # The table of kernels, and what stands over all of it.
    "src/cuda": {"src/cuda", "src/cuda/launch", "src/cuda/compile", "src/cuda/driver", "src/process", "src/core", "src/portable"},
    "src/cuda/device": {"src/cuda/device", "src/portable"},
    "src/cuda/device/ptx": {"src/cuda/device/ptx", "src/portable"},
    "src/cuda/device/tile": {"src/cuda/device/tile", "src/cuda/device/ptx", "src/portable"},
    "src/cuda/device/linear": {"src/cuda/device/linear", "src/cuda/device/tile", "src/cuda/device/ptx", "src/portable"},
    "src/cuda/device/score": {"src/cuda/device/score", "src/cuda/device/tile", "src/cuda/device/ptx", "src/portable"},
    "src/cuda/device/schedule": {"src/cuda/device/schedule", "src/cuda/device/score", "src/cuda/device/tile",
                                 "src/cuda/device/ptx", "src/portable"},
    "src/parallel": {"src/parallel", "src/core", "src/portable"},
    "src/api": {"src/api", "src/operations", "src/cache", "src/process", "src/core", "src/portable", "src/parallel",
                "include/tessella"},
    "apps": {"apps", "include/tessella"},
    "bench": {"bench", "apps", "include/tessella"},  # both are clients; a benchmark takes the GPU memory of the command line
    "bindings": {"bindings", "include/tessella"},
    "examples": {"examples", "include/tessella"},
}
# The tables of kernels, which api hands to choose(); and what oracle and thread count offer the API layer.
TABLES = re.compile(r"src/(reference|cpu)/(kernels|attention|check|cpu_features|ladder|parallel)\.hpp")
TABLE_USERS = ("src/api",)
# A backend of GPUs reaches the API layer as a core::Backend, for which one file asks.
BACKENDS = re.compile(r"src/cuda/backend\.hpp")
BACKEND_USERS = ("src/api/backends.cpp",)
# Headers of other projects stay behind these walls: folders, or single files.
FOREIGN = {
    "hwy/": ("src/cpu/vector",),
    "oneapi/": ("src/cpu",),
    "tbb/": ("src/cpu",),
    "cuda": ("src/cuda/driver",),
    "torch/": ("bindings",),
    "ATen/": ("bindings",),
    # These cost seconds in every source that includes them.
    "CLI/": ("apps/tessella/options/command_line.cpp",),
    "nlohmann/": ("apps/tessella/files/json.cpp", "apps/tessella/files/json_reader.cpp", "examples/decoder/checkpoint.cpp"),
}
# Each family of GPU kernels is a room, src/cuda/kernels/NAME: it may include from itself, from what is below all rooms,
# and from the rooms here, on which it is built.
ROOMS = "src/cuda/kernels"
BELOW_ROOMS = {folder for folder in ARROWS if folder.startswith("src/cuda/")} | {"src/process", "src/core", "src/portable"}
BUILT_ON = {
    "backward_sm80": {"classify"},
    "backward_sm90": {"backward_sm80"},
    "forward_sm80": {"classify"},
    "forward_sm90": {"classify"},
    "forward_f8_sm90": {"classify", "forward_sm90"},
    "forward_widened": {"forward_f8_sm90", "forward_sm80", "forward_sm90"},
    "ladder": {"backward_sm80", "forward_sm80"},
}
# Each operation is a room, src/operations/NAME: it may include from itself, from src/operations, which all rooms share,
# and from what is below that. The API layer may include all of it. Backends and the reference may include what describes
# a call, and not what reads the user's structs.
OPERATIONS = "src/operations"
DESCRIBES = re.compile(r"src/operations/\w+/(shape|arguments|sequence|element_masks|amax|new_rows|quantized_rows|quantize_rows|page_runs)\.hpp")
DESCRIBED_TO = ("src/reference", "src/cpu", "src/cuda")
# The device compiler gets these files, the source of the user's modifications, and nothing else. Of a room's device code
# the host includes params.cuh alone.
DEVICE = re.compile(r"src/portable/.*\.hpp|src/cuda/.*\.cuh")
DEVICE_FOREIGN = {"user.hpp"}
HOST_MAY = re.compile(r".*/params\.cuh")
FORBIDDEN_NAMES = re.compile(r"(^|[_-])(utils?|helpers?|commons?|misc|v2)([_.-]|$)")
LONG = 500
SOURCES = {".h", ".hpp", ".c", ".cpp", ".cc", ".cu", ".cuh", ".inl"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)


def tracked(root):
    """Files git knows or would add; without git, every file below root."""
    try:
        out = subprocess.run(["git", "-C", str(root), "ls-files", "-co", "--exclude-standard"], check=True,
                             capture_output=True, text=True).stdout
        names = out.splitlines()
    except (OSError, subprocess.CalledProcessError):
        names = [str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()]
    return sorted(name for name in names if (root / name).is_file())


def folder_of(name):
    if name.startswith(ROOMS + "/"):
        return "/".join(name.split("/")[:4])
    if name.startswith(OPERATIONS + "/") and name.count("/") > 2:
        return "/".join(name.split("/")[:3])
    matches = [folder for folder in ARROWS if name.startswith(folder + "/")]
    return max(matches, key=len) if matches else None


def may_include(name, folder, target):
    """Whether a file of a folder may include another file of the tree."""
    to = folder_of(target)
    if target.endswith(".cuh") and name.startswith("src/") and not DEVICE.fullmatch(name) and not HOST_MAY.fullmatch(target):
        return False
    if DEVICE.fullmatch(name) and not DEVICE.fullmatch(target):
        return False
    if folder.startswith(OPERATIONS + "/"):
        return to == folder or to in ARROWS[OPERATIONS]
    if to is not None and to.startswith(OPERATIONS + "/"):
        return folder == "src/api" or (folder.startswith(DESCRIBED_TO) and DESCRIBES.fullmatch(target) is not None)
    if folder.startswith(ROOMS + "/"):
        built_on = {f"{ROOMS}/{room}" for room in BUILT_ON.get(folder.rsplit("/", 1)[-1], ())}
        return to == folder or to in BELOW_ROOMS | built_on
    if folder == "src/cuda" and to is not None and to.startswith(ROOMS + "/"):
        return True
    if name in BACKEND_USERS and BACKENDS.fullmatch(target):
        return True
    return to in ARROWS[folder] or (folder in TABLE_USERS and TABLES.fullmatch(target) is not None)


def resolve(root, source, spelled):
    """The file of this tree that an include means, or None when it is somebody else's header."""
    for base in (pathlib.PurePosixPath(source).parent, "src", "include", "tests", "apps/tessella", "."):
        path = (root / base / spelled).resolve()
        if path.is_file() and path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return None


def check(root):
    root = root.resolve()
    errors, notes, num_includes = [], [], 0
    for name in tracked(root):
        stem = pathlib.PurePosixPath(name).name
        if FORBIDDEN_NAMES.search(stem) or any(FORBIDDEN_NAMES.search(p) for p in pathlib.PurePosixPath(name).parts[:-1]):
            errors.append(f"{name}: the name says nothing about what is inside")
        if pathlib.PurePosixPath(name).suffix not in SOURCES:
            continue
        source = (root / name).read_text(encoding="utf-8", errors="replace")
        lines = source.count("\n")
        if lines > LONG:
            notes.append(f"{name}: {lines} lines")
        folder = folder_of(name)
        if folder is None:
            if name.startswith("src/"):
                errors.append(f"{name}: lies in no folder of the design")
            continue
        for match in INCLUDE.finditer(source):
            spelled = match.group(2)
            num_includes += 1
            line = source.count("\n", 0, match.start(2)) + 1
            target = resolve(root, name, spelled)
            if target is None:
                for prefix, homes in FOREIGN.items():
                    if spelled.startswith(prefix) and folder not in homes and name not in homes:
                        errors.append(f"{name}:{line}: <{spelled}> belongs behind {', '.join(homes)}")
                if DEVICE.fullmatch(name) and folder != "src/portable" and spelled not in DEVICE_FOREIGN:
                    errors.append(f"{name}:{line}: the device compiler finds no <{spelled}>")
                continue
            if not may_include(name, folder, target):
                errors.append(f"{name}:{line}: {folder} must not include {target}")
    return errors, notes, num_includes


def self_test():
    """The check must fail where it should: one wrong tree with every kind of mistake."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        files = {
            "include/tessella/tessella.h": "",
            "src/core/plan.hpp": '#include "cpu/kernels.hpp"\n',
            "src/cpu/kernels.hpp": '#include "core/plan.hpp"\n#include <tbb/task_arena.h>\n',
            "src/cpu/amx/rows.hpp": '#include "cpu/query_tile.hpp"\n#include <hwy/highway.h>\n',
            "src/cpu/vector/rows.hpp": '#include "cpu/amx/rows.hpp"\n#include <hwy/highway.h>\n',
            "src/cpu/query_tile.hpp": "\n" * 600,
            "src/api/backends.cpp": '#include "cuda/backend.hpp"\n#include "cuda/kernels.hpp"\n',
            "src/api/entry.cpp": '#include "cpu/kernels.hpp"\n#include "cpu/query_tile.hpp"\n#include "cuda/backend.hpp"\n',
            "src/cuda/backend.hpp": "",
            "src/cuda/kernels.hpp": "",
            "src/reference/loops.cpp": "#include <hwy/highway.h>\n",
            "src/operations/merge/arguments.hpp": '#include "core/plan.hpp"\n#include "operations/append/arguments.hpp"\n',
            "src/operations/merge/merge.hpp": '#include "operations/merge/arguments.hpp"\n#include "operations/reader.hpp"\n',
            "src/operations/append/arguments.hpp": "",
            "src/operations/reader.hpp": '#include "operations/merge/merge.hpp"\n',
            "src/reference/merge.cpp": '#include "operations/merge/arguments.hpp"\n#include "operations/merge/merge.hpp"\n',
            "src/core/choose.cpp": '#include "operations/merge/arguments.hpp"\n',
            "src/core/string_utils.hpp": "",
            "apps/tessella/main.cpp": '#include <tessella/tessella.h>\n#include "core/plan.hpp"\n#include <CLI/CLI.hpp>\n',
            "apps/tessella/options/command_line.cpp": "#include <CLI/App.hpp>\n",
            "src/cuda/device/tile/tile.cuh": '#include <cstdint>\n#include "user.hpp"\n#include "core/plan.hpp"\n',
            "src/cuda/device/score/score.cuh": '#include "cuda/device/tile/tile.cuh"\n',
            "src/cuda/device/tile/keys.cuh": '#include "cuda/device/score/score.cuh"\n',
            "src/cuda/kernels/decode/params.cuh": "",
            "src/cuda/kernels/decode/decode.cuh": '#include "cuda/device/score/score.cuh"\n',
            "src/cuda/kernels/decode/recipe.cpp": '#include "cuda/kernels/decode/params.cuh"\n#include "cuda/kernels/decode/decode.cuh"\n',
            "src/cuda/kernels/merge/merge.cuh": '#include "cuda/kernels/decode/decode.cuh"\n',
            "src/cuda/launch/run.cpp": '#include "cuda/kernels/decode/params.cuh"\n',
            "src/stray.cpp": "",
        }
        for name, source in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(source)
        errors, notes, _ = check(root)
    expected = ["apps/tessella/main.cpp:2: apps must not include src/core/plan.hpp",
                "apps/tessella/main.cpp:3: <CLI/CLI.hpp> belongs behind apps/tessella/options/command_line.cpp",
                "src/api/backends.cpp:2: src/api must not include src/cuda/kernels.hpp",
                "src/api/entry.cpp:2: src/api must not include src/cpu/query_tile.hpp",
                "src/api/entry.cpp:3: src/api must not include src/cuda/backend.hpp",
                "src/core/choose.cpp:1: src/core must not include src/operations/merge/arguments.hpp",
                "src/core/plan.hpp:1: src/core must not include src/cpu/kernels.hpp",
                "src/core/string_utils.hpp: the name says nothing about what is inside",
                "src/cpu/amx/rows.hpp:2: <hwy/highway.h> belongs behind src/cpu/vector",
                "src/cpu/vector/rows.hpp:1: src/cpu/vector must not include src/cpu/amx/rows.hpp",
                "src/cuda/device/tile/keys.cuh:1: src/cuda/device/tile must not include src/cuda/device/score/score.cuh",
                "src/cuda/device/tile/tile.cuh:1: the device compiler finds no <cstdint>",
                "src/cuda/device/tile/tile.cuh:3: src/cuda/device/tile must not include src/core/plan.hpp",
                "src/cuda/kernels/decode/recipe.cpp:2: src/cuda/kernels/decode must not include src/cuda/kernels/decode/decode.cuh",
                "src/cuda/kernels/merge/merge.cuh:1: src/cuda/kernels/merge must not include src/cuda/kernels/decode/decode.cuh",
                "src/cuda/launch/run.cpp:1: src/cuda/launch must not include src/cuda/kernels/decode/params.cuh",
                "src/operations/merge/arguments.hpp:2: src/operations/merge must not include src/operations/append/arguments.hpp",
                "src/operations/reader.hpp:1: src/operations must not include src/operations/merge/merge.hpp",
                "src/reference/loops.cpp:1: <hwy/highway.h> belongs behind src/cpu/vector",
                "src/reference/merge.cpp:2: src/reference must not include src/operations/merge/merge.hpp",
                "src/stray.cpp: lies in no folder of the design"]
    if errors != expected or notes != ["src/cpu/query_tile.hpp: 600 lines"]:
        print("arrows: the check misses what it must find:", *errors, *notes, sep="\n  ")
        return 1
    return 0


def main(argv):
    if "--self-test" in argv:
        return self_test()
    paths = [a for a in argv if not a.startswith("-")]
    root = pathlib.Path(paths[0]) if paths else pathlib.Path(__file__).parent.parent.parent
    errors, notes, num_includes = check(root)
    for note in notes:
        print("note:", note)
    for error in errors:
        print("error:", error)
    print(f"arrows: {num_includes} includes, {len(errors)} wrong")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
