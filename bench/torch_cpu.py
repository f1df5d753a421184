#!/usr/bin/env python3
"""Tessella beside torch.nn.functional.scaled_dot_product_attention: one process, the same memory, windows in turn.

A row is the median over rounds of the time of one call; a round is a window of torch and a window of ours. Every row is
first checked against torch's output and by tessella_check_forward (the reference in double).

examples:
  torch_cpu.py build/lib/libtessella.so --threads 1,2 --json results.json
  torch_cpu.py libtessella.so --dtype bf16 --no-amx         # both sides without AMX
  torch_cpu.py libtessella.so --long                        # memory and time up to 64k x 64k
  torch_cpu.py --torch-only --quick
"""
import argparse
import datetime
import json
import math
import os
import platform
import statistics
import sys
import time

NO_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "MKL_ENABLE_INSTRUCTIONS": "AVX512"}
FLAGS = ("avx2", "fma", "avx512f", "avx512bw", "avx512_bf16", "avx512_fp16", "avx512_vnni", "amx_tile", "amx_bf16",
         "amx_fp16", "asimd", "bf16", "sve")


def parse_arguments():
    def numbers(text):
        return [int(part) for part in text.split(",")]

    def words(text):
        return text.split(",")

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", nargs="?", help="path of libtessella.so")
    parser.add_argument("--seqlen", type=numbers, default=[512, 1024, 2048, 4096, 8192], metavar="N,...")
    parser.add_argument("--head-dim", type=numbers, default=[64, 128], metavar="D,...")
    parser.add_argument("--dtype", type=words, default=["bf16", "f32"], metavar="bf16,f32,f16")
    parser.add_argument("--mask", type=words, default=["none", "causal"], metavar="none,causal")
    parser.add_argument("--threads", type=numbers, default=[len(os.sched_getaffinity(0))], metavar="T,...")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kernel", help="force this kernel of ours")
    parser.add_argument("--no-amx", action="store_true", help="keep both sides off AMX")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", type=float, default=0.5, help="least seconds of one window")
    parser.add_argument("--quick", action="store_true", help="one round of short windows: a look, not a measurement")
    parser.add_argument("--check-rows", type=int, default=8)
    parser.add_argument("--torch-only", action="store_true")
    parser.add_argument("--long", action="store_true", help="one head, bf16, causal, d 128: 4k to 64k, time and memory")
    parser.add_argument("--json", metavar="PATH")
    parser.add_argument("--commit", default="", help="commit of ours, for the record")
    options = parser.parse_args()
    if not options.library and not options.torch_only:
        parser.error("the path of libtessella.so, or --torch-only")
    if options.quick:
        options.rounds, options.window = 1, 0.05
    return options


def set_environment(options):
    """oneDNN, MKL and OpenMP read theirs when they are loaded: start again with the right one."""
    wanted = {"OMP_NUM_THREADS": str(max(options.threads))}
    if options.no_amx:
        wanted.update(NO_AMX)
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.environ.update(wanted)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    return wanted


def machine(torch, environment):
    fields = {}
    with open("/proc/cpuinfo", encoding="utf-8") as cpuinfo:
        for line in cpuinfo:
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    flags = fields.get("flags", fields.get("Features", "")).split()
    return {"cpu": fields.get("model name", platform.machine()), "cpus": len(os.sched_getaffinity(0)),
            "flags": [flag for flag in FLAGS if flag in flags], "kernel": platform.release(),
            "torch": torch.__version__, "torch_capability": torch.backends.cpu.get_cpu_capability(),
            "environment": environment}


