"""append: new keys and values go into a cache, with rotary embeddings."""

from __future__ import annotations

import math
from typing import Any

from . import _declarations as d
from ._arrays import Slot, require_array
from ._call import is_swapped
from ._cancel import Cancel
from ._errors import Error, InvalidArgument, name_function
from ._fields import cache_code
from ._kinds import dlpack_stream, kind_of, stream_handle
from ._operation_call import OperationCall
from ._scalars import integer, switch


def append(
    k_new: Any,
    v_new: Any,
    k: Any,
    v: Any,
    seqlens_kv: Any,
    *,
    page_table: Any = None,
    cache_batch_idx: Any = None,
    leftpad_kv: Any = None,
    seqlens_new: Any = None,
    cu_seqlens_new: Any = None,
    rotary: tuple[Any, Any] | None = None,
    rotary_interleaved: bool = False,
    rotary_offsets: Any = None,
    q: Any = None,
    q_out: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
    scale_block: int = 0,
    kv_dtype: Any = None,
    layout: str = "bshd",
    kernel: str | None = None,
    num_sms: int = 0,
    num_threads: int = 0,
    check_device_values: bool = False,
    cancel: Cancel | None = None,
    stream: Any = None,
) -> Any:
    """Writes new keys and values into a cache, k and q rotated on their way.

    The new rows of a sequence become rows [seqlens_kv - new, seqlens_kv) of its cache: seqlens_kv counts them, and the
    attention that follows takes the same array. Nothing else of the caches is touched, whatever it holds.

    Args:
        k_new, v_new: arrays of the kinds that `attention` takes, (batch, new, heads_kv, head_dim), packed (total,
            heads_kv, head_dim); float64, float32, bfloat16 or float16. Either may be None, and then its cache is.
        k, v: the caches, written: (slots, seqlen_kv, heads_kv, head_dim), or with page_table pools (num_pages,
            page_size, heads_kv, head_dim). Their dtype is that of the new rows, or, beside float32, bfloat16 and
            float16, float8_e4m3fn, int8 or int4 (kv_dtype): then rows are quantised on their way.
        seqlens_kv: (batch) int32, valid lengths after the append, left padding included.
        page_table: (batch, pages) int32: row r of a sequence is in page page_table[b, r // page_size].
        cache_batch_idx: (batch) int32: sequence b has slot cache_batch_idx[b] of the caches. Not beside page_table.
        leftpad_kv: (batch) int32: so many first rows are padding.
        seqlens_new: (batch) int32: so many rows of a sequence are new, its first ones; None = all.
        cu_seqlens_new: (batch + 1) int32, of packed k_new, v_new and q.
        rotary: (cos, sin), each (positions, rotary_dim / 2), float32 or the dtype of the new rows. The first rotary_dim
            columns of k_new and q are rotated by the angles of the row's position (RoFormer, arXiv 2104.09864).
        rotary_interleaved: columns 2j and 2j + 1 turn together (GPT-J); else j and j + rotary_dim / 2 (GPT-NeoX).
        rotary_offsets: (batch) int32: the position of the row that goes to row r is r - leftpad_kv + rotary_offsets.
        q: (batch, new, heads_q, head_dim), packed (total, heads_q, head_dim): rotated by the same positions.
        q_out: what q is written to, rotated; it may be q itself. Made when absent.
        k_scale, v_scale: float32, of quantised caches, as `attention` takes them. With scale_block 0 they are given,
            (slots or num_pages, 1, heads_kv), each axis 1 or full and leading ones left out. With scale_block 1
            they are (slots or num_pages, rows, heads_kv), and those of the new rows are written.
        scale_block: 0: rows are stored as x / scale, rounded to nearest even and kept within 448, 127 or 7; 1: the
            scale of each row and head is computed too, from its largest number. tessella.h says what becomes of NaN,
            infinities and rows of zeros.
        kv_dtype: of k and v that are arrays of uint8, what their bytes are, as for `attention`.
        layout: "bshd", as written here, or "bhsd": arrays with heads have them before the rows.
        kernel: a name of kernels(); None = automatic.
        num_sms: GPU, 0 = all.
        num_threads: CPU, 0 = all that the process may use.
        check_device_values: GPU: waits, and checks lengths and pages as on the CPU. Else rows without a place in the
            cache are not written there, and positions are clamped.
        cancel: a tessella.Cancel, by which another thread ends the call.
        stream: as for `attention`.

    Returns:
        q_out where q is given, else None.

    Raises:
        As `attention`.
    """
    try:
        swapped = is_swapped(layout)
        arrays = {
            "k_new": k_new,
            "v_new": v_new,
            "k": k,
            "v": v,
            "seqlens_kv": seqlens_kv,
            "page_table": page_table,
            "cache_batch_idx": cache_batch_idx,
            "leftpad_kv": leftpad_kv,
            "seqlens_new": seqlens_new,
            "cu_seqlens_new": cu_seqlens_new,
            **rotary_arrays(rotary),
            "rotary_offsets": rotary_offsets,
            "q": q,
            "q_out": q_out,
            "k_scale": k_scale,
            "v_scale": v_scale,
        }
        first = k_new if k_new is not None else v_new
        if first is None:
            raise InvalidArgument("k_new and v_new are None, expected one of them or both")
        require_array("k_new" if k_new is not None else "v_new", first)
        kind = kind_of(first)
        handle = stream_handle(stream, first, kind) if kind.is_on_gpu(first) else None
        scale_block = integer("scale_block", scale_block)
        scales = ("k_scale", "v_scale") if scale_block else ()
        for name in ("k", "v", "q_out", *scales):
            if arrays[name] is not None:
                require_array(name, arrays[name])
                kind_of(arrays[name]).require_writable(name)
        call = AppendCall()
        call.read(arrays, swapped, dlpack_stream(handle))
        call.set_quantization(scale_block, kv_dtype)
        if q is not None and q_out is None:
            slot = call.slots["q"]
            arrays["q_out"] = kind.empty("q_out", slot.shape, slot.tensor.dtype, q)
            call.read({"q_out": arrays["q_out"]}, swapped, call.dlpack_stream)
        call.options.rotary_interleaved = switch("rotary_interleaved", rotary_interleaved)
        call.options.check_device_values = switch("check_device_values", check_device_values)
        call.complete(kernel, num_sms, num_threads, cancel, handle)
    except (Error, TypeError) as error:
        name_function(error, "append")
        raise
    written = (k, v, *(arrays[name] for name in scales))
    return kind.results((arrays["q_out"], *written), (q_out, *written), False)


