#!/usr/bin/env python3
"""A decoding step of a whole model, tokens a second: torch's attention, Hugging Face, ours, and the upper bound.

codellama-34b is Flash-Decoding's figure, batch 1 over 512 to 64k tokens of context; llama2-7b that of FlashDecoding++,
batch 1 to 8 beside transformers. Weights are random and shared by all backends, bf16. A step is a CUDA graph from
the tokens to those that follow, but hf.eager and hf.sdpa, which are called as users call them. The upper bound reads
weights and cache once, at the rate of a plain read. Before it is timed each backend is compared with float64 over
two layers, at every context. Where memory is too small, fewer layers' weights (8 at least) serve all layers in turn.

backends:
  eager               softmax(q k^T) v by matrix products
  sdpa.flash, sdpa.cudnn   torch's scaled_dot_product_attention
  *.compiled          these with torch.compile of norms, rotary embeddings and SwiGLU; only if named
  hf.eager, hf.sdpa   transformers with a DynamicCache; hf.sdpa.graph: a StaticCache, as a CUDA graph
  tessella            ours: linear layers, append and attention
  tessella.attention  append and attention of ours, linear layers of torch

Exit status: 0 done, 1 ours were wrong or failed, 2 bad input.

examples:
  decode_model.py --json codellama.json                  # some minutes on a GPU
  decode_model.py --model llama2-7b --json llama.json
  decode_model.py --contexts 512,64k --backends sdpa.cudnn,sdpa.cudnn.compiled,tessella
  decode_model.py --device cpu --tiny                    # whether it works
  decode_model.py --from-json codellama.json --plot plots
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import sys
from collections.abc import Sequence

from compare import commit, machine_of, write_json
from contest.decode_model.plot import draw
from contest.decode_model.report import not_ours, report, table_head, table_row
from contest.report import Record, is_ours

CONTEXTS = {"codellama-34b": [512 << power for power in range(8)], "llama2-7b": [1024]}
BATCHES = {"codellama-34b": [1], "llama2-7b": [1, 2, 4, 8]}
TINY_CONTEXTS, TINY_BATCHES = [40, 200], {"codellama-34b": [1], "llama2-7b": [1, 2]}


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    def words(given: str) -> list[str]:
        return given.split(",")

    def numbers(given: str) -> list[int]:
        return [int(word[:-1]) << 10 if word.endswith("k") else int(word) for word in words(given)]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where torch finds a GPU")
    parser.add_argument("--model", choices=CONTEXTS, default="codellama-34b")
    parser.add_argument(
        "--contexts", type=numbers, default=[], metavar="N,...", help="tokens, that of the step too: 512,64k"
    )
    parser.add_argument("--batches", type=numbers, default=[], metavar="N,...")
    parser.add_argument("--backends", type=words, default=[], metavar="NAME,...")
    parser.add_argument("--seconds", type=float, metavar="S", help="of each of three windows [0.5; tiny 0.02]")
    parser.add_argument("--held", type=int, metavar="N", help="layers with weights of their own [all that fit]")
    parser.add_argument("--tiny", action="store_true", help="sizes of no account")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="written anew after every row")
    parser.add_argument("--plot", type=pathlib.Path, metavar="FOLDER", help="a PNG; needs matplotlib")
    parser.add_argument("--commit", help="for the record, where git does not tell")
    parser.add_argument("--from-json", type=pathlib.Path, metavar="FILE", help="report this instead")
    options = parser.parse_args(arguments)
    if any(number < 2 for number in options.contexts) or any(number < 1 for number in options.batches):
        parser.error("--contexts are 2 and more, --batches 1 and more")
    if options.seconds is not None and not 0 < options.seconds < 3600:
        parser.error(f"--seconds is {options.seconds}, expected more than 0")
    if options.held is not None and options.held < 2:
        parser.error(f"--held is {options.held}, expected 2 or more")
    options.contexts = options.contexts or (TINY_CONTEXTS if options.tiny else CONTEXTS[options.model])
    options.batches = options.batches or (TINY_BATCHES if options.tiny else BATCHES)[options.model]
    return options


def measured(options: argparse.Namespace) -> Record:
    """Measures and prints a row a configuration. torch and Tessella are imported here: a report needs neither."""
    import torch
    from contest.backends import versions
    from contest.decode_model.backends import chosen
    from contest.decode_model.measure import measure_configuration
    from contest.decode_model.model import SHAPES, TINY, StepConfiguration, fitting_layers, make_model
    from contest.measure import ROUNDS, release

    torch.set_grad_enabled(False)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device is cuda and torch finds no GPU, expected cpu")
    backends, missing = chosen(options.backends, options.model, device)
    configs = [StepConfiguration(batch, context) for batch in options.batches for context in options.contexts]
    shape = (TINY if options.tiny else SHAPES)[options.model]
    rows = max(config.batch * config.context for config in configs)
    held = min(options.held or shape.layers, fitting_layers(shape, rows, device))
    seconds = options.seconds or (0.02 if options.tiny else 0.5)
    record: Record = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
        "commit": options.commit or commit(),
        "device": device,
        "protocol": ("tiny-" if options.tiny else "") + options.model,
        "work": "step",
        "layers": shape.layers,
        "held": held,
        "window_s": seconds,
        "rounds": ROUNDS,
        "machine": machine_of(device),
        "versions": versions(backends) | {"torch": torch.__version__},
        "missing": missing,
        "configurations": [],
    }
    model = make_model(shape, held, rows, device)
    columns = [backend.name for backend in backends]
    print("\n".join(table_head(columns, not_ours(columns))), flush=True)
    for config in configs:
        entry = measure_configuration(model, config, backends, device, seconds)
        release(device)
        print(table_row(entry, columns, not_ours(columns)), flush=True)
        for name, reason in entry["not_measured"].items():
            print(f"note: {name}: {reason}", flush=True)
        record["configurations"].append(entry)
        if options.json:
            write_json(record, options.json)
    return record


def main() -> int:
    options = parse_arguments()
    try:
        record = json.loads(options.from_json.read_text("utf-8")) if options.from_json else measured(options)
    except (OSError, ValueError) as error:
        print(f"decode_model.py: {error}", file=sys.stderr)
        return 2
    print("\n" + report(record))
    if options.plot:
        print(f"wrote {draw(record, options.plot)}")
    failed = {name for entry in record["configurations"] for name in entry["not_measured"] if is_ours(name)}
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
