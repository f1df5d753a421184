#!/usr/bin/env python3
"""tessella_linear beside torch's linear (cuBLAS on a GPU, oneDNN on a CPU): microseconds a call, weights in rotation.

Weights rotate through 400 MB or three matrices, so that no cache holds them; on a GPU calls stand back to back in a
CUDA graph. Ours are checked against float64, over the first and the last copy, before they are timed. "read" is a
plain read of the weights.

examples:
  linear.py                                              # on a GPU if there is one: 8 matrices, 1 to 64 rows
  linear.py --kernels cuda.linear_gemv,cuda.linear_sm90  # by name beside what is chosen
  linear.py --w-dtype int8 --rows 1,8,16
  linear.py --device cpu --shapes 4096x4096,11008x4096 --threads 2
"""

from __future__ import annotations

import argparse
import ctypes as c
import functools
import json
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from contest.decode.read_only import BLOCKS_EACH, ReadOnly
from tessella import _declarations as d
from tessella._library import library, require

# Rows and columns of the weights of Llama2-7B's layers and of CodeLlama-34B's.
SHAPES = "12288x4096,4096x4096,11008x4096,4096x11008,10240x8192,8192x8192,44032x8192,8192x22016"
ROTATED_BYTES = 400e6
ROUNDS = 3
OURS = "tessella"
EARLY = f"{OURS}, weights ready"
CODES = {
    torch.float32: d.F32,
    torch.bfloat16: d.BF16,
    torch.float16: d.F16,
    torch.int8: d.I8,
    torch.float8_e4m3fn: d.F8E4M3FN,
}


def tensor_of(tensor: torch.Tensor) -> d.Tensor:
    made = d.Tensor(data=tensor.data_ptr(), dtype=CODES[tensor.dtype], ndim=tensor.ndim)
    made.device_type = d.CUDA if tensor.is_cuda else d.CPU
    made.device_id = tensor.device.index or 0
    made.shape[: tensor.ndim] = list(tensor.shape)
    made.strides[: tensor.ndim] = list(tensor.stride())
    return made


class Layer:
    """x, copies of w in rotation, and out."""

    def __init__(self, shape: tuple[int, int], rows: int, given: argparse.Namespace) -> None:
        dtype = getattr(torch, given.dtype)
        w_dtype = getattr(torch, given.w_dtype) if given.w_dtype else dtype
        self.device, (out_features, in_features) = given.device, shape
        self.x = torch.randn(rows, in_features, device=given.device).to(dtype)
        self.scale = None
        size = in_features**-0.5
        num_bytes = out_features * in_features * w_dtype.itemsize
        self.w = torch.empty(max(3, math.ceil(ROTATED_BYTES / num_bytes)), *shape, dtype=w_dtype, device=given.device)
        for w in self.w:
            normal = torch.randn(shape, device=given.device)
            if w_dtype == dtype:
                w.copy_(normal * size)
            else:
                w.copy_((normal * 40).clamp(-127, 127).to(w_dtype))
        if w_dtype != dtype:
            self.scale = torch.full((out_features,), size / 40, device=given.device)
        self.out = torch.empty(rows, out_features, dtype=dtype, device=given.device)
        self.num_bytes = num_bytes

    def error(self, copy: int) -> float:
        """Of out, relative to the largest value."""
        w = self.w[copy].double() * (1 if self.scale is None else self.scale.double()[:, None])
        exact = self.x.double() @ w.T
        return float((self.out.double() - exact).abs().max() / exact.abs().max())


