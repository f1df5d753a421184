"""Attention in FP8: q, k and v with outliers, quantised by one function, beside attention over the numbers as they are.

NumPy has float8 from ml_dtypes: `pip install ml_dtypes`.
"""

import numpy as np
import tessella

BATCH, SEQLEN, HEADS_Q, HEADS_KV, HEAD_DIM = 2, 700, 8, 2, 128


def with_outliers(rng, heads):
    """N(0, 1), and one number in a thousand a hundred times as wide, as in FlashAttention-3's paper (arXiv 2407.08608)."""
    shape = (BATCH, SEQLEN, heads, HEAD_DIM)
    return (rng.standard_normal(shape) + 10 * rng.standard_normal(shape) * (rng.random(shape) < 0.001)).astype(np.float32)


def main():
    rng = np.random.default_rng(0)
    q, k, v = (with_outliers(rng, heads) for heads in (HEADS_Q, HEADS_KV, HEADS_KV))
    exact = tessella.attention(q, k, v)
    size = np.sqrt(np.mean(exact**2))
    errors = {}
    for scale in ("tensor", "head", "block", "token"):
        for hadamard in (None, 42):  # the seed of q's and k's signs, which is one
            q8, q_scale = tessella.quantize(q, scale=scale, hadamard=hadamard)
            k8, k_scale = tessella.quantize(k, scale=scale, hadamard=hadamard)
            v8, v_scale = tessella.quantize(v, scale=scale)
            rows = {"block": 128, "token": 1}.get(scale, 0)
            out = tessella.attention(
                q8,
                k8,
                v8,
                q_scale=q_scale,
                k_scale=k_scale,
                v_scale=v_scale,
                scale_block=rows,
                out_dtype="float32",
            )
            errors[scale, hadamard] = np.sqrt(np.mean((out - exact) ** 2)) / size
            print(f"{scale:7}{'Hadamard' if hadamard else '':10}{errors[scale, hadamard]:.3f} of out's size")
    return 0 if errors["head", 42] < 0.7 * errors["tensor", None] and errors["token", 42] < 0.1 else 1


if __name__ == "__main__":
    raise SystemExit(main())
