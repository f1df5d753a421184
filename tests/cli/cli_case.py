"""What tests of the command line share. They are run as X_test.py TESSELLA REPOSITORY [unittest options]."""

import math
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

from array_files import SHAPE, floats, npy, read_npy

TESSELLA, REPOSITORY = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
SAMPLE = REPOSITORY / "examples" / "minilm_layer.safetensors"


def run(*arguments, expect=0, cwd=None, **environment):
    command = [TESSELLA, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env={**os.environ, **environment})
    assert done.returncode == expect, f"exit {done.returncode}, expected {expect}: {arguments}\n{done.stdout}{done.stderr}"
    return done


def expected_attention(q, k, v, shape=SHAPE):
    """One head at a time, in Python's doubles."""
    _, rows, heads, dim = shape
    q, k, v = (struct.unpack(f"<{math.prod(shape)}f", x) for x in (q, k, v))
    at = lambda x, i, h: x[(i * heads + h) * dim : (i * heads + h) * dim + dim]
    out = []
    for i in range(rows):
        for h in range(heads):
            scores = [sum(a * b for a, b in zip(at(q, i, h), at(k, j, h))) / math.sqrt(dim) for j in range(rows)]
            probs = [math.exp(s - max(scores)) for s in scores]
            out += [sum(p * at(v, j, h)[d] for j, p in enumerate(probs)) / sum(probs) for d in range(dim)]
    return out


class CliTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.q, self.k, self.v = (floats(seed) for seed in range(3))

    def write(self, name, data):
        path = self.folder / name
        path.write_bytes(data)
        return path

    def write_npys(self):
        return [self.write(f"{n}.npy", npy(x)) for n, x in zip("qkv", (self.q, self.k, self.v))]

    def check_out(self, path):
        header, data = read_npy(path)
        self.assertEqual(header["shape"], SHAPE)
        for got, expected in zip(struct.unpack("<64f", data), expected_attention(self.q, self.k, self.v)):
            self.assertAlmostEqual(got, expected, places=5)

    def expect_error(self, *arguments, saying, **environment):
        done = run(*arguments, expect=2, **environment)
        self.assertEqual(done.stdout, "")
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertTrue(done.stderr.startswith("tessella: "), done.stderr)
        self.assertIn(saying, done.stderr)