class Planned:
    """Runs of a plan over the copies; tensors and workspace stay where they are."""

    def __init__(self, layer: Layer, kernel: str, weights_ready: bool, threads: int) -> None:
        options = d.LinearOptions(struct_size=c.sizeof(d.LinearOptions), weights_ready=int(weights_ready))
        options.num_threads = threads
        options.kernel = kernel.encode() or None
        self._keep: list[Any] = [options]
        self._calls = []
        scale = None if layer.scale is None else tensor_of(layer.scale)
        for w in layer.w:
            tensors = [tensor_of(layer.x), tensor_of(w), tensor_of(layer.out), scale]
            args = d.LinearArgs(struct_size=c.sizeof(d.LinearArgs))
            args.x, args.w, args.out = (c.pointer(tensor) for tensor in tensors[:3] if tensor is not None)
            if scale is not None:
                args.w_scale = c.pointer(scale)
            self._keep += [tensors, args]
            at = (c.cast(c.pointer(struct), c.c_void_p) for struct in (args, options))
            self._calls.append(d.Call(c.sizeof(d.Call), d.LINEAR, *at))
        self._plan = d.Plan()
        require(library.tessella_plan_make(self._calls[0], c.byref(self._plan)))
        state, scratch = c.c_size_t(), c.c_size_t()
        require(library.tessella_plan_workspace(self._plan, c.byref(state), c.byref(scratch)))
        memory = [torch.zeros(size.value + 64, dtype=torch.uint8, device=layer.device) for size in (state, scratch)]
        self._keep.append(memory)
        aligned = [(tensor.data_ptr() + 63) // 64 * 64 for tensor in memory]
        self._workspace = d.Workspace(aligned[0], state.value, aligned[1], scratch.value)
        self._is_on_gpu = layer.device == "cuda"
        self.kernel = library.tessella_plan_kernel(self._plan).decode()

    def __call__(self, copy: int) -> None:
        stream = torch.cuda.current_stream().cuda_stream if self._is_on_gpu else None
        require(library.tessella_plan_run(self._plan, self._calls[copy], self._workspace, stream))


class Rotation:
    """Calls over every copy in turn; on a GPU one CUDA graph of them."""

    def __init__(self, run: Callable[[int], object], num_copies: int, device: str) -> None:
        self.num_calls = math.ceil(20 / num_copies) * num_copies
        self.times: list[float] = []
        self._device = device
        if device == "cpu":
            self._replay: Callable[[], object] = lambda: [run(idx % num_copies) for idx in range(num_copies)]
            self.num_calls = num_copies
            return
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run(0)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for idx in range(self.num_calls):
                run(idx % num_copies)
        self._replay = graph.replay

    def time(self, seconds: float) -> float:
        """Seconds of one call, over as many replays as fill the window."""
        if self._device == "cuda":
            torch.cuda.synchronize()
        begin, count = time.perf_counter(), 0
        while count == 0 or time.perf_counter() - begin < seconds:
            self._replay()
            if self._device == "cuda" and count % 8 == 7:
                torch.cuda.synchronize()
            count += 1
        if self._device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - begin) / count / self.num_calls


@functools.cache
def read_only() -> ReadOnly:
    return ReadOnly()


def readers(layer: Layer) -> dict[str, Callable[[int], object]]:
    if layer.device == "cuda":
        return {
            f"read {blocks}": lambda copy, blocks=blocks: read_only()(layer.w[copy], layer.num_bytes, blocks)
            for blocks in BLOCKS_EACH
        }
    words = layer.w.view(torch.uint8).view(layer.w.shape[0], -1).view(torch.int64)
    return {"read": lambda copy: words[copy].sum()}


def contestants(layer: Layer, given: argparse.Namespace) -> dict[str, Callable[[int], object]]:
    runs: dict[str, Callable[[int], object]] = {}
    if layer.scale is None:

        def torch_linear(copy: int) -> None:
            torch.nn.functional.linear(layer.x, layer.w[copy])

        runs["torch"] = torch_linear
    runs[OURS] = Planned(layer, "", False, given.threads)
    if layer.device == "cuda":
        runs[EARLY] = Planned(layer, "", True, given.threads)
    for kernel in given.kernels.split(",") if given.kernels else ():
        for early in (False, True) if layer.device == "cuda" else (False,):
            try:
                runs[kernel + (", weights ready" if early else "")] = Planned(layer, kernel, early, given.threads)
            except Exception as reason:  # it does not take such a call: the others go on
                print(f"note: {kernel}: {reason}")
    return runs


