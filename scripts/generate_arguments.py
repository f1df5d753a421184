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
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TABLE = "src/api/arguments.toml"
OLD_HEADER = "tests/packaging/old/tessella/tessella.h"  # of programs that exist
WIDTH = 120

Row = dict[str, Any]

C_TYPES = {
    "tensor": "const tessella_tensor*",
    "tensors": "const tessella_tensor*",
    "int32": "int32_t",
    "int64": "int64_t",
    "uint64": "uint64_t",
    "real": "float",
    "switch": "int32_t",
    "words": "int32_t",
    "dtype": "tessella_dtype",
    "string": "const char*",
    "source": "const char*",
    "allocator": "const tessella_allocator*",
    "cancel": "const int32_t*",
    "struct": "const tessella_forward_args*",
    "gradients": "tessella_gradient",
}
# Type and default.
CPP_TYPES = {
    "tensor": ("TensorView", "{}"),
    "tensors": ("std::vector<TensorView>", "{}"),
    "int32": ("int", "0"),
    "int64": ("int64_t", "0"),
    "uint64": ("uint64_t", "0"),
    "real": ("float", "0"),
    "switch": ("bool", "false"),
    "dtype": ("DType", "DType::none"),
    "string": ("std::string", "{}"),
    "source": ("std::string", "{}"),
    "allocator": ("const tessella_allocator*", "nullptr"),
    "cancel": ("const std::atomic<int32_t>*", "nullptr"),
    "gradients": ("tessella_gradient", "0"),
}
# What fills a field of a C struct from a member of a C++ one.
FILLS = {
    "tensor": "pointer({0})",
    "switch": "{0} ? 1 : 0",
    "dtype": "static_cast<tessella_dtype>({0})",
    "words": "static_cast<int32_t>({0})",
    "string": "given({0})",
    "source": "given({0})",
    "cancel": "reinterpret_cast<const int32_t*>({0})",
}
CPP_STRUCTS = {
    "forward_args": ("ForwardArgs", "Every pointer of a call; views that are not set are absent."),
    "attention_options": (
        "AttentionOptions",
        "What is computed. Views in `mask` must stay alive as long as the options are used.",
    ),
    "backward_args": (
        "Gradients",
        "What comes in, d_out and d_lse, and what is written; views that are not set are absent and not computed.",
    ),
    "append_args": ("AppendArgs", "New rows of keys and values, and the cache that they go into."),
    "append_options": ("AppendOptions", "How rows are rotated and stored."),
    "merge_options": ("MergeOptions", "How states are merged."),
    "copy_pages_options": ("CopyPagesOptions", "What a copy may use."),
}
PYTHON_TYPES = {
    "tensor": "Any",
    "tensors": "Sequence[Any]",
    "int32": "int",
    "int64": "int",
    "uint64": "int",
    "real": "float",
    "switch": "bool",
    "dtype": "Any",
    "string": "str | None",
    "source": "str | None",
    "cancel": "tessella.Cancel | None",
}
PYTHON_DTYPES = {
    "f64": "float64",
    "f32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "i64": "int64",
    "i32": "int32",
    "i8": "int8",
    "i4": "int4",
}


# Arguments that Python has as parts of a mask.
PYTHON_MASKS = {"dense_mask": "dense", "document_ids_kv": "document", "prefix_lengths": "prefix"}

# What a row may say.
KEYS = {
    *("names", "kind", "default", "shape", "dtypes", "count", "help", "text", "python", "python_note", "python_type"),
    *("words", "part_of", "cpp", "cpp_type", "torch", "cached", "no"),
}
VALUES = {"part_of": {"mask"}, "cached": {"only", "not"}, "no": {"cli", "python", "torch", "cpp"}}
# torch takes schemas of at most 64 arguments; the operators have up to five of their own.
MOST_ARGUMENTS = 64 - 5


def rows(struct: dict[str, Any], without: str = "") -> list[Row]:
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


# --- tessella.h


