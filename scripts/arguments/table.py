"""The table of arguments and options, src/api/arguments.toml: its rows, and what is wrong with it."""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PATH = "src/api/arguments.toml"
OLD_HEADERS = "tests/packaging/old/tessella/tessella.h", "tests/packaging/released/*/tessella/tessella.h"
WIDTH = 120

Row = dict[str, Any]
Struct = dict[str, Any]
Table = dict[str, Struct]


class Kind(NamedTuple):
    """How a field of a kind is spelled in each language. "" where it is no field there."""

    c: str
    cpp: str = ""  # its type, and the default of a member
    default: str = "{}"
    fill: str = "{0}"  # what fills a field of C from a member of C++
    python: str = ""  # the annotation of a keyword
    torch: str = ""  # type and default in a schema


KINDS = {
    "tensor": Kind("const tessella_tensor*", "TensorView", "{}", "pointer({0})", "Any"),
    "tensors": Kind("const tessella_tensor*", "std::vector<TensorView>", "{}", "", "Sequence[Any]"),
    "int32": Kind("int32_t", "int", "0", "{0}", "int", "int={0}"),
    "int64": Kind("int64_t", "int64_t", "0", "{0}", "int", "SymInt={0}"),
    "uint64": Kind("uint64_t", "uint64_t", "0", "{0}", "int", "int={0}"),
    "real": Kind("float", "float", "0", "{0}", "float", "float={0}.0"),
    "real64": Kind("double"),
    "switch": Kind("int32_t", "bool", "false", "{0} ? 1 : 0", "bool", "bool=False"),
    "words": Kind("int32_t", "", "", "static_cast<int32_t>({0})", "", "int={0}"),
    "dtype": Kind(
        "tessella_dtype", "DType", "DType::none", "static_cast<tessella_dtype>({0})", "Any", "ScalarType?=None"
    ),
    "string": Kind("const char*", "std::string", "{}", "given({0})", "str | None", "str?=None"),
    "source": Kind("const char*", "std::string", "{}", "given({0})", "str | None", "str?=None"),
    "allocator": Kind("const tessella_allocator*", "const tessella_allocator*", "nullptr"),
    "cancel": Kind(
        "const int32_t*",
        "const std::atomic<int32_t>*",
        "nullptr",
        "reinterpret_cast<const int32_t*>({0})",
        "tessella.Cancel | None",
    ),
    "struct": Kind("const tessella_forward_args*"),
    "gradients": Kind("tessella_gradient", "tessella_gradient", "0"),
    # Keywords of Python alone.
    "mask": Kind(""),
    "kv_dtype": Kind(""),
    "v_transposed": Kind(""),
}

# Structs that are arguments of a function in C++, and what Python alone has.
WITHOUT_HELP = ("merge_args", "copy_pages_args", "keywords")

# What a row may say.
KEYS = {
    *("names", "kind", "default", "shape", "dtypes", "count", "help", "text", "python", "python_note", "python_type"),
    *("words", "part_of", "cpp", "cpp_type", "torch", "cached", "no"),
}
VALUES = {"part_of": {"mask"}, "cached": {"only", "not"}, "no": {"cli", "python", "torch", "cpp"}}


def rows(struct: Struct, without: str = "") -> list[Row]:
    """The rows of a struct that are not marked to be left out."""
    return [row for row in struct["fields"] if without not in row.get("no", ())]


def help_of(row: Row, name: str) -> str:
    """The line of one name."""
    said = row.get("help", "")
    return said if isinstance(said, str) else said[row["names"].index(name)]


def text_of(row: Row) -> str:
    """What is said of all names of a row, "" where each has a line of its own."""
    said = row.get("text", row.get("help", ""))
    return said if isinstance(said, str) else ""


def operand_of(row: Row) -> str:
    """Shape and dtypes of a tensor, as far as the row says them."""
    shape, dtypes = row.get("shape", ""), row.get("dtypes", "")
    is_short = re.fullmatch(r"\([^()]*\)", shape) is not None and " " not in dtypes
    return shape + (" " if is_short else ", ") + dtypes if shape and dtypes else shape + dtypes


def wrap(text: str, first: str, others: str) -> list[str]:
    """Lines of at most WIDTH columns; what is indented stays as it is."""
    lines: list[str] = []
    for paragraph in text.strip("\n").split("\n"):
        start = others if lines else first
        if not paragraph or paragraph.startswith(" "):
            lines.append((start + paragraph).rstrip())
            continue
        lines += textwrap.wrap(
            paragraph,
            WIDTH,
            initial_indent=start,
            subsequent_indent=others,
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
        )
    return lines


def literal(characters: str) -> str:
    """A string of C++, C or Python."""
    return '"' + characters.replace("\\", "\\\\").replace('"', '\\"') + '"'


def old_layouts(name: str) -> Iterator[list[str]]:
    """The fields that programs of each older header know, after struct_size."""
    for header in (path for pattern in OLD_HEADERS for path in ROOT.glob(pattern)):
        body = re.search(rf"typedef struct tessella_{name} \{{(.*?)\}}", header.read_text(), re.S)
        declared = re.sub(r"/\*.*?\*/", "", body[1], flags=re.S) if body else ""
        yield re.findall(r"(\w+);", declared)[1:]


def problem(table: Table) -> str:
    """What is wrong with the table, or ""."""
    for name, struct in table.items():
        for row in struct["fields"]:
            said = {
                key: {value} if isinstance(value, str) else set(value) for key, value in row.items() if key in VALUES
            }
            for key in row:
                if key not in KEYS or not said.get(key, set()) <= VALUES.get(key, set()):
                    return f"{name}: {row['names']} has {key} = {row[key]!r}"
            if row["kind"] not in KINDS:
                return f"{name}: {row['names']} has kind {row['kind']!r}, expected one of {', '.join(KINDS)}"
            if row["kind"] == "words" and not 2 <= len(row["words"]) <= 3:
                return f"{name}: {row['names']} has {len(row['words'])} words, expected 2 or 3"
            if "help" not in row and name not in WITHOUT_HELP and "cpp" not in row.get("no", ()):
                return f"{name}: {row['names']} has no help"
        if "layout" not in struct:
            continue
        names = [field for row in struct["fields"] for field in row["names"]]
        names += [row["count"] for row in struct["fields"] if "count" in row]
        for some, of_some, others, of_others in (
            (names, "fields", struct["layout"], "layout"),
            (struct["layout"], "layout", names, "fields"),
        ):
            for field in some:
                if some.count(field) != 1 or field not in others:
                    counts = f"{some.count(field)} times in {of_some} and {others.count(field)} times in {of_others}"
                    return f"{name}: {field} is {counts}, expected once"
        if any(struct["layout"][: len(old)] != old for old in old_layouts(name)):
            return f"{name}: layout is not that of programs that exist, expected new fields at its end"
    return ""


def read() -> Table:
    """The table. Raises SystemExit with what is wrong with it."""
    table = tomllib.loads((ROOT / PATH).read_text())
    if wrong := problem(table):
        raise SystemExit(f"{PATH}: {wrong}")
    return table