class Problem:
    """q, k, v in torch's own (batch, head, row, dim) memory, seen by us through strides; and both ways to compute it."""

    def __init__(self, torch, library, options, dtype, head_dim, seqlen, mask, threads, heads=None):
        self.torch, self.threads, self.causal = torch, threads, mask == "causal"
        heads = heads or options.heads
        torch_dtype = {"bf16": torch.bfloat16, "f32": torch.float32, "f16": torch.float16}[dtype]
        generator = torch.Generator().manual_seed(seqlen * 1000 + head_dim)
        shape = (options.batch, heads, seqlen, head_dim)
        self.q, self.k, self.v = (torch.randn(shape, generator=generator).to(torch_dtype) for _ in range(3))
        self.out = torch.full(shape, math.nan, dtype=torch_dtype)
        self.flops = 4 * options.batch * heads * seqlen * seqlen * head_dim / (2 if self.causal else 1)
        self.label = {"dtype": dtype, "head_dim": head_dim, "seqlen": seqlen, "mask": mask, "threads": threads}
        self.call = None
        if library:
            import tessella_c
            views = [(t.data_ptr(), dtype, (options.batch, seqlen, heads, head_dim),
                      (heads * seqlen * head_dim, head_dim, seqlen * head_dim, 1))
                     for t in (self.q, self.k, self.v, self.out)]
            kernel = options.kernel
            self.call = tessella_c.Call(library, views, self.causal, threads, kernel)
            if options.no_amx and not kernel:
                kernel = self.call.first_kernel(lambda name: "amx" not in name)
                self.call = tessella_c.Call(library, views, self.causal, threads, kernel)

    def run_torch(self):
        return self.torch.nn.functional.scaled_dot_product_attention(self.q, self.k, self.v, is_causal=self.causal)

    def run_ours(self):
        self.call.run()

    def check(self, num_rows):
        """Ours against torch and against the reference; torch's own rounding allows for no tight bound."""
        self.run_ours()
        difference = (self.out.float() - self.run_torch().float()).abs().max().item()
        report = self.call.check(num_rows, 1)
        bound = 2e-2 if self.q.element_size() == 2 else 2e-5
        report["torch_difference"] = difference
        report["passed"] = report["passed"] and difference <= bound  # False for NaN
        return report


def window(run, least_seconds):
    """Seconds of one call, over as many as fill the window."""
    count, start = 0, time.perf_counter()
    while True:
        run()
        count += 1
        seconds = time.perf_counter() - start
        if seconds >= least_seconds:
            return seconds / count


def measure(problem, options):
    """Median seconds of one call, per side, and the spread (max / min) of the rounds."""
    sides = {"torch": problem.run_torch}
    if problem.call:
        sides["tessella"] = problem.run_ours
    for run in sides.values():
        window(run, options.window / 5)
    times = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, run in sides.items():
            times[name].append(window(run, options.window))
    return {name: {"seconds": statistics.median(t), "spread": max(t) / min(t),
                   "gflops": problem.flops / statistics.median(t) / 1e9} for name, t in times.items()}


def use_threads(torch, threads, all_cpus):
    """One thread stays on one CPU; more may go where they like: OpenMP's keep the affinity they were born with."""
    torch.set_num_threads(threads)
    os.sched_setaffinity(0, {min(all_cpus)} if threads == 1 else all_cpus)


def table(torch, library, options):
    rows, all_cpus = [], os.sched_getaffinity(0)
    print(f"{'dtype':5} {'d':>4} {'N':>6} {'mask':7} {'thr':>3} | {'torch ms':>9} {'GF/s':>6} | {'ours ms':>9} {'GF/s':>6}"
          f" | {'ratio':>6}  kernel, max |ours - torch|")
    # Many threads first: neither side keeps what it learned of a pinned process.
    for threads in sorted(options.threads, reverse=True):
        use_threads(torch, threads, all_cpus)
        for dtype in options.dtype:
            for head_dim in options.head_dim:
                for mask in options.mask:
                    for seqlen in options.seqlen:
                        rows.append(one_row(torch, library, options, dtype, head_dim, seqlen, mask, threads))
    use_threads(torch, max(options.threads), all_cpus)
    return rows


def one_row(torch, library, options, dtype, head_dim, seqlen, mask, threads):
    problem = Problem(torch, library, options, dtype, head_dim, seqlen, mask, threads)
    row = dict(problem.label)
    if problem.call:
        row["check"] = problem.check(options.check_rows)
        row["kernel"], row["workspace_bytes"] = problem.call.plan()
    row.update(measure(problem, options))
    line = f"{dtype:5} {head_dim:4} {seqlen:6} {mask:7} {threads:3} | {row['torch']['seconds'] * 1e3:9.3f} {row['torch']['gflops']:6.0f}"
    if problem.call:
        row["ratio"] = row["torch"]["seconds"] / row["tessella"]["seconds"]
        verdict = "" if row["check"]["passed"] else "  CHECK FAILED"
        line += (f" | {row['tessella']['seconds'] * 1e3:9.3f} {row['tessella']['gflops']:6.0f} | {row['ratio']:6.2f}"
                 f"  {row['kernel']}, {row['check']['torch_difference']:.1e}{verdict}")
    print(line, flush=True)
    return row


def status_bytes(field):
    with open("/proc/self/status", encoding="utf-8") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    return 0


