#!/usr/bin/env python3
"""What a kernel's first call costs on a GPU, each in a fresh process with an empty cache: milliseconds, median of 3.

usage: first_call.py [--kernel NAME] [--json FILE]     needs torch with CUDA
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

# head_dim and options of tessella.attention: a kernel that may be embedded, and two that are compiled for certain.
CASES = {
    "causal": {"mask": "causal"},
    "softcap": {"mask": "causal", "softcap": 30.0},
    "score_mod": {"score_mod": "return score * 0.5f;"},
}
EMBEDDED_LIMIT_MS = 50  # where the library carries the kernel, as it does for "causal"
COMPILED_LIMIT_MS = {64: 2000, 128: 2000, 256: 4000}  # by head_dim
ONE_CALL = """
import json, sys, time
import tessella, torch
options = json.loads(sys.argv[1])
shape = 4, 1024, 8, options.pop("head_dim")
q, k, v = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(3))
torch.cuda.synchronize()
begin = time.perf_counter()
tessella.attention(q, k, v, **options)
torch.cuda.synchronize()
print((time.perf_counter() - begin) * 1e3)
"""


def first_call(options: dict) -> float:
    """Milliseconds; raises CalledProcessError, with what the process said on stderr."""
    with tempfile.TemporaryDirectory() as cache:
        environment = dict(os.environ, TESSELLA_CACHE_DIR=cache)
        command = [sys.executable, "-c", ONE_CALL, json.dumps(options)]
        run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return float(run.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", help="default: the one that is chosen")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    found = {}
    for head_dim in (64, 128, 256):
        for name, options in CASES.items():
            call = {"head_dim": head_dim, "kernel": arguments.kernel, **options}
            milliseconds = statistics.median(first_call(call) for _ in range(3))
            found[f"head_dim {head_dim}, {name}"] = milliseconds
            limit = EMBEDDED_LIMIT_MS if name == "causal" else COMPILED_LIMIT_MS[head_dim]
            print(f"head_dim {head_dim}, {name}: {milliseconds:.0f} ms, limit {limit}", flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