def c_fields(struct: dict[str, Any]) -> Iterator[tuple[str, str, Row]]:
    """Type, name and row of each field, in their order."""
    of_name = {name: row for row in struct["fields"] for name in row["names"]}
    counts = {row["count"] for row in struct["fields"] if "count" in row}
    for name in struct["layout"]:
        if name in counts:
            yield "int32_t", name, {"names": [name], "kind": "int32"}
        else:
            yield C_TYPES[of_name[name]["kind"]], name, of_name[name]


def c_comment(name: str, struct: dict[str, Any]) -> list[str]:
    """What stands before the struct."""
    lines = wrap(struct["summary"], "/* ", " * ")
    if name.endswith("_args"):
        for row in struct["fields"]:
            body = "   ".join(part for part in (operand_of(row), text_of(row)) if part)
            head = ", ".join(row["names"])
            lines += [" *"] if row is struct["fields"][0] else []
            lines += wrap(body, f" *   {head:<14} " if len(head) < 15 else f" *   {head}   ", " *" + 18 * " ")
        if "notes" in struct:
            lines += [" *", *wrap(struct["notes"], " * ", " * ")]
    lines[-1] += " */"
    return lines


def c_struct(name: str, struct: dict[str, Any]) -> str:
    """The struct with its comment and its _INIT macro."""
    lines = [*c_comment(name, struct), f"typedef struct tessella_{name} {{", "size_t struct_size;"]
    said: Row | None = None
    for spelled, field, row in c_fields(struct):
        comment = row["text"] if "text" in row else help_of(row, field)
        if name.endswith("_options") and comment and (row is not said or not text_of(row)):
            lines += wrap(comment + " */", "  /* ", "     ")
        said = row
        lines.append(f"  {spelled} {field};")
    lines += [f"}} tessella_{name};", ""]
    defaults = [str(row.get("default", 0)) for _, _, row in c_fields(struct)]
    values = ", ".join((f"sizeof(tessella_{name})", *defaults))
    lines += [f"#define TESSELLA_{name.upper()}_INIT \\", f"  {{ {values} }}"]
    return "\n".join(lines)


# --- the schemas of torch's operators


TORCH_TYPES = {
    "int32": "int={0}",
    "int64": "SymInt={0}",
    "uint64": "int={0}",
    "real": "float={0}.0",
    "switch": "bool=False",
    "words": "int={0}",
    "dtype": "ScalarType?=None",
    "string": "str?=None",
    "source": "str?=None",
}


def torch_schemas(table: dict[str, Any]) -> dict[str, str]:
    """Operator of torch -> the arguments of its schema that attention has, from q on.

    A seed and an offset may be numbers and tensors; Inductor has an argument "kernel" of its own beside an operator's.
    amax, which is written, is the operator's that writes.
    """

    def arguments(left_out: str) -> str:
        tensors, options = [], []
        for row in rows(table["forward_args"], "torch"):
            if row.get("cached") == left_out or row["kind"] != "tensor" or row["names"] == ["amax"]:
                continue
            tensors += [f"{name}_tensor" if name in ("seed", "offset") else name for name in row["names"]]
        for row in rows(table["attention_options"], "torch"):
            if row.get("cached") == left_out:
                continue
            default = row.get("default", 0)
            spelled = "float?=None" if default == "NAN" else TORCH_TYPES[row["kind"]].format(default)
            kind, default = row.get("torch", spelled).split("=")
            options += [f"{kind} {'kernel_name' if name == 'kernel' else name}={default}" for name in row["names"]]
        named = [f"Tensor? {name}=None" for name in tensors]
        first = ("Tensor q, Tensor k, Tensor v, *", "str layout='bshd'")
        return ", ".join((*first, *named, "Tensor[]? mod_args=None", *options))

    return {"attention": arguments("only"), "attention_cached": arguments("not") + ", str? kv_dtype=None"}


# --- tessella/arguments.hpp


def cpp_member(row: Row, name: str) -> str:
    """The member of a C++ struct that a field is filled from."""
    return str(row.get("cpp", name))


def cpp_comment(row: Row, name: str) -> list[str]:
    """The line or two above a member."""
    what = operand_of(row)
    said = row["help"] if isinstance(row["help"], str) else help_of(row, name)
    is_said = "shape" in row and row["kind"] == "tensor" and said.startswith(row["shape"])
    return wrap(": ".join(part for part in ("" if is_said else what, said) if part), "  // ", "  // ")


