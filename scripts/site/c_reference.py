"""The page of the C API, read out of include/tessella/tessella.h: each comment with the declarations below it."""

from __future__ import annotations

import pathlib
import re
from typing import NamedTuple

HEADER = "include/tessella/tessella.h"
COMMENT = re.compile(r"^/\*(.*?)\*/[ \t]*$", re.M | re.S)
MARKS = ("generated:", "end of generated")  # of scripts/generate_arguments.py
DIRECTIVE = re.compile(r"^#(?:[^\n]*\\\n)*[^\n]*\n?", re.M)
LINKAGE = re.compile(r'^extern "C" \{$|^\}$', re.M)
FUNCTION = re.compile(r"\b(tessella_\w+)\(")
TYPE = re.compile(r"^typedef (?:struct )?(?:\w+ )?(tessella_\w+)", re.M)
CONSTANT = re.compile(r"(TESSELLA_\w+) =")
ROW = re.compile(r"  (\S.*?)(?:  +(\S.*)|$)")  # of a table in a comment: names, two spaces or more, what they are


class Entry(NamedTuple):
    """A comment and the declarations up to the next one."""

    comment: str
    code: str

    def functions(self) -> list[str]:
        """Names of the functions that are declared."""
        names = []
        for declaration in re.findall(r"^TESSELLA_API (.*?);", self.code, re.M | re.S):
            found = FUNCTION.search(declaration)
            assert found, declaration
            names.append(found[1])
        return names

    def name(self) -> str:
        """What the heading says."""
        if functions := self.functions():
            return ", ".join(functions)
        return ", ".join(TYPE.findall(self.code) or CONSTANT.findall(self.code))


def entries(header: str) -> list[Entry]:
    """The declarations, each under its comment. The first comment is that of the header."""
    pieces = COMMENT.split(header)
    found: list[Entry] = []
    for comment, code in zip(pieces[1::2], pieces[2::2]):
        text = "\n".join(re.sub(r"^ \* ?|^   ", "", line) for line in comment.strip().splitlines()).strip()
        code = LINKAGE.sub("", DIRECTIVE.sub("", code)).strip()
        if not found:
            found.append(Entry(text, ""))
            text = ""
        if code:
            found.append(Entry("" if text.startswith(MARKS) else text, code))
    return found


def escaped(text: str) -> str:
    """Prose that Markdown leaves as it is."""
    return re.sub(r"([\[\]*|])", r"\\\1", text).replace("<", "&lt;")


def prose(comment: str) -> str:
    """A comment in Markdown: paragraphs, and lists in place of its tables."""
    lines: list[str] = []
    is_row = False
    for line in comment.splitlines():
        if row := ROW.fullmatch(line):
            if not is_row:
                lines.append("")
            lines.append(f"- `{row[1]}`" + (f" {escaped(row[2].replace('   ', ': '))}" if row[2] else ""))
            is_row = True
        elif is_row and line.startswith("   "):
            lines[-1] += " " + escaped(line.strip())
        else:
            if is_row and line:
                lines.append("")
            lines.append(escaped(line.strip()))
            is_row = False
    return "\n".join(lines)


def section(entry: Entry) -> str:
    """An entry in Markdown."""
    code = entry.code.replace("TESSELLA_API ", "")
    code = re.sub(r"\n{2,}", "\n\n", code)
    code = re.sub(r"(?<=\n) {6,}", "    ", code)  # arguments below the first one would not fit into a page
    return f"### {entry.name()}\n\n```c\n{code}\n```\n\n{prose(entry.comment)}\n"


def page(root: pathlib.Path) -> str:
    """The whole API: functions, then structs, then enums and other types."""
    first, *rest = entries((root / HEADER).read_text(encoding="utf-8"))
    functions = [entry for entry in rest if entry.functions()]
    structs = [entry for entry in rest if not entry.functions() and "typedef struct" in entry.code]
    others = [entry for entry in rest if entry not in functions and entry not in structs]
    parts = [prose(first.comment)]
    for title, group in (("Functions", functions), ("Structs", structs), ("Numbers", others)):
        parts += [f"## {title}\n", *map(section, group)]
    return "\n".join(parts)
