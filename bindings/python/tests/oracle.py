"""Attention in float64 by NumPy, a matrix of scores at a time, straight from the meaning of each option in tessella.h.

plain_dtype gives the *plain* computation instead, whose error is the measure of ours: fp32 from the given inputs, P
rounded to that dtype before it meets V, the output rounded once.
"""

import numpy as np


def attention(q, k, v, *, cu_seqlens_q=None, cu_seqlens_kv=None, **options):
    """q, k, v: (batch, seqlen, heads, head_dim), packed (total, heads, head_dim); lse: (batch, heads, seqlen)."""
    dtype = np.float32 if options.get("plain_dtype") is not None else np.float64
    out = np.zeros((*q.shape[:-1], v.shape[-1]), dtype)
    lse = np.full(np.swapaxes(q[..., 0], -1, -2).shape, -np.inf, dtype)
    num_sequences = len(q) if cu_seqlens_q is None else len(cu_seqlens_q) - 1
    for b in range(num_sequences):
        rows = b if cu_seqlens_q is None else slice(cu_seqlens_q[b], cu_seqlens_q[b + 1])
        keys = b if cu_seqlens_kv is None else slice(cu_seqlens_kv[b], cu_seqlens_kv[b + 1])
        lse_rows = b if cu_seqlens_q is None else (slice(None), rows)
        out[rows], lse[lse_rows] = _sequence(q[rows], k[keys], v[keys], b, rows, keys, options, dtype)
    return out, lse


