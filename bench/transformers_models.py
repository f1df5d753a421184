#!/usr/bin/env python3
"""Models of transformers with random weights: attn_implementation="sdpa" beside "tessella", milliseconds.

Weights are bf16, and those of all ways of attention the same. Before it is timed, each way's logits (of training also
gradients) are held against those of sdpa. All ways of a case run in turn.

cases:
  prefill    4096 tokens into a new cache, 8 layers of Llama 3 8B's shape
  decode     one token behind 4095 of a static cache, the same model
  generate   generate(): 32 tokens behind 512, with the cache that it makes by itself
  train      forward, backward and AdamW of GPT-2 medium, 8 x 1024 tokens
  graph      decode as a CUDA graph; only on a GPU

attention:
  sdpa, tessella, flash_attention_2 (where flash_attn is installed), and eager if it is named

Exit status: 0 done, 1 ours were wrong, failed or are not there, 2 bad input.

examples:
  transformers_models.py --json models.json       # on a GPU
  transformers_models.py --window 0.1 --cases decode,graph --attention tessella,eager
  transformers_models.py --device cpu --tiny      # whether it works
"""

from __future__ import annotations

import argparse
import datetime
import pathlib
import sys
from collections.abc import Sequence

import torch
import transformers
from compare import commit, machine_of, write_json
from contest.backends import versions
from contest.measure import release
from contest.report import Record, heading
from contest.transformers_models.cases import FULL, TINY, all_cases
from contest.transformers_models.measure import ATTENTION, OURS, ROUNDS, USUAL, measure_case, missing
from contest.transformers_models.report import BASELINE, notes, table_head, table_row

CASES = ("prefill", "decode", "generate", "train", "graph")


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    def some_of(known: Sequence[str]):
        def names(given: str) -> list[str]:
            if unknown := set(given.split(",")) - set(known):
                raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}, expected some of {', '.join(known)}")
            return [name for name in known if name in given.split(",")]

        return names

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--cases", type=some_of(CASES), default=list(CASES), metavar="NAME,...")
    parser.add_argument(
        "--attention", type=some_of(ATTENTION), default=list(USUAL), metavar="NAME,...", help="sdpa always takes part"
    )
    parser.add_argument("--window", type=float, metavar="S", help="seconds of each of fifteen windows [0.5; tiny 0.02]")
    parser.add_argument("--tiny", action="store_true", help="sizes of no account")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="written anew after every case")
    parser.add_argument("--commit", help="for the record, where git does not tell")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device is cuda and torch finds no GPU, expected cpu")
    if options.window is not None and not 0 < options.window < 3600:
        parser.error(f"--window is {options.window}, expected more than 0")
    options.window = options.window or (0.02 if options.tiny else 0.5)
    return options


def measured(options: argparse.Namespace) -> Record:
    """Measures and prints a row a case. Without ours nothing is measured."""
    wanted = [name for name in ATTENTION if name in options.attention or name == BASELINE]
    reasons = {name: missing(name) for name in wanted}
    taking_part = [name for name in wanted if not reasons[name]]
    sizes = TINY if options.tiny else FULL
    record: Record = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
        "commit": options.commit or commit(),
        "device": options.device,
        "protocol": "tiny" if options.tiny else "random weights",
        "work": "models",
        "window_s": options.window,
        "rounds": ROUNDS,
        "machine": machine_of(options.device),
        "versions": versions([]) | {"torch": torch.__version__, "transformers": transformers.__version__},
        "attention": taking_part,
        "missing": {name: reason for name, reason in reasons.items() if reason},
        "configurations": [],
    }
    if OURS in record["missing"]:
        return record
    print("\n".join([heading(record), "", *table_head(taking_part)]), flush=True)
    for case in all_cases(sizes, options.device):
        if case.name not in options.cases:
            continue
        entry = measure_case(case, taking_part, options.device, options.window)
        print(table_row(entry, taking_part), flush=True)
        for name, reason in entry["not_measured"].items():  # now: a later case may end the process
            print(f"note: {case.name}: {name}: {reason}", file=sys.stderr, flush=True)
        record["configurations"].append(entry)
        if options.json:
            write_json(record, options.json)
        release(options.device)
    return record


def main() -> int:
    record = measured(parse_arguments())
    if OURS in record["missing"]:
        print(f"transformers_models.py: nothing measured: {record['missing'][OURS]}", file=sys.stderr)
        return 1
    print("\n" + notes(record))
    return 1 if any(OURS in entry["not_measured"] for entry in record["configurations"]) else 0


if __name__ == "__main__":
    raise SystemExit(main())
