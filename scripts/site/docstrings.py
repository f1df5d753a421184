"""Docstrings for mkdocstrings: a section that only says "As `name`." is a sentence, which its parser would leave out."""

from __future__ import annotations

import re
from typing import Any

import griffe

SECTION = re.compile(r"^(Args|Raises):\n    As (.*(?:\n    \S.*)*)", re.M)
TITLES = {"Args": "Arguments", "Raises": "Errors"}


class Sentences(griffe.Extension):
    """Rewrites such sections when the sources have been read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = SECTION.sub(
                lambda match: f"{TITLES[match[1]]}: as " + match[2].replace("\n    ", "\n"), obj.docstring.value
            )
