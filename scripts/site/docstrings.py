"""Docstrings for mkdocstrings, which takes them as Markdown: what only a terminal shows well is rewritten."""

from __future__ import annotations

import re
from typing import Any

import griffe

# A section that only says "As `name`.": its parser would leave it out.
SECTION = re.compile(r"^(Args|Raises):\n    As (.*(?:\n    \S.*)*)", re.M)
TITLES = {"Args": "Arguments", "Raises": "Errors"}
DUNDER = re.compile(r"(?<![\w`.])__\w+__(?![\w`])")  # would be bold
DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.M)  # would be quotations
NAMES = re.compile(r"\w+(?:, \w+)*(?=: )")  # at the head of a line: a list of names, whose lines would run together


def as_list(paragraph: str) -> str:
    """A paragraph of names and what they are, lines that go on indented, as a list; any other as it is."""
    lines = paragraph.splitlines()
    if len(lines) < 2 or not all(line.startswith("    ") or NAMES.match(line) for line in lines):
        return paragraph
    return "\n".join(line if line.startswith("    ") else "- " + NAMES.sub(r"`\g<0>`", line, count=1) for line in lines)


def as_markdown(docstring: str) -> str:
    """The docstring as mkdocstrings is to get it."""
    text = SECTION.sub(lambda match: f"{TITLES[match[1]]}: as " + match[2].replace("\n    ", "\n"), docstring)
    text = DOCTEST.sub(r"```pycon\n\g<0>\n```", DUNDER.sub(r"`\g<0>`", text))
    return "\n\n".join(map(as_list, text.split("\n\n")))


class Docstrings(griffe.Extension):
    """Rewrites docstrings when the sources have been read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