def measure(shape: tuple[int, int], rows: int, given: argparse.Namespace) -> dict[str, Any]:
    layer = Layer(shape, rows, given)
    runs = contestants(layer, given)
    for name, run in runs.items():
        if name == "torch":
            continue
        for copy in (0, len(layer.w) - 1):
            layer.out.fill_(math.nan)
            run(copy)
            error = layer.error(copy)
            if not error < 0.02:
                raise SystemExit(f"{shape} {rows} rows: {name} is wrong, error {error}")
    kernels = {name: run.kernel for name, run in runs.items() if isinstance(run, Planned)}
    runs |= readers(layer)
    rotations = {name: Rotation(run, len(layer.w), layer.device) for name, run in runs.items()}
    for round_idx in range(-1, ROUNDS):
        for rotation in rotations.values():
            took = rotation.time(given.seconds if round_idx >= 0 else given.seconds / 5)
            if round_idx >= 0:
                rotation.times.append(took)
    middle = {name: statistics.median(rotation.times) * 1e6 for name, rotation in rotations.items()}
    read = min(value for name, value in middle.items() if name.startswith("read"))
    took = {name: value for name, value in middle.items() if not name.startswith("read")}
    return {"shape": shape, "rows": rows, "bytes": layer.num_bytes, "read": read, "us": took, "kernels": kernels}


def mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def report(cells: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(name for cell in cells for name in cell["us"]))
    print(f"| [out, in] | rows | read | {' | '.join(names)} | kernel |")
    print("|" + "---|" * (len(names) + 4))
    for cell in cells:
        times = " | ".join(f"{cell['us'][name]:.1f}" if name in cell["us"] else "" for name in names)
        print(f"| {list(cell['shape'])} | {cell['rows']} | {cell['read']:.1f} | {times} | {cell['kernels'][OURS]} |")
    for name in names:
        beside = [cell["us"]["torch"] / cell["us"][name] for cell in cells if {name, "torch"} <= cell["us"].keys()]
        large = [cell for cell in cells if name in cell["us"] and cell["bytes"] >= 100e6 and cell["rows"] <= 16]
        of_read = [cell["read"] / cell["us"][name] for cell in large]
        if beside and name != "torch":
            print(f"{name}: {mean(beside):.3f} of torch's speed, {len(beside)} cells, worst {min(beside):.3f}")
        if of_read:
            print(f"{name}: {mean(of_read):.3f} of the read rate from 100 MB, to 16 rows, worst {min(of_read):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cpu", "cuda"), default=default)
    parser.add_argument("--shapes", default=SHAPES, help="OUTxIN,...")
    parser.add_argument("--rows", default="1,2,4,8,16,32,64")
    parser.add_argument("--dtype", default="bfloat16", help="of x, as torch calls it")
    parser.add_argument("--w-dtype", default="", help="default: that of x; int8, float8_e4m3fn")
    parser.add_argument("--kernels", default="", help="measured by name too")
    parser.add_argument("--threads", type=int, default=0, help="CPU; 0: all")
    parser.add_argument("--seconds", type=float, default=0.1, help="of each of three windows")
    parser.add_argument("--json", help="a file for what was measured")
    given = parser.parse_args()
    if given.device == "cpu" and given.threads:
        torch.set_num_threads(given.threads)
    cells = []
    for shape in given.shapes.split(","):
        out_features, in_features = map(int, shape.split("x"))
        cells += [measure((out_features, in_features), int(rows), given) for rows in given.rows.split(",")]
    report(cells)
    if given.json:
        with open(given.json, "w") as file:
            json.dump(cells, file)


if __name__ == "__main__":
    main()
