"""Docstrings for mkdocstrings. A section that only says "As `name`." becomes a sentence: its parser would leave it out.
Names like __dlpack__ become code: Markdown would make them bold."""

from __future__ import annotations

import re
from typing import Any

import griffe

SECTION = re.compile(r"^(Args|Raises):\n    As (.*(?:\n    \S.*)*)", re.M)
DUNDER = re.compile(r"(?<![\w`.])__\w+__(?![\w`])")
TITLES = {"Args": "Arguments", "Raises": "Errors"}


def as_markdown(docstring: str) -> str:
    """The docstring as its parser and Markdown are to get it."""
    text = SECTION.sub(lambda match: f"{TITLES[match[1]]}: as " + match[2].replace("\n    ", "\n"), docstring)
    return DUNDER.sub(r"`\g<0>`", text)


class Docstrings(griffe.Extension):
    """Rewrites docstrings when the sources have been read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
