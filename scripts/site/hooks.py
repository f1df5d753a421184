"""What MkDocs does beyond its own for the documentation site.

Pages of docs/ link to files outside of it, as they do on GitHub. Each such file becomes a page under repository/, and
links to it lead there. Marks in the pages of docs/api are replaced by what is generated from the sources.
"""

from __future__ import annotations

import os
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Any

from mkdocs.structure.files import File

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import c_reference  # noqa: E402
import python_reference  # noqa: E402

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
WIDE = ("kernels/README.md",)  # pages that give the room of their table of contents to a table
OUTSIDE = "repository/"  # the folder of the site that has pages of files outside of docs/
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
LINK = re.compile(r"\]\(([^()\s#]+)(#[^()\s]*)?\)")
LANGUAGES = {".cuh": "cpp", ".cpp": "cpp", ".h": "c", ".hpp": "cpp", ".py": "python", ".sh": "sh", ".json": "json"}
GENERATED = {"<!-- functions of tessella.h -->": c_reference.page, "<!-- names of tessella -->": python_reference.page}


def file_of(target: str, page: pathlib.Path) -> pathlib.Path | None:
    """The file that a page's link leads to; of a folder its README.md."""
    if "://" in target or target.startswith("mailto:"):
        return None
    path = pathlib.Path(os.path.normpath(page.parent / target))
    if path.is_dir() and (path / "README.md").is_file():
        path /= "README.md"
    return path if path.is_file() else None


def uri_of(file: pathlib.Path) -> str:
    """Where the site has it."""
    if file.is_relative_to(DOCS):
        return file.relative_to(DOCS).as_posix()
    path = file.relative_to(ROOT).as_posix()
    return OUTSIDE + (path if path.endswith(".md") else path + ".md")


def source_of(uri: str) -> pathlib.Path:
    """The file of a page, which uri_of has made of it."""
    if not uri.startswith(OUTSIDE):
        return DOCS / uri
    path = ROOT / uri.removeprefix(OUTSIDE)
    return path if path.is_file() else path.with_suffix("")


def links(text: str) -> Iterator[str]:
    """The targets of a page's links, without those in its code."""
    for match in LINK.finditer(FENCED.sub("", text)):
        yield match[1]


def outside_files() -> list[pathlib.Path]:
    """Every file outside of docs/ that its pages link to, and what those that are pages link to."""
    found: list[pathlib.Path] = []
    waiting = sorted(DOCS.rglob("*.md"))
    while waiting:
        page = waiting.pop()
        for target in links(page.read_text(encoding="utf-8")):
            file = file_of(target, page)
            if file is None or file.is_relative_to(DOCS) or file in found:
                continue
            found.append(file)
            if file.suffix == ".md":
                waiting.append(file)
    return sorted(found)


def as_page(file: pathlib.Path) -> str:
    """A page as it is; any other file as code under its name."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return text
    return f"# {file.relative_to(ROOT)}\n\n````{LANGUAGES.get(file.suffix, 'text')}\n{text}\n````\n"


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages of files outside of docs/."""
    for file in outside_files():
        files.append(File.generated(config, uri_of(file), content=as_page(file)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Leads links to the pages of the site, and puts in what is generated."""
    uri = page.file.src_uri
    if uri in WIDE:
        page.meta["hide"] = ["toc"]
    source = source_of(uri)
    if source.suffix != ".md":
        return markdown

    def lead(match: re.Match[str]) -> str:
        file = file_of(match[1], source)
        if file is None:
            return match[0]  # MkDocs warns of what is not there
        return f"]({os.path.relpath(uri_of(file), os.path.dirname(uri) or '.')}{match[2] or ''})"

    parts, end = [], 0
    for code in FENCED.finditer(markdown):
        parts += [LINK.sub(lead, markdown[end : code.start()]), code[0]]
        end = code.end()
    text = "".join([*parts, LINK.sub(lead, markdown[end:])])
    for mark, generate in GENERATED.items():
        if mark in text:
            text = text.replace(mark, generate(ROOT))
    return text
