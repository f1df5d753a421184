#!/usr/bin/env python3
"""Every link between the documents leads somewhere, every page that a source names exists, kernel pages stay short, and
the tables of the environment have every variable that is read.

usage: check.py [ROOT]     exit status 1 when one does not
"""
import pathlib
import re
import subprocess
import sys

MOST_WORDS = 2000  # of a kernel page: it says what is; what was tried is in docs/lab/
LINK = re.compile(r"\]\(([^()\s]*)\)")
CODE = re.compile(r"^```.*?^```$", re.M | re.S)
NAMED_PAGE = re.compile(r"(?<![\w/.-])docs/[\w/-]+\.md")
READS = re.compile(r'(?:getenv|environment_path|environ\.get)\("(\w+)"|[Vv](?:ariable|ARIABLE) = "(\w+)"')
READERS = ("src/", "bindings/python/tessella/", "include/")
SOURCES = {".h", ".hpp", ".cuh", ".cpp", ".py", ".sh", ".txt", ".toml", ".md", ""}


def tracked(root):
    """Files git knows or would add; without git, every file below root but builds."""
    try:
        out = subprocess.run(["git", "-C", str(root), "ls-files", "-co", "--exclude-standard"], check=True,
                             capture_output=True, text=True).stdout
        names = out.splitlines()
    except (OSError, subprocess.CalledProcessError):
        paths = [p.relative_to(root) for p in root.rglob("*") if p.is_file()]
        names = [str(p) for p in paths if p.parts[0] != "build"]
    return [name for name in sorted(names) if (root / name).is_file()]


def anchors(text):
    """The anchors of a page's headings, as GitHub makes them."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", CODE.sub("", text), re.M):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug, count = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"), 0
        while (slug if count == 0 else f"{slug}-{count}") in found:
            count += 1
        found.add(slug if count == 0 else f"{slug}-{count}")
    return found


def problems(root):
    files = tracked(root)
    has_results = (root / "docs/results").is_dir()  # a source distribution has none
    pages = {name: (root / name).read_text(encoding="utf-8") for name in files if name.endswith(".md")}
    for name, text in pages.items():
        for target in LINK.findall(CODE.sub("", text)):
            if "://" in target:
                continue
            path, _, anchor = target.partition("#")
            file = (root / name).parent / path if path else root / name
            if not has_results and "results/" in path:
                continue
            if not file.exists():
                yield f"{name} links to {target}, which is not there"
            elif anchor and anchor not in anchors(file.read_text(encoding="utf-8")):
                yield f"{name} links to {target}, whose page has no such heading"
        if name.startswith("docs/kernels/") and name != "docs/kernels/README.md" and len(text.split()) > MOST_WORDS:
            yield f"{name} has {len(text.split())} words, expected {MOST_WORDS} at most"
    for name in files:
        if pathlib.PurePath(name).suffix not in SOURCES:
            continue
        for page in set(NAMED_PAGE.findall((root / name).read_text(encoding="utf-8", errors="ignore"))):
            if not (root / page).is_file() and (has_results or not page.startswith("docs/results/")):
                yield f"{name} names {page}, which is not there"


def unlisted_variables(root, files):
    """Variables of the environment that are read and that a table lacks: all in SECURITY.md, Tessella's own in README.md."""
    read = set()
    for name in files:
        if name.startswith(READERS) and name.endswith((".cpp", ".hpp", ".h", ".py")):
            found = READS.findall((root / name).read_text(encoding="utf-8"))
            read.update(of_call or of_constant for of_call, of_constant in found)
    for page in ("README.md", "SECURITY.md"):
        rows = "\n".join(line for line in (root / page).read_text(encoding="utf-8").splitlines() if line.startswith("|"))
        for variable in sorted(read):
            if f"`{variable}`" not in rows and (page == "SECURITY.md" or variable.startswith("TESSELLA_")):
                yield f"{page} lacks {variable} in its table of the environment"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    found = [*problems(root), *unlisted_variables(root, tracked(root))]
    print("\n".join(found) or "docs: every link leads somewhere")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
