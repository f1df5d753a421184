#!/usr/bin/env python3
"""Adds a mask to a copy of the tree by the steps of CONTRIBUTING.md, and runs it on CPUs and in the emulator.

tests/toy/mask.py --check | [--folder FOLDER]

The mask, `every`: (batch) i32, shows sequence b the rows of its keys that are multiples of every[b]. No kernel has code
of its own for it. --check: builds nothing, and fails if the source no longer has the words that the steps change, or if
they touch more than ten files of src. --folder: a copy and its build that the next run finds again.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests/emulator"))

from mutations import build, copy_tree, run  # noqa: E402

PART = """\
struct Every {
  const int32_t* data;
  int64_t batch_stride;

  static constexpr bool kHasHeads = false;
  constexpr bool exists() const { return data != nullptr; }
  constexpr bool by_batch() const { return batch_stride != 0; }
  constexpr bool by_head() const { return false; }
  constexpr bool by_query() const { return false; }
  template <class S, class Int>
  constexpr int64_t row(const S&, int64_t, int64_t, Int) const {
    return 0;
  }
  template <class S, class Int>
  constexpr bool sees(const S& s, int64_t b, int64_t, Int j) const {
    const int32_t number = data[b * batch_stride];
    return number > 0 && (s.slot_kv + j) % number == 0;
  }
};

"""
ROW = """\
[[forward_args.fields]]
names = ["every"]
kind = "tensor"
shape = "(batch)"
dtypes = "i32"
cached = "not"
help = "sequence b sees the rows of its keys that are multiples of every[b]"

"""
MAKE = """\
  if (c_.every) {
    std::vector<int32_t>& numbers = tables_.emplace_back();
    for (int64_t b = 0; b < c_.batch; ++b) numbers.push_back(static_cast<int32_t>(random.in(1, 5)));
    args_.every = table(numbers);
  }
"""
SEES = "  if (c_.every && slot % static_cast<const int32_t*>(args_.every->data)[b] != 0) return false;\n"
FORWARD = """\
TEST(EmulatedQuick, Every) {
  Case c = small(64);
  c.masked_nan = c.every = true;
  expect_right(c);
}

"""
BACKWARD = 'TEST(EmulatedQuickBackward, Every) { expect_right("masked_nan=1 every=1", 2); }\n\n'

# A file of src -> words that stand in it once, and what stands before or behind them then.
LIBRARY = {
    "src/api/arguments.toml": [
        ('"query_ranges", "mask_map"', "", ', "every"'),
        ('[[forward_args.fields]]\nnames = ["seed", "offset"]', ROW, ""),
    ],
    "src/core/features.hpp": [
        ("  query_ranges = 1ull << 34,\n", "", "  every = 1ull << 63,\n"),
        ('    {Feature::query_ranges, "query_ranges"},\n', "", '    {Feature::every, "every"},\n'),
        ("kElementMasks = ", "", "Feature::every | "),
    ],
    "src/operations/attention/arguments.hpp": [
        ("  RangeOperand query_ranges; ", "  Table<int32_t> every;  // (batch)\n", ""),
        ('    {"cache_batch_idx", &', '    {"every", &AttentionArguments::every, Feature::every, 1},\n', ""),
    ],
    "src/operations/attention/element_masks.hpp": [
        ("features.has(Feature::query_ranges)", "", ", .every = features.has(Feature::every)"),
        ("{ranges(p.query_ranges)}", "", ", .every = {p.every.data, p.every.batch_stride}"),
    ],
    "src/portable/element_masks.hpp": [
        ("struct ElementMasks {\n", PART, ""),
        ("  QueryRanges query_ranges;\n", "", "  Every every;\n"),
        ("  bool query_ranges = false;\n", "", "  bool every = false;\n"),
        ("kMostElementMasks = ", "", "1 + "),
        ("  f(set.query_ranges, masks.query_ranges);\n", "", "  f(set.every, masks.every);\n"),
    ],
}
# The same of the cases and two suites of the emulator.
TESTS = {
    "tests/cases/cases.hpp": [("  std::string query_ranges;\n", "", "  bool every = false;\n")],
    "tests/cases/cases.cpp": [
        ('  visit("query_ranges", c.query_ranges);\n', "", '  visit("every", c.every);\n'),
        ("  Random of_ranges(seed ^ 0x72616e676573);  // other draws stay\n", "", "  c.every = seed % 2 == 0;\n"),
    ],
    "tests/cases/call.cpp": [("const bool has_element_masks =", "", " c_.every ||")],
    "tests/cases/call_scores.cpp": [
        ("  if (c_.prefix) {\n", MAKE, ""),
        ("  if (!are_in(args_.key_ranges,", SEES, ""),
    ],
    "tests/emulator/emulated_quick_test.cpp": [("TEST(EmulatedQuick, Ranges)", FORWARD, "")],
    "tests/emulator/emulated_quick_backward_test.cpp": [("TEST(EmulatedQuickBackward, Ranges)", BACKWARD, "")],
}
MOST_FILES = 10


def changed(name: str, steps: list[tuple[str, str, str]]) -> str:
    """A file with its steps. Raises SystemExit if words do not stand there exactly once."""
    text = (SOURCE / name).read_text()
    for words, before, behind in steps:
        if text.count(words) != 1:
            raise SystemExit(f"{name}: stands {text.count(words)} times in it: {words}")
        text = text.replace(words, before + words + behind)
    return text


def main() -> int:
    """Adds the mask and runs its tests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    texts = {name: changed(name, steps) for name, steps in {**LIBRARY, **TESTS}.items()}
    if len(LIBRARY) > MOST_FILES:
        raise SystemExit(f"the mask touches {len(LIBRARY)} files of src, expected at most {MOST_FILES}")
    print(f"a mask of elements touches {len(LIBRARY)} files of src")
    if args.check:
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        tree = args.folder.resolve() if args.folder else Path(temporary)
        copy_tree(tree)
        for name, text in texts.items():
            (tree / name).write_text(text)
        run(sys.executable, "scripts/generate_arguments.py", cwd=tree)
        programs = {
            "random_test": ["--cases", "3000", "--seed", "1"],
            "emulated_quick_test": ["--gtest_filter=*Every"],
            "emulated_quick_backward_test": ["--gtest_filter=*Every"],
        }
        for program, options in programs.items():
            command = [str(build(tree, program)), *options]
            print(subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
