#!/usr/bin/env python3
"""Tessella on a GPU beside torch in one process: the forward in TFLOP/s, interleaved, windows of at least half a second.

tables:
  protocol   16k tokens x hidden 2048, d 64, 128, 256, lengths 512 to 16k, full and causal; rivals: torch's
             FlashAttention-2 and, with --cudnn, cuDNN
  f32        the same in fp32, to 4k; rival: torch's EFFICIENT backend
  features   softcap, ALiBi, ALiBi and causal as the caller's text, at d 128, beside our own plain kernel; rival:
             FlexAttention, compiled
  host       microseconds of a repeated call, and milliseconds of a first one

examples:
  torch_cuda.py build/src/libtessella.so protocol --json protocol.json
  torch_cuda.py build/src/libtessella.so features f32 host
"""
import argparse
import datetime
import json
import math
import os
import statistics
import subprocess
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import tessella_c

TOKENS, HIDDEN = 16384, 2048


def view(t):
    names = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32", torch.bool: "bool", torch.int32: "i32"}
    return t.data_ptr(), names[t.dtype], tuple(t.shape), tuple(t.stride())


class Problem:
    """q, k, v and out of one call: (batch, seqlen, heads, head_dim), random normal."""

    def __init__(self, library, seqlen, head_dim, causal, dtype=torch.bfloat16, **options):
        self.batch, self.heads, self.seqlen, self.head_dim = TOKENS // seqlen, HIDDEN // head_dim, seqlen, head_dim
        self.causal = causal
        shape = (self.batch, seqlen, self.heads, head_dim)
        self.q, self.k, self.v = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(3))
        self.out = torch.full(shape, math.nan, device="cuda", dtype=dtype)
        self.flops = 4 * self.batch * self.heads * seqlen * seqlen * head_dim / (2 if causal else 1)
        self.call = tessella_c.Call(library, [view(t) for t in (self.q, self.k, self.v, self.out)], causal, 0, None,
                                    torch.cuda.current_stream().cuda_stream, **options)

    def heads_first(self):
        return (t.transpose(1, 2) for t in (self.q, self.k, self.v))

    def torch_run(self, backend):
        q, k, v = self.heads_first()

        def run():
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return run

    def difference(self, run):
        """Largest difference from the rival's output."""
        self.call.run()
        return (self.out.transpose(1, 2).float() - run().float()).abs().max().item()


