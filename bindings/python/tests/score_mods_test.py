"""The sources of docs/score_mod.md, compiled for the host as they stand, beside their formulas in NumPy, and gradients
beside finite differences."""

import ctypes
import pathlib
import re
import shutil
import subprocess

import numpy as np
import pytest

PAGE = pathlib.Path(__file__).parents[3] / "docs/score_mod.md"
HEADS, LENGTH = 4, 300
# What a kernel gives a source beside its parameters.
PRELUDE = """
#include <math.h>
struct Arrays {
  const void* const* all;
  const float* f32(int n) const { return static_cast<const float*>(all[n]); }
  const int* i32(int n) const { return static_cast<const int*>(all[n]); }
  const bool* boolean(int n) const { return static_cast<const bool*>(all[n]); }
};
"""
# A modification's result and parameters, and the call that the test makes.
SIGNATURES = {
    "score_mod": ("float", "float score, int b, int h, int q, int k, float q_minus_k", "score, 0, h, q, k, q - k"),
    "score_mod_gradient": (
        "float",
        "float score, float d_score, int b, int h, int q, int k, float q_minus_k",
        "score, d_score, 0, h, q, k, q - k",
    ),
    "mask_mod": ("bool", "int b, int h, int q, int k", "0, h, q, k"),
}


def sources():
    """The page's strings by their names."""
    if not PAGE.is_file():
        pytest.skip("docs/score_mod.md is not beside the tests")
    names = {}
    for snippet in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S):
        if "import" not in snippet:
            exec(snippet, names)
    return {name: text for name, text in names.items() if isinstance(text, str)}


def compiled(kind, source, folder):
    """The source as a function of arrays: score, d_score, h, q, k, and its own arrays."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler is found")
    result, parameters, arguments = SIGNATURES[kind]
    code = f"""{PRELUDE}
static {result} mod({parameters}, const Arrays& arrays) {{
{source}
}}
extern "C" void run(long count, const float* scores, const float* d_scores, const int* hs, const int* qs, const int* ks,
                    const void* const* all, float* out) {{
  for (long i = 0; i < count; ++i) {{
    const float score = scores[i], d_score = d_scores[i];
    const int h = hs[i], q = qs[i], k = ks[i];
    out[i] = mod({arguments}, Arrays{{all}});
    (void)score, (void)d_score;
  }}
}}
"""
    path = folder / "mod.so"
    command = [compiler, "-std=c++20", "-O1", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(path)]
    subprocess.run(command, input=code, text=True, check=True)
    function = ctypes.CDLL(str(path)).run

    def run(score, d_score, h, q, k, arrays):
        score, d_score, h, q, k = np.broadcast_arrays(score, d_score, h, q, k)
        given = [
            np.ascontiguousarray(a, t) for a, t in ((score, "f4"), (d_score, "f4"), (h, "i4"), (q, "i4"), (k, "i4"))
        ]
        pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
        out = np.empty(given[0].shape, np.float32)
        function(ctypes.c_long(out.size), *(a.ctypes.data_as(ctypes.c_void_p) for a in given), pointers, out.ctypes)
        return out

    return run


def t5_buckets(q, k, buckets, last, is_causal):
    """relative_position_bucket of T5 (arXiv 1910.10683), as its authors' code has it."""
    relative = k - q
    offset = 0
    if is_causal:
        distance = -np.minimum(relative, 0)
    else:
        buckets //= 2
        offset = (relative > 0) * buckets
        distance = np.abs(relative)
    exact = buckets // 2
    with np.errstate(divide="ignore"):
        far = np.log(distance.astype(np.float32) / np.float32(exact)) / np.log(np.float32(last) / np.float32(exact))
    far = exact + np.nan_to_num(far * np.float32(buckets - exact), neginf=0).astype(int)
    return offset + np.where(distance < exact, distance, np.minimum(far, buckets - 1))


RNG = np.random.default_rng(3)
PER_HEAD = RNG.uniform(0.5, 2, HEADS).astype(np.float32)
BIASES = RNG.standard_normal((HEADS, 32)).astype(np.float32)
SIZES = np.array([32, 128], np.int32)
DISTANCES = RNG.standard_normal((HEADS, 2 * 40 + 1)).astype(np.float32)
CAP = np.array([1.5], np.float32)
# Name: its arrays, and the formula of (score, h, q, k).
FORMULAS = {
    "alibi": ([PER_HEAD], lambda s, h, q, k: s - PER_HEAD[h] * abs(q - k)),
    "t5_bias": ([BIASES, SIZES], lambda s, h, q, k: s + BIASES[h, t5_buckets(q, k, 32, 128, False)]),
    "t5_causal_bias": ([BIASES, SIZES], lambda s, h, q, k: s + BIASES[h, t5_buckets(q, k, 32, 128, True)]),
    "distance_bias": (
        [DISTANCES, np.array([40], np.int32)],
        lambda s, h, q, k: s + DISTANCES[h, 40 + np.clip(q - k, -40, 40)],
    ),
    "soft_cap": ([CAP], lambda s, h, q, k: CAP[0] * np.tanh(s / CAP[0])),
    "head_soft_cap": ([PER_HEAD], lambda s, h, q, k: PER_HEAD[h] * np.tanh(s / PER_HEAD[h])),
    "temperature": ([PER_HEAD], lambda s, h, q, k: s * PER_HEAD[h]),
    "log_length": (
        [np.array([64], np.int32)],
        lambda s, h, q, k: np.where(q < 64, s, s * np.log(q + 1.0) / np.log(64.0)),
    ),
}
MASKS = {
    "every_other": ([], lambda h, q, k: (q - k) % 2 == 0),
    "same_row_or_column": ([np.array([16], np.int32)], lambda h, q, k: (q // 16 == k // 16) | (q % 16 == k % 16)),
}


def cells():
    """A score for each head, query and key, and where each lies."""
    h, q, k = np.ogrid[:HEADS, :LENGTH:3, :LENGTH]
    return RNG.uniform(-4, 4, (HEADS, q.size, LENGTH)), h, q, k


def test_every_source_has_a_formula():
    given = {name for name in sources() if not name.endswith("_gradient")}
    assert given == {*FORMULAS, *MASKS}


@pytest.mark.parametrize("name", FORMULAS)
def test_score_mods(name, tmp_path):
    arrays, formula = FORMULAS[name]
    score, h, q, k = cells()
    got = compiled("score_mod", sources()[name], tmp_path)(score, 0, h, q, k, arrays)
    np.testing.assert_allclose(got, formula(score, h, q, k), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("name", FORMULAS)
def test_gradients(name, tmp_path):
    arrays, formula = FORMULAS[name]
    score, h, q, k = cells()
    d_score = RNG.standard_normal(score.shape)
    got = compiled("score_mod_gradient", sources()[f"{name}_gradient"], tmp_path)(score, d_score, h, q, k, arrays)
    slope = (formula(score + 1e-3, h, q, k) - formula(score - 1e-3, h, q, k)) / 2e-3
    np.testing.assert_allclose(got, d_score * slope, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MASKS)
def test_mask_mods(name, tmp_path):
    arrays, formula = MASKS[name]
    _, h, q, k = cells()
    got = compiled("mask_mod", sources()[name], tmp_path)(np.zeros((HEADS, 1, 1)), 0, h, q, k, arrays)
    assert (got == np.broadcast_to(formula(h, q, k), got.shape)).all()
