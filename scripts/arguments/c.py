"""tessella.h: the structs with their comments and _INIT macros."""

from __future__ import annotations

from collections.abc import Iterator

from arguments.table import KINDS, Row, Struct, help_of, operand_of, text_of, wrap


def fields(struct: Struct) -> Iterator[tuple[str, str, Row]]:
    """Type, name and row of each field, in their order."""
    of_name = {name: row for row in struct["fields"] for name in row["names"]}
    counts = {row["count"] for row in struct["fields"] if "count" in row}
    for name in struct["layout"]:
        if name in counts:
            yield "int32_t", name, {"names": [name], "kind": "int32"}
        else:
            yield KINDS[of_name[name]["kind"]].c, name, of_name[name]


def comment_of(name: str, struct: Struct) -> list[str]:
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


def declaration(name: str, struct: Struct) -> str:
    """The struct with its comment and its _INIT macro."""
    lines = [*comment_of(name, struct), f"typedef struct tessella_{name} {{", "size_t struct_size;"]
    said: Row | None = None
    for spelled, field, row in fields(struct):
        comment = row["text"] if "text" in row else help_of(row, field)
        if name.endswith("_options") and comment and (row is not said or not text_of(row)):
            lines += wrap(comment + " */", "  /* ", "     ")
        said = row
        lines.append(f"  {spelled} {field};")
    lines += [f"}} tessella_{name};", ""]
    defaults = [str(row.get("default", 0)) for _, _, row in fields(struct)]
    values = ", ".join((f"sizeof(tessella_{name})", *defaults))
    lines += [f"#define TESSELLA_{name.upper()}_INIT \\", f"  {{ {values} }}"]
    return "\n".join(lines)