def cpp_struct(name: str, struct: dict[str, Any]) -> list[str]:
    """A struct whose members have the names and the meaning of C's."""
    title, comment = CPP_STRUCTS[name]
    lines = [*wrap(comment, "// ", "// "), f"struct {title} {{"]
    if name == "attention_options":
        lines.append("  Mask mask = {};")
    for row in rows(struct, "cpp"):
        if row.get("part_of") == "mask" or ("cpp" in row and "cpp_type" not in row):
            continue
        spelled, default = CPP_TYPES.get(row["kind"], ("", "{}"))
        spelled = row.get("cpp_type", spelled)
        if row["kind"] == "words":
            default = f"{spelled}::{row['words'][0]}"
        elif row.get("default") == "NAN":
            spelled, default = "std::optional<float>", "{}"
        elif "cpp_type" in row:
            default = "{}"
        lines += cpp_comment(row, row["names"][0])
        for field in row["names"]:
            if isinstance(row["help"], list) and field != row["names"][0]:
                lines += cpp_comment({**row, "shape": "", "dtypes": ""}, field)
            lines.append(f"  {spelled} {field} = {default};")
    return [*lines, "};", ""]


def cpp_fill(name: str, struct: dict[str, Any]) -> list[str]:
    """The function that fills C's struct. What it points to lives as long as the C++ one."""
    title = CPP_STRUCTS[name][0]
    lines = [f"inline void fill(tessella_{name}& to, const {title}& from) {{"]
    lines += ["  from.mask.fill(to);"] if name == "attention_options" else []
    for row in rows(struct, "cpp"):
        if row.get("part_of") == "mask" or row["kind"] == "tensors":
            continue
        for field in row["names"]:
            member = f"from.{cpp_member(row, field)}"
            value = (
                f"{member}.value_or(NAN)"
                if row.get("default") == "NAN"
                else FILLS.get(row["kind"], "{0}").format(member)
            )
            lines.append(f"  to.{field} = {value};")
    return [*lines, "}", ""]


def cpp_enum(row: Row) -> list[str]:
    """The words of an option."""
    words = [word.replace("-", "_") for word in row["words"]]
    return [f"enum class {row['cpp_type']} : int32_t {{ {words[0]} = 0, {', '.join(words[1:])} }};"]