def rotary_arrays(rotary: Any) -> dict[str, Any]:
    """cos and sin by their names in C."""
    if rotary is None:
        return {}
    if not isinstance(rotary, (tuple, list)) or len(rotary) != 2:
        raise TypeError(f"rotary is {type(rotary).__name__}, expected a pair (cos, sin)")
    return {"rotary_cos": rotary[0], "rotary_sin": rotary[1]}


class AppendCall(OperationCall):
    """The structs of one call."""

    function = "append"
    rows = ("k_new", "v_new", "k", "v", "q", "q_out")

    def __init__(self, slot_type: type[Slot] = Slot) -> None:
        super().__init__(d.AppendArgs, d.AppendOptions, slot_type)

    def set_quantization(self, scale_block: int, kv_dtype: Any) -> None:
        """Says what the bytes of k and v are, when they are read, and whose scales are computed."""
        self.options.scale_block = scale_block
        if kv_dtype is None:
            return
        code = cache_code("kv_dtype", kv_dtype)
        for name in ("k", "v"):
            if name in self.slots:
                self.slots[name].view_as(code)

    def work(self) -> tuple[d.Tensor, int]:
        """The new rows."""
        new = [self.slots[name] for name in ("k_new", "v_new", "q") if name in self.slots]
        return new[0].tensor, sum(math.prod(slot.shape) for slot in new)