def _sequence(q, k, v, b, rows, keys, options, dtype):
    heads, slots_q = q.shape[1], q.shape[0]
    first = options["leftpad_kv"][b] if "leftpad_kv" in options else 0
    len_q = options["seqlens_q"][b] if "seqlens_q" in options else slots_q
    last = options["seqlens_kv"][b] if "seqlens_kv" in options else k.shape[0]
    slots = slice(first, last)
    len_kv = last - first
    q, k, v = (np.asarray(t, dtype) for t in (q[:len_q], k[slots], v[slots]))
    group = heads // k.shape[1]
    k, v = (np.repeat(t, group, axis=1) for t in (k, v))

    i, j = np.arange(len_q)[:, None], np.arange(len_kv)[None, :]
    p = i + len_kv - len_q  # the key at which a query stands
    scores = dtype(options.get("scale", q.shape[-1] ** -0.5)) * np.einsum("qhd,khd->hqk", q, k)
    if "softcap" in options:
        scores = options["softcap"] * np.tanh(scores / options["softcap"])

    def seen(operand, rows=slice(len_q), slots=slots):
        operand = operand.reshape((1,) * (4 - operand.ndim) + operand.shape)
        whole = operand[b if len(operand) > 1 else 0]
        rows = rows if whole.shape[-2] > 1 else slice(None)
        slots = slots if whole.shape[-1] > 1 else slice(None)
        return whole[:, rows][..., slots]

    if "bias" in options:
        scores = scores + seen(np.asarray(options["bias"], dtype))
    if "alibi_slopes" in options:
        slopes = options["alibi_slopes"]
        slopes = slopes[b] if slopes.ndim == 2 else slopes
        scores = scores - slopes[:, None, None] * abs(p - j)

    lower, upper = np.zeros_like(p), np.full_like(p, len_kv)
    left, right = options.get("window", (-1, -1))
    if left >= 0:
        lower = np.maximum(lower, p - left)
    if right >= 0:
        upper = np.minimum(upper, p + right + 1)
    if "chunk" in options:
        lower = np.maximum(lower, p // options["chunk"] * options["chunk"])
        upper = np.minimum(upper, np.where(p < 0, 0, (p // options["chunk"] + 1) * options["chunk"]))
    visible = (j < upper) & ((j >= lower) | (j < options.get("keep_first", 0)))
    if options.get("causal_top_left"):
        visible &= j <= i
    if "prefix" in options:
        visible &= (j < options["prefix"][b]) | (j <= p)
    visible = np.broadcast_to(visible, scores.shape).copy()
    if "document" in options:
        ids_q, ids_kv = options["document"]
        visible &= ids_q[rows][:len_q, None] == ids_kv[keys][None, slots]
    if "dense" in options:
        visible &= seen(options["dense"])
    if "block_map" in options:
        tiles, block_q, block_kv = options["block_map"]
        visible &= seen(tiles, np.arange(len_q) // block_q, np.arange(first, last) // block_kv)
    if "key_ranges" in options:
        visible &= _held(options["key_ranges"], b, rows, slice(len_q), np.arange(first, last))
    if "query_ranges" in options:
        visible &= np.swapaxes(_held(options["query_ranges"], b, keys, slots, np.arange(len_q)), -1, -2)
    scores = np.where(visible, scores, -np.inf)

    sink = np.asarray(options["sink"], dtype)[:, None] if "sink" in options else np.full((heads, 1), -np.inf, dtype)
    most = np.maximum(scores.max(axis=-1, initial=-np.inf), sink)
    most = np.where(np.isfinite(most), most, 0)
    weights = np.exp(scores - most[..., None])
    total = weights.sum(-1) + np.exp(sink - most)
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = most + np.log(total)
        probs = np.where(total[..., None] > 0, weights / total[..., None], 0)
    if "dropout" in options:
        kept = np.array([_kept(b * heads + h, len_q, len_kv, options) for h in range(heads)])
        probs = probs * kept * 65536 / (65536 - _dropped(options))
    if options.get("plain_dtype") is not None:
        probs = probs.astype(options["plain_dtype"]).astype(dtype)
    out = np.zeros((slots_q, heads, v.shape[-1]), dtype)
    out[:len_q] = np.einsum("hqk,khd->qhd", probs, v)
    if options.get("plain_dtype") is not None:
        out = out.astype(options["plain_dtype"]).astype(dtype)
    padded = np.full((heads, slots_q), -np.inf, dtype)
    padded[:, :len_q] = lse
    return out, padded


def _held(ranges, b, rows, valid, indices):
    """(heads, rows, indices): which indices the ranges of each row hold. rows: a slice of packed rows, or a batch."""
    ranges = ranges.reshape((1,) * (5 - ranges.ndim) + ranges.shape)
    of_sequence = ranges[0][:, rows] if isinstance(rows, slice) else ranges[b if len(ranges) > 1 else 0]
    start, end = (of_sequence[:, valid, :, at, None] for at in (0, 1))
    return ((start <= indices) & (indices < end)).any(axis=2)


def _dropped(options):
    """The entries of 65536 that dropout takes: neither none nor all."""
    return min(max(int(options["dropout"] * 65536 + 0.5), 1), 65535)


def _kept(head_idx, len_q, len_kv, options):
    """The keep-mask of one head: 16 bits of Philox4x32-7 an entry, as portable/dropout.hpp lays them out."""
    seed, offset = options.get("seed", 0), options.get("offset", 0)
    i, j = np.meshgrid(np.arange(len_q), np.arange(len_kv), indexing="ij")
    row, col = i & 15, j & 15
    mask = np.uint64(0xFFFFFFFF)
    counter = [
        (j >> 4) * 32 + (row & 7) * 4 + ((col & 7) >> 1),
        i >> 4,
        np.full_like(i, head_idx),
        np.full_like(i, (offset + (offset >> 32) * 0x9FB21C65) & 0xFFFFFFFF),
    ]
    counter = [np.asarray(word, np.uint64) & mask for word in counter]
    keys = [seed & 0xFFFFFFFF, (seed >> 32) ^ (offset >> 32)]
    for _ in range(7):
        a, b = np.uint64(0xD2511F53) * counter[0], np.uint64(0xCD9E8D57) * counter[2]
        counter = [
            (b >> np.uint64(32)) ^ counter[1] ^ np.uint64(keys[0]),
            b & mask,
            (a >> np.uint64(32)) ^ counter[3] ^ np.uint64(keys[1]),
            a & mask,
        ]
        keys = [keys[0] + 0x9E3779B9 & 0xFFFFFFFF, keys[1] + 0xBB67AE85 & 0xFFFFFFFF]
    words = np.choose((row >> 3) | (col >> 3) << 1, counter)
    bits = np.where(col & 1, words >> np.uint64(16), words & np.uint64(0xFFFF))
    return bits >= _dropped(options)