def literal(text: str) -> str:
    """A string of C++."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def dtype_of(row: Row) -> str:
    """The dtype of a tensor that has only one."""
    return (
        f"TESSELLA_{row['dtypes'].upper()}" if row.get("dtypes") in ("f32", "i32", "bool") else "TESSELLA_DTYPE_DEFAULT"
    )


def cpp_tables(table: dict[str, Any]) -> list[str]:
    """What other languages and command lines are made from."""
    lines = [
        "// The tensors of a forward call, and what a command line says of them. dtype: the only one, or DEFAULT.",
        "struct TensorField {",
        "  const char* name;",
        "  const tessella_tensor* tessella_forward_args::*member;",
        "  tessella_dtype dtype;",
        "  const char* help;",
        "  bool is_option;  // of a command line, under its own name",
        "};",
        "inline constexpr TensorField kTensorFields[] = {",
    ]
    for row in rows(table["forward_args"], "cpp"):
        if row["kind"] != "tensor":
            continue
        is_option = "false" if "cli" in row.get("no", ()) else "true"
        for name in row["names"]:
            member, said = f"&tessella_forward_args::{name}", literal(help_of(row, name))
            lines.append(f'  {{"{name}", {member}, {dtype_of(row)}, {said}, {is_option}}},')
    lines += ["};", "", "// The tensors of a backward call beside those of its forward."]
    lines.append("inline constexpr const tessella_tensor* tessella_backward_args::*kGradientFields[] = {")
    for row in rows(table["backward_args"]):
        lines += [f"  &tessella_backward_args::{name}," for name in row["names"] if row["kind"] == "tensor"]
    lines += [
        "};",
        "",
        "// Options by kind: plain numbers and strings are members of their type.",
        "struct SwitchField {",
        "  int32_t tessella_attention_options::*member;",
        "};",
        "struct WordsField {",
        "  int32_t tessella_attention_options::*member;",
        "  const char* words[3];  // of 0, 1 and 2",
        "};",
        "struct DtypeField {",
        "  tessella_dtype tessella_attention_options::*member;",
        "};",
        "// f(name, field, help) for every option that a command line has under its own name.",
        "template <typename F>",
        "void option_fields(F&& f) {",
        "  using O = tessella_attention_options;",
    ]
    for row in rows(table["attention_options"], "cli"):
        for name in row["names"]:
            member = f"&O::{name}"
            words = ", ".join(literal(word) for word in row.get("words", ()))
            field = {
                "switch": f"SwitchField{{{member}}}",
                "words": f"WordsField{{{member}, {{{words}}}}}",
                "dtype": f"DtypeField{{{member}}}",
            }.get(row["kind"], member)
            lines.append(f'  f("{name}", {field}, {literal(help_of(row, name))});')
    lines += [
        "}",
        "",
        "// Arguments of torch's operators tessella::attention and tessella::attention_cached, in torch's words.",
    ]
    for name, schema in torch_schemas(table).items():
        pieces = textwrap.wrap(schema, 108, drop_whitespace=False, break_on_hyphens=False)
        lines.append(f"inline constexpr const char* k{name.title().replace('_', '')}Schema =")
        lines += [f"    {literal(piece)}" for piece in pieces]
        lines[-1] += ";"
    return [*lines, ""]


ARGUMENTS_HPP = f"""\
// Arguments and options of every operation, as C++ users write them. Generated by scripts/generate_arguments.py from
// {TABLE}. Shapes, dtypes and meanings in full: tessella.h.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <tessella/mask.hpp>
#include <tessella/tensor.hpp>

