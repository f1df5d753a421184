"""One call from Python: grouped queries, a sliding window that keeps the first keys, and the same by plain NumPy beside it."""

import time

import numpy as np
import tessella

BATCH, SEQLEN, HEADS_Q, HEADS_KV, HEAD_DIM, WINDOW, KEEP = 1, 2048, 8, 2, 64, 256, 4


def plain(q, k, v):
    """Standard attention: the whole matrix of scores in memory."""
    k, v = (np.repeat(t, HEADS_Q // HEADS_KV, axis=2) for t in (k, v))
    scores = np.einsum("bqhd,bkhd->bhqk", q, k, optimize=True) / np.sqrt(HEAD_DIM)
    i, j = np.arange(SEQLEN)[:, None], np.arange(SEQLEN)
    scores[:, :, ~((j <= i) & ((j >= i - WINDOW) | (j < KEEP)))] = -np.inf
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhqk,bkhd->bqhd", probs / probs.sum(-1, keepdims=True), v, optimize=True)


def main():
    rng = np.random.default_rng(0)
    q = rng.standard_normal((BATCH, SEQLEN, HEADS_Q, HEAD_DIM), np.float32)
    k = rng.standard_normal((BATCH, SEQLEN, HEADS_KV, HEAD_DIM), np.float32)
    v = rng.standard_normal((BATCH, SEQLEN, HEADS_KV, HEAD_DIM), np.float32)
    mask = tessella.window(WINDOW, 0) & tessella.keep_first(KEEP)
    print(tessella.explain(q, k, v, mask=mask))

    tessella.attention(q, k, v, mask=mask)  # wakes the threads
    begin = time.perf_counter()
    out = tessella.attention(q, k, v, mask=mask)
    done = time.perf_counter()
    expected = plain(q, k, v)
    print(f"{(done - begin) * 1e3:.1f} ms; plain NumPy {(time.perf_counter() - done) * 1e3:.1f} ms")
    print(f"largest difference {np.abs(out - expected).max():.1e}")
    report = tessella.check(q, k, v, out, mask=mask, num_rows=64)
    print(f"against the float64 reference: {report.max_error:.1e}, allowed {report.tolerance:.1e}")
    return 0 if report.passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
