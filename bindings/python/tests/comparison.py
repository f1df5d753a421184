"""Holds a result against the oracle, as the project's promise has it: NaN and inf first, then twice the plain error."""

import numpy as np
import oracle

_UNIT = {"float64": 2**-53, "float32": 2**-24, "float16": 2**-11, "bfloat16": 2**-8}


def random(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def assert_matches(out, q, k, v, lse=None, factor=2, **options):
    """out, q, k, v: bshd or packed. options: the oracle's."""
    expected, expected_lse = oracle.attention(q, k, v, **options)
    plain, plain_lse = oracle.attention(q, k, v, plain_dtype=q.dtype, **options)
    unit = _UNIT[q.dtype.name]
    floor = 8 * unit * max(1, np.abs(expected).max(initial=0)) if q.dtype != np.float64 else 1e-12
    _assert_close(np.asarray(out, np.float64), expected, factor * np.abs(plain - expected).max(initial=0) + floor)
    if lse is not None:
        _assert_close(np.asarray(lse, np.float64), expected_lse, 1e-5 * max(1, _largest(expected_lse)))


def _largest(values):
    return np.abs(values[np.isfinite(values)]).max(initial=0)


def _assert_close(got, expected, tolerance):
    assert got.shape == expected.shape
    assert not np.isnan(got).any()
    finite = np.isfinite(expected)
    assert (np.isfinite(got) == finite).all()
    assert (got[~finite] == expected[~finite]).all()
    error = np.abs(got[finite] - expected[finite]).max(initial=0)
    assert error <= tolerance, f"largest error {error}, tolerance {tolerance}"