namespace tessella {{

// C++ source that modifies scores; see tessella.h.
struct ScoreMod {{
  std::string value = {{}};  // body of float score_mod(float score, int b, int h, int q, int k, float q_minus_k,
                           // const Arrays& arrays); "" = absent
  std::string gradient = {{}};
}};

"""


def arguments_hpp(table: dict[str, Any]) -> str:
    """The whole file."""
    lines: list[str] = []
    for row in table["attention_options"]["fields"]:
        lines += cpp_enum(row) if row["kind"] == "words" else []
    lines.append("")
    for name in CPP_STRUCTS:
        lines += cpp_struct(name, table[name])
    lines += ["namespace detail {", ""]
    lines.append(
        "static_assert(sizeof(std::atomic<int32_t>) == sizeof(int32_t) && std::atomic<int32_t>::is_always_lock_free);"
    )
    lines += ["", "inline const tessella_tensor* pointer(const TensorView& view) {"]
    lines += ["  return view.is_present() ? &view.c_tensor() : nullptr;", "}"]
    lines.append(
        "inline const char* given(const std::string& value) { return value.empty() ? nullptr : value.c_str(); }"
    )
    lines += ["", "// Fill structs of C, which point into those of C++; lists of tensors are the caller's to fill."]
    for name in CPP_STRUCTS:
        lines += cpp_fill(name, table[name])
    lines += cpp_tables(table)
    lines += ["}  // namespace detail", "}  // namespace tessella"]
    return ARGUMENTS_HPP + "\n".join(lines) + "\n"


# --- tessella/torch.hpp


# Arguments of a call by themselves.
TORCH_OPERANDS = {"forward_args": ("q", "k"), "append_args": ("k_new", "k", "seqlens_kv")}


def torch_regions(table: dict[str, Any], struct: str) -> dict[str, str]:
    """The tensors of a call beside its operands and those of a mask: the members, and what views them."""
    of_struct = [
        row
        for row in rows(table[struct], "cpp")
        if row["kind"] == "tensor" and row.get("part_of") != "mask" and row["names"][0] not in TORCH_OPERANDS[struct]
    ]
    members = ["  at::Tensor " + ", ".join(f"{name} = {{}}" for name in row["names"]) + ";" for row in of_struct]
    names = [name for row in of_struct for name in row["names"]]
    views = [f'  args.{name} = view(tensors.{name}, "{name}");' for name in names]
    return {"tensors": "\n".join(members), "views": "\n".join(views)}


# --- _options.py


def in_python(text: str) -> str:
    """The text with Python's names of dtypes and its signs."""
    text = re.sub(r"\b(" + "|".join(PYTHON_DTYPES) + r")\b", lambda match: PYTHON_DTYPES[match[1]], text)
    text = text.replace("page_table[b, j / page_size]", "page_table[b, j // page_size]").replace("NULL", "None")
    return re.sub(r"\b(" + "|".join(PYTHON_MASKS) + r")\b", lambda match: PYTHON_MASKS[match[1]], text)


def python_doc(row: Row) -> str:
    """What Python says of a row."""
    if "python" in row:
        return str(row["python"]).strip("\n")
    said = text_of(row) or "; ".join(row["help"])
    said = in_python("; ".join(part for part in (operand_of(row), said) if part)).rstrip(".") + "."
    return " ".join((said, row["python_note"])) if "python_note" in row else said


def python_type(row: Row) -> str:
    """The annotation of a keyword."""
    if "python_type" in row:
        return str(row["python_type"])
    if row["kind"] == "words":
        return "Literal[" + ", ".join(f'"{word}"' for word in row["words"]) + "]"
    return "float | None" if row.get("default") == "NAN" else PYTHON_TYPES[row["kind"]]


OPTIONS_PY = f'''\
"""The fields of the C structs, and the options of a call under the names that C, C++ and the command line give them.

Generated by scripts/generate_arguments.py from {TABLE}.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

import tessella  # whose names annotations have; this module is read before they are there


class Options(TypedDict, total=False):
    """Keywords of `attention`, `plan`, `Plan.run`, `explain`, `refusals` and `check`; None means absent.

    Arrays lie on the device of q.

'''


def options_py(table: dict[str, Any]) -> str:
    """The whole file."""
    keywords: dict[str, Row] = {}
    documented: list[Row] = []
    of = [table["keywords"]["fields"][0], *rows(table["attention_options"], "python")]
    of += [*rows(table["forward_args"], "python"), *table["keywords"]["fields"][1:]]
    both = {name for row in table["forward_args"]["fields"] for name in row["names"]}
    for row in of:
        # Of an option that is a tensor too, the tensor's row speaks.
        if row.get("part_of") == "mask" or (row["kind"] == "uint64" and set(row["names"]) <= both):
            continue
        documented.append(row)
        keywords.update((name, row) for name in row["names"])
    lines: list[str] = []
    for row in documented:
        lines += wrap(f"{', '.join(row['names'])}: {python_doc(row)}", "    ", "        ")
    lines += ['    """', ""]
    lines += [f"    {name}: {python_type(row)}" for name, row in keywords.items()]
    lines += ["", "", "# Keyword -> what its value is.", "KINDS = {"]
    lines += [f'    "{name}": "{row["kind"]}",' for name, row in keywords.items()]
    lines += ["}", "", "# Options of words -> their words, by their numbers in C.", "WORDS = {"]
    for name, row in keywords.items():
        if row["kind"] == "words":
            lines.append(f'    "{name}": ({", ".join(chr(34) + word + chr(34) for word in row["words"])}),')
    lines += ["}", "", "# Struct of C -> its fields after struct_size, in order, and what they are.", "STRUCTS = {"]
    for name, struct in table.items():
        if "layout" not in struct:
            continue
        lines.append(f'    "{name}": (')
        lines += [f'        ("{field}", "{row["kind"]}"),' for _, field, row in c_fields(struct)]
        lines.append("    ),")
    lines += [
        "}",
        "",
        "# Operators tessella::NAME of torch -> the arguments of their schemas, from q on.",
        "SCHEMAS = {",
    ]
    for name, schema in torch_schemas(table).items():
        pieces = textwrap.wrap(schema, 108, drop_whitespace=False, break_on_hyphens=False)
        lines += [f'    "{name}": (', *(f"        {literal(piece)}" for piece in pieces), "    ),"]
    return OPTIONS_PY + "\n".join([*lines, "}"]) + "\n"


# --- files


def formatted(path: str, text: str) -> str:
    """As .ci/format wants it."""
    tool = shutil.which("clang-format-14") or shutil.which("clang-format")
    if tool is None:
        raise SystemExit("generate_arguments.py: clang-format is not found, expected clang-format-14")
    command = [tool, "--style=file", f"--assume-filename={ROOT / path}"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def with_regions(path: str, regions: dict[str, str]) -> str:
    """The file with its generated regions made anew."""
    text = (ROOT / path).read_text()
    for name, body in regions.items():
        mark = re.compile(rf"(^[^\n]*\bgenerated: {name}\b[^\n]*\n).*?(^[^\n]*\bend of generated\b)", re.M | re.S)
        if len(mark.findall(text)) != 1:
            raise SystemExit(f"generate_arguments.py: {path} has {len(mark.findall(text))} regions {name}, expected 1")
        text = mark.sub(lambda match, body=body: match[1] + body + "\n" + match[2], text)
    return text


def files(table: dict[str, Any]) -> dict[str, str]:
    """What every file holds."""
    structs = {name: c_struct(name, struct) for name, struct in table.items() if "layout" in struct}
    header, arguments = "include/tessella/tessella.h", "include/tessella/arguments.hpp"
    torch, append = "bindings/torch/tessella/torch.hpp", "bindings/torch/tessella/torch/append.hpp"
    return {
        header: formatted(header, with_regions(header, structs)),
        arguments: formatted(arguments, arguments_hpp(table)),
        torch: formatted(torch, with_regions(torch, torch_regions(table, "forward_args"))),
        append: formatted(append, with_regions(append, torch_regions(table, "append_args"))),
        "bindings/python/tessella/_options.py": options_py(table),
    }


def old_layout(name: str) -> list[str]:
    """The fields that programs of an older header know, after struct_size."""
    body = re.search(rf"typedef struct tessella_{name} \{{(.*?)\}}", (ROOT / OLD_HEADER).read_text(), re.S)
    declared = re.sub(r"/\*.*?\*/", "", body[1], flags=re.S) if body else ""
    return re.findall(r"(\w+);", declared)[1:]


def problem(table: dict[str, Any]) -> str:
    """What is wrong with the table, or ""."""
    for name, struct in table.items():
        for row in struct["fields"]:
            said = {
                key: {value} if isinstance(value, str) else set(value) for key, value in row.items() if key in VALUES
            }
            for key in row:
                if key not in KEYS or not said.get(key, set()) <= VALUES.get(key, set()):
                    return f"{name}: {row['names']} has {key} = {row[key]!r}"
            if row["kind"] not in (*C_TYPES, "mask", "kv_dtype"):
                return f"{name}: {row['names']} has kind {row['kind']!r}, expected one of {', '.join(C_TYPES)}"
            if row["kind"] == "words" and len(row["words"]) != 3:
                return f"{name}: {row['names']} has {len(row['words'])} words, expected 3"
            if name in CPP_STRUCTS and "help" not in row and "cpp" not in row.get("no", ()):
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
        if struct["layout"][: len(old_layout(name))] != old_layout(name):
            return f"{name}: layout is not that of programs that exist, expected new fields at its end"
    for name, schema in torch_schemas(table).items():
        if (count := schema.count(",")) > MOST_ARGUMENTS:
            return f"{name} has {count} arguments, expected at most {MOST_ARGUMENTS} for torch"
    return ""


def main() -> int:
    """Writes or checks the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    table = tomllib.loads((ROOT / TABLE).read_text())
    if wrong := problem(table):
        raise SystemExit(f"{TABLE}: {wrong}")
    for name, text in files(table).items():
        path = ROOT / name
        if path.is_file() and path.read_text() == text:
            continue
        if check:
            print(f"{name} is not as {TABLE} says: run scripts/generate_arguments.py")
            return 1
        path.write_text(text)
    print("arguments: every file is as the table says")
    return 0


if __name__ == "__main__":
    sys.exit(main())
