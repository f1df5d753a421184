#!/usr/bin/env python3
"""Writes what is generated from the table of arguments and options, src/api/arguments.toml.

scripts/generate_arguments.py            writes the files that the table names
scripts/generate_arguments.py --check    exits with 1 and names the first that is not as the table says

Regions of files written by hand lie between lines `generated: NAME` and `end of generated`. C and C++ go through
clang-format 14, which .ci/format holds them against.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys

from arguments import c, cpp, python, table, torch

OF_LIBTORCH = ("append", "linear", "quantize")  # operations whose header of libtorch has regions


def formatted(path: str, text: str) -> str:
    """As .ci/format wants it."""
    tool = shutil.which("clang-format-14") or shutil.which("clang-format")
    if tool is None:
        raise SystemExit("generate_arguments.py: clang-format is not found, expected clang-format-14")
    command = [tool, "--style=file", f"--assume-filename={table.ROOT / path}"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def with_regions(path: str, regions: dict[str, str]) -> str:
    """The file with its generated regions made anew."""
    text = (table.ROOT / path).read_text()
    for name, body in regions.items():
        mark = re.compile(rf"(^[^\n]*\bgenerated: {name}\b[^\n]*\n).*?(^[^\n]*\bend of generated\b)", re.M | re.S)
        if len(mark.findall(text)) != 1:
            raise SystemExit(f"generate_arguments.py: {path} has {len(mark.findall(text))} regions {name}, expected 1")
        text = mark.sub(lambda match, body=body: match[1] + body + "\n" + match[2], text)
    return text


def files(read: table.Table) -> dict[str, str]:
    """What every file holds."""
    structs = {name: c.declaration(name, struct) for name, struct in read.items() if "layout" in struct}
    header, arguments = "include/tessella/tessella.h", "include/tessella/arguments.hpp"
    libtorch = "bindings/torch/tessella/torch.hpp"
    of_operations = {f"bindings/torch/tessella/torch/{name}.hpp": f"{name}_args" for name in OF_LIBTORCH}
    return {
        header: formatted(header, with_regions(header, structs)),
        arguments: formatted(arguments, cpp.header(read)),
        libtorch: formatted(libtorch, with_regions(libtorch, torch.regions(read, "forward_args"))),
        **{
            path: formatted(path, with_regions(path, torch.regions(read, struct)))
            for path, struct in of_operations.items()
        },
        "bindings/python/tessella/_options.py": python.module(read),
    }


def main() -> int:
    """Writes or checks the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    for name, text in files(table.read()).items():
        path = table.ROOT / name
        if path.is_file() and path.read_text() == text:
            continue
        if check:
            print(f"{name} is not as {table.PATH} says: run scripts/generate_arguments.py")
            return 1
        path.write_text(text)
    print("arguments: every file is as the table says")
    return 0


if __name__ == "__main__":
    sys.exit(main())