def peak_growth(run):
    """Bytes by which resident memory rises above where it stands now while `run` runs; None where that is not known."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as clear:
            clear.write("5")
    except OSError:
        return None
    before = status_bytes("VmRSS")
    run()
    return max(0, status_bytes("VmHWM") - before)


def long_table(torch, library, options):
    """Time must grow as N^2, memory beyond the tensors must not grow with it."""
    rows, all_cpus = [], os.sched_getaffinity(0)
    for threads in sorted(options.threads, reverse=True):
        use_threads(torch, threads, all_cpus)
        first = None
        print(f"{'N':>6} {'thr':>3} | {'torch s':>8} {'+MiB':>7} | {'ours s':>8} {'GF/s':>6} {'/N^2':>6} {'workspace MiB':>14}"
              f" {'+MiB':>7} | {'ratio':>6}  kernel")
        for seqlen in (4096, 8192, 16384, 32768, 65536):
            problem = Problem(torch, library, options, "bf16", 128, seqlen, "causal", threads, heads=1)
            problem.out.zero_()  # our output is resident before its growth is looked at, torch's is not
            torch_growth = peak_growth(problem.run_torch)
            row = dict(problem.label, torch_growth_bytes=torch_growth)
            text = "" if torch_growth is None else f"{torch_growth / 2**20:7.1f}"
            if problem.call:
                row["growth_bytes"] = peak_growth(problem.run_ours)
                row["kernel"], row["workspace_bytes"] = problem.call.plan()
                row["check"] = problem.check(options.check_rows)
            row.update(measure(problem, options))
            line = f"{seqlen:6} {threads:3} | {row['torch']['seconds']:8.3f} {text:>7}"
            if problem.call:
                seconds = row["tessella"]["seconds"]
                first = first or seconds / seqlen**2
                row["time_per_n2"] = seconds / seqlen**2 / first
                row["ratio"] = row["torch"]["seconds"] / seconds
                growth = "" if row["growth_bytes"] is None else f"{row['growth_bytes'] / 2**20:7.1f}"
                line += (f" | {seconds:8.3f} {row['tessella']['gflops']:6.0f} {row['time_per_n2']:6.2f}"
                         f" {row['workspace_bytes'] / 2**20:14.2f} {growth:>7} | {row['ratio']:6.2f}  {row['kernel']}")
                if not row["check"]["passed"]:
                    line += "  CHECK FAILED"
            print(line, flush=True)
            rows.append(row)
    use_threads(torch, max(options.threads), all_cpus)
    return rows


def summarize(rows):
    """Geometric mean and least of the ratios, per dtype and thread count, and whether every check passed."""
    groups = {}
    for row in rows:
        if "ratio" in row:
            groups.setdefault(f"{row['dtype']} {row['threads']} threads", []).append(row)
    summary = {}
    for name, group in groups.items():
        ratios = [row["ratio"] for row in group]
        worst = min(group, key=lambda row: row["ratio"])
        summary[name] = {"geomean": math.exp(statistics.fmean(map(math.log, ratios))), "min": worst["ratio"],
                         "min_at": {key: worst[key] for key in ("head_dim", "seqlen", "mask")}, "rows": len(group)}
        print(f"{name}: geomean {summary[name]['geomean']:.3f}, min {worst['ratio']:.3f} (d={worst['head_dim']} "
              f"N={worst['seqlen']} {worst['mask']}), {len(group)} rows")
    failed = sum(1 for row in rows if "check" in row and not row["check"]["passed"])
    if groups:
        print(f"checks: {len(rows) - failed} passed, {failed} failed")
    return summary, failed


def main():
    options = parse_arguments()
    environment = set_environment(options)
    import torch  # after its environment is set
    library = None
    if not options.torch_only:
        import tessella_c
        library = tessella_c.Library(os.path.abspath(options.library))
    record = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
              "command": " ".join(sys.argv), "commit": options.commit, "machine": machine(torch, environment),
              "heads": 1 if options.long else options.heads, "batch": options.batch,
              "tessella": library.info() if library else ""}
    m = record["machine"]
    print(f"{m['cpu']}, {m['cpus']} CPUs ({' '.join(m['flags'])})\ntorch {m['torch']} ({m['torch_capability']}), "
          f"{record['date']}, commit {options.commit or 'not given'}\n{record['command']}")
    with torch.inference_mode():
        rows = long_table(torch, library, options) if options.long else table(torch, library, options)
    record["rows"] = rows
    record["summary"], failed = summarize(rows)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
            file.write("\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
