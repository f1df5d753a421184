#!/usr/bin/env python3
"""Breaks forward_sm90, both backward kernels, decode and linear in one way after the other, in a copy of the tree,
and expects a test of the emulator to fail.

tests/emulator/mutations.py --check | [--folder FOLDER] [NAME ...]

Prints what each break was caught by, and "N passed, N failed": passed are those that were caught. --folder: a copy and
its build that the next run finds again. NAME: of a mutation, else all. --check: builds nothing, and fails if the source
no longer has the words that a mutation changes.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import mutations_of_backward
import mutations_of_decode
import mutations_of_forward
import mutations_of_linear
from mutation import Mutation

SOURCE = Path(__file__).resolve().parents[2]
SECONDS = 300  # that a broken kernel may take

MUTATIONS = [
    *mutations_of_forward.MUTATIONS,
    *mutations_of_backward.MUTATIONS,
    *mutations_of_decode.MUTATIONS,
    *mutations_of_linear.MUTATIONS,
]


def run(*command: str, cwd: Path) -> str:
    """What a command prints. Raises SystemExit with it if the command fails."""
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{done.stdout}\n{' '.join(command)}: exit status {done.returncode}")
    return done.stdout


def copy_tree(to: Path) -> None:
    """Copies what git knows of the tree; files that are the same stay as they are, those that are gone go."""
    to.mkdir(parents=True, exist_ok=True)
    names = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=SOURCE).split("\0")
    for folder in ("src", "tests"):
        for path in (to / folder).rglob("*"):
            if path.is_file() and str(path.relative_to(to)) not in names:
                path.unlink()
    for name in names:
        source, copy = SOURCE / name, to / name
        if not source.is_file() or (copy.is_file() and copy.read_bytes() == source.read_bytes()):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(source.read_bytes())
        copy.chmod(source.stat().st_mode)


def broken(mutation: Mutation, tree: Path) -> tuple[Path, str]:
    """The path of a mutation's file in the tree, and its content with the mutation. Raises SystemExit if the words to
    replace do not stand there exactly once."""
    files = list((tree / "src/cuda").rglob(mutation.file))
    if len(files) != 1:
        raise SystemExit(f"{mutation.name}: {len(files)} files are named {mutation.file}")
    held = files[0].read_text()
    words = re.compile(r"\s+".join(re.escape(word) for word in mutation.found.split()))
    if len(words.findall(held)) != 1:
        raise SystemExit(f"{mutation.name}: stands {len(words.findall(held))} times in {files[0]}: {mutation.found}")
    return files[0], words.sub(lambda _: mutation.instead, held)


def build(tree: Path, target: str) -> Path:
    """The binary of tests."""
    folder = tree / "build"
    if not (folder / "build.ninja").is_file():
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DTESSELLA_BUILD_TESTS=ON", "-DTESSELLA_EMBED_KERNELS=OFF"]
        run("cmake", "-S", str(tree), "-B", str(folder), "-G", "Ninja", *options, cwd=tree)
    run("cmake", "--build", str(folder), "--target", target, cwd=tree)
    return next(path for path in folder.rglob(target) if path.is_file())


def failure(binary: Path, tests: str, seconds: int) -> str:
    """What the tests say first, "" if they pass."""
    command = [str(binary), f"--gtest_filter={tests}", "--gtest_fail_fast", "--gtest_brief=1"]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return f"no end in {seconds} s"
    if done.returncode == 0:
        return ""
    said = re.search(r'Which is: "(.*)|^  "(.*)', done.stdout, re.MULTILINE)
    return (said.group(1) or said.group(2)).rstrip('"') if said else f"exit status {done.returncode}"


def main() -> int:
    """Runs the mutations of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.check:
        num_wrong = 0
        for mutation in MUTATIONS:
            try:
                broken(mutation, SOURCE)
            except SystemExit as reason:
                print(reason)
                num_wrong += 1
        print(f"{len(MUTATIONS) - num_wrong} of {len(MUTATIONS)} mutations have their words in the source")
        return 1 if num_wrong else 0
    unknown = set(args.names) - {mutation.name for mutation in MUTATIONS}
    if unknown:
        parser.error(f"no mutation is named {' or '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as temporary:
        tree = args.folder.resolve() if args.folder else Path(temporary)
        copy_tree(tree)
        mutations = [mutation for mutation in MUTATIONS if not args.names or mutation.name in args.names]
        for target in sorted({mutation.target for mutation in mutations}):
            if said := failure(build(tree, target), "*", 10 * SECONDS):
                raise SystemExit(f"{target} fails before anything is broken: {said}")
        passed = failed = 0
        for mutation in mutations:
            start = time.monotonic()
            path, content = broken(mutation, tree)
            held = path.read_text()
            path.write_text(content)
            try:
                said = failure(build(tree, mutation.target), f"*.{mutation.test}", SECONDS)
            finally:
                path.write_text(held)
            passed += said != ""
            failed += said == ""
            seconds = round(time.monotonic() - start)
            print(f"{mutation.name:22} {mutation.test:14} {seconds:4} s  {said or 'NOT CAUGHT'}"[:160], flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