def window(run, seconds):
    """Seconds of one call on the GPU's clock, over as many as fill the window."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    run()
    end.record()
    end.synchronize()
    count = max(3, int(seconds * 1e3 / max(begin.elapsed_time(end), 1e-3)))
    begin.record()
    for _ in range(count):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / count / 1e3


def measure(sides, flops, options):
    """Median TFLOP/s of each side over rounds in which they take turns."""
    for run in sides.values():
        window(run, options.window / 10)
    times = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, run in sides.items():
            times[name].append(window(run, options.window))
    return {name: flops / statistics.median(t) / 1e12 for name, t in times.items()}


def report(row, rates, ours, rival, difference, bound):
    row.update(tflops=rates, difference=difference, passed=difference <= bound)
    if rival:
        row["ratio"] = rates[ours] / rates[rival]
    rate_text = " | ".join(f"{name} {rate:6.1f}" for name, rate in rates.items())
    label = " ".join(str(value) for key, value in row.items() if key in ("table", "head_dim", "seqlen", "mask", "case"))
    print(f"{label:38} | {rate_text}" + (f" | x {row['ratio']:.3f}" if rival else "") +
          f" | {difference:.1e}" + ("" if row["passed"] else " CHECK FAILED"), flush=True)
    return row


def protocol(library, options, dtype=torch.bfloat16, table="protocol", rivals=(("fa2", SDPBackend.FLASH_ATTENTION),),
             bound=2e-2):
    rows = []
    for head_dim in options.head_dim:
        for causal in (False, True):
            for seqlen in options.seqlen:
                if dtype == torch.float32 and seqlen > 4096:
                    continue
                problem = Problem(library, seqlen, head_dim, causal, dtype)
                sides = {name: problem.torch_run(backend) for name, backend in rivals}
                difference = problem.difference(sides[rivals[0][0]])
                sides["tessella"] = problem.call.run
                rates = measure(sides, problem.flops, options)
                row = {"table": table, "head_dim": head_dim, "seqlen": seqlen, "mask": "causal" if causal else "none"}
                rows.append(report(row, rates, "tessella", rivals[0][0], difference, bound))
    return rows


def features(library, options):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    flex = torch.compile(flex_attention, dynamic=False)
    rows, seqlen, head_dim = [], 8192, 128
    heads = HIDDEN // head_dim
    slopes = torch.exp2(-8 * torch.arange(1, heads + 1, device="cuda", dtype=torch.float32) / heads)
    cap = 30.0
    text = b"return score - arrays.f32(0)[h] * fabsf(float(k) - float(q));"
    causal_mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, seqlen, seqlen, device="cuda")
    cases = {
        "plain": (False, {}, lambda q, k, v: flex(q, k, v)),
        "softcap": (False, {"softcap": cap},
                    lambda q, k, v: flex(q, k, v, score_mod=lambda s, b, h, i, j: cap * torch.tanh(s / cap))),
        "alibi": (False, {"named": {"alibi_slopes": view(slopes)}},
                  lambda q, k, v: flex(q, k, v, score_mod=lambda s, b, h, i, j: s - slopes[h] * (i - j).abs())),
        "alibi as text": (False, {"score": text, "score_args": [view(slopes)]}, None),
        "causal": (True, {}, lambda q, k, v: flex(q, k, v, block_mask=causal_mask)),
        "causal as text": (False, {"keep": b"return k <= q;"}, None),
    }
    for name, (causal, arguments, rival) in cases.items():
        problem = Problem(library, seqlen, head_dim, causal, **arguments)
        is_causal = "causal" in name
        problem.flops = 4 * problem.batch * problem.heads * seqlen * seqlen * head_dim / (2 if is_causal else 1)
        base = Problem(library, seqlen, head_dim, is_causal)
        q, k, v = problem.heads_first()
        rival = rival or cases[name.split()[0]][2]
        difference = problem.difference(lambda: rival(q, k, v))
        rates = measure({"flex": lambda: rival(q, k, v), "plain": base.call.run, "tessella": problem.call.run},
                        problem.flops, options)
        rows.append(report({"table": "features", "case": name}, rates, "tessella", "plain", difference, 3e-2))
    return rows


FIRST_CALL = """
import sys, time, torch
sys.path.insert(0, sys.argv[1])
import tessella_c, torch_cuda
library = tessella_c.Library(sys.argv[2])
head_dim, options = int(sys.argv[3]), eval(sys.argv[4])
problem = torch_cuda.Problem(library, 1024, head_dim, True, **options)
torch.cuda.synchronize()
begin = time.perf_counter()
problem.call.run()
torch.cuda.synchronize()
print((time.perf_counter() - begin) * 1e3)
"""


def host(library, options):
    """A first call of an embedded kernel and of one that must be compiled, each in a process and a cache of its own;
    then the host's time of a repeated call."""
    rows = []
    here = os.path.dirname(os.path.abspath(__file__))
    for name, head_dim, extra in (("embedded", 128, "{}"), ("compiled", 128, "{'softcap': 30.0}"),
                                  ("compiled, text", 128, "{'score': b'return score * 0.5f;'}")):
        folder = f"/tmp/tessella-first-call-{os.getpid()}-{len(rows)}"
        run = subprocess.run([sys.executable, "-c", FIRST_CALL, here, options.library, str(head_dim), extra],
                             env=dict(os.environ, TESSELLA_CACHE_DIR=folder), capture_output=True, text=True)
        passed = run.returncode == 0
        milliseconds = float(run.stdout) if passed else math.nan
        print(f"first call, {name}: {milliseconds:.1f} ms {'' if passed else 'FAILED ' + run.stderr[-200:]}", flush=True)
        rows.append({"table": "host", "case": f"first call, {name}", "milliseconds": milliseconds, "passed": passed})
    problem = Problem(library, 1024, 64, True)
    problem.call.run()
    torch.cuda.synchronize()
    times = []
    for _ in range(20):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(100):
            problem.call.run()
        times.append((time.perf_counter() - begin) / 100 * 1e6)
    print(f"repeated call, host: {statistics.median(times):.2f} us (ctypes included)", flush=True)
    rows.append({"table": "host", "case": "repeated call", "microseconds": statistics.median(times), "passed": True})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="path of libtessella.so")
    parser.add_argument("tables", nargs="*", default=["protocol"], metavar="table")
    numbers = lambda text: [int(part) for part in text.split(",")]  # noqa: E731
    parser.add_argument("--head-dim", type=numbers, default=[64, 128, 256], metavar="D,...")
    parser.add_argument("--seqlen", type=numbers, default=[512, 1024, 2048, 4096, 8192, 16384], metavar="N,...")
    parser.add_argument("--window", type=float, default=0.5, help="seconds of one measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cudnn", action="store_true", help="cuDNN as a second rival")
    parser.add_argument("--json", metavar="PATH")
    parser.add_argument("--commit", default="", help="commit of ours, for the record")
    options = parser.parse_args()
    options.library = os.path.abspath(options.library)
    library = tessella_c.Library(options.library)
    driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                            capture_output=True, text=True).stdout.split("\n")[0]
    record = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
              "gpu": torch.cuda.get_device_name(), "driver": driver, "torch": torch.__version__,
              "commit": options.commit, "command": " ".join(sys.argv), "unit": "TFLOP/s, median of rounds", "rows": []}
    print(f"{record['gpu']}, driver {driver}, torch {record['torch']}, {record['date']}, "
          f"commit {options.commit or 'not given'}\n{record['command']}")
    rivals = [("fa2", SDPBackend.FLASH_ATTENTION)] + ([("cudnn", SDPBackend.CUDNN_ATTENTION)] if options.cudnn else [])
    tables = {"protocol": lambda: protocol(library, options, rivals=rivals),
              "f32": lambda: protocol(library, options, torch.float32, "f32",
                                      (("efficient", SDPBackend.EFFICIENT_ATTENTION),), 1e-4),
              "features": lambda: features(library, options), "host": lambda: host(library, options)}
    with torch.inference_mode():
        for name in options.tables:
            rows = tables[name]()
            ratios = [row["ratio"] for row in rows if "ratio" in row]
            if ratios:
                print(f"{name}: geomean {math.exp(statistics.fmean(map(math.log, ratios))):.3f}, "
                      f"min {min(ratios):.3f}, {len(ratios)} rows")
            record["rows"] += rows
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
            file.write("\n")
    failed = sum(not row["passed"] for row in record["rows"])
    print(f"checks: {len(record['rows']) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
