"""tessella linear: rows times a matrix of weights, out of files."""

import json
import math
import struct
import sys
import unittest

from array_files import entry, floats, npy, npz, read_npy, safetensors
from cli_case import CliTest, run

ROWS, IN, OUT = 6, 16, 10


def numbers(data):
    return struct.unpack(f"<{len(data) // 4}f", data)


def sums(x, w, bias=None):
    """x w^T + bias in Python's doubles, row by row."""
    x, w = numbers(x), numbers(w)
    bias = numbers(bias) if bias else [0] * (len(w) // IN)
    return [[sum(x[i * IN + k] * w[j * IN + k] for k in range(IN)) + bias[j] for j in range(len(bias))]
            for i in range(len(x) // IN)]


class Linear(CliTest):
    def setUp(self):
        super().setUp()
        self.x, self.w, self.bias = floats(1, (ROWS, IN)), floats(2, (OUT, IN)), floats(3, (OUT,))
        self.x_file = self.write("x.npy", npy(self.x, (ROWS, IN)))
        self.w_file = self.write("w.npy", npy(self.w, (OUT, IN)))
        self.out = self.folder / "out.npy"

    def expect_out(self, want, shape):
        header, data = read_npy(self.out)
        self.assertEqual(header["shape"], shape)
        for got, expected in zip(numbers(data), (value for row in want for value in row), strict=True):
            self.assertAlmostEqual(got, expected, places=4)

    def test_bias_and_kernels(self):
        bias = self.write("bias.npy", npy(self.bias, (OUT,)))
        for extra in ((), ("--kernel", "reference.linear"), ("--num-threads", 1), ("--batch-invariant",)):
            done = run("linear", self.x_file, self.w_file, "--bias", bias, "--out", self.out, "--check=0", *extra)
            self.assertIn(f"check   passed: {ROWS} rows against the float64 reference", done.stdout)
            self.expect_out(sums(self.x, self.w, self.bias), (ROWS, OUT))

    def test_leading_axes(self):
        for shape in ((2, 3, IN), (3, 1, 2, IN)):
            x = self.write("axes.npy", npy(self.x, shape))
            residual = self.write("residual.npy", npy(floats(4, (ROWS, OUT)), (*shape[:-1], OUT)))
            run("linear", x, self.w_file, "--residual", residual, "--out", self.out, "--check")
            added = numbers(floats(4, (ROWS, OUT)))
            want = [[value + added[i * OUT + j] for j, value in enumerate(row)]
                    for i, row in enumerate(sums(self.x, self.w))]
            self.expect_out(want, (*shape[:-1], OUT))
        one = self.write("one.npy", npy(self.x[: 4 * IN], (IN,)))
        run("linear", one, self.w_file, "--out", self.out)
        self.expect_out(sums(self.x[: 4 * IN], self.w), (OUT,))
        none = self.write("none.npy", npy(b"", (2, 0, IN)))
        self.assertIn("(2, 0, 10) f32  no elements", run("linear", none, self.w_file, "--check").stdout)

    def test_swiglu_of_named_arrays(self):
        end = len(self.x)
        header = {"x": entry(0, end, (ROWS, IN)), "up": entry(end, end + len(self.w), (OUT, IN))}
        file = self.write("layer.safetensors", safetensors(header, self.x + self.w))
        document = json.loads(run("linear", f"{file}:x", f"{file}:up", "--activation", "swiglu", "--out", self.out,
                                  "--check", "--json", "--explain").stdout)
        half = OUT // 2
        self.expect_out([[a / (1 + math.exp(-a)) * b for a, b in zip(row[:half], row[half:])]
                         for row in sums(self.x, self.w)], (ROWS, half))
        self.assertEqual(document["out"], {"shape": [ROWS, half], "dtype": "f32", "from": str(self.out)})
        self.assertEqual(document["w"]["shape"], [OUT, IN])
        self.assertTrue(document["check"]["passed"])
        self.assertIn("activation=swiglu", document["explain"])

    def test_weights_of_8_bits(self):
        stored = bytes((7 * i) % 120 for i in range(OUT * IN))  # positive, and finite in e4m3
        scale = [2.0 ** (i % 3 - 8) for i in range(OUT)]
        scales = self.write("scale.npy", npy(struct.pack(f"<{OUT}d", *scale), (OUT,), "<f8"))
        whole = struct.pack(f"<{OUT * IN}f", *(byte * scale[i // IN] for i, byte in enumerate(stored)))
        for descr, extra in (("|i1", ()), ("|u1", ("--w-dtype", "i8")), ("|V1", ("--w-dtype", "i8"))):
            w = self.write("w8.npy", npy(stored, (OUT, IN), descr))
            run("linear", self.x_file, w, "--w-scale", scales, "--out", self.out, "--check=0", *extra)
            self.expect_out(sums(self.x, whole), (ROWS, OUT))
        done = run("linear", self.x_file, w, "--w-scale", scales, "--w-dtype", "f8e4m3fn", "--check=0")
        self.assertIn("(10, 16) f8e4m3fn", done.stdout)

    def test_dtypes(self):
        raw = b"".join(self.x[i + 2 : i + 4] for i in range(0, len(self.x), 4))  # bf16 by cutting off
        x = self.write("x16.npy", npy(raw, (ROWS, IN), "|V2"))
        w = self.write("w16.npz", npz({"w": npy(b"".join(self.w[i + 2 : i + 4] for i in range(0, len(self.w), 4)),
                                                (OUT, IN), "|V2")}))
        done = run("linear", x, w, "--dtype", "bf16", "--out", self.out, "--check=0")
        self.assertIn("(6, 10) bf16", done.stdout)
        self.assertIn("bf16 is written raw", done.stderr)
        done = run("linear", x, f"{w}:w", "--dtype", "bf16", "--out-dtype", "f32", "--check=0")
        self.assertIn("(6, 10) f32", done.stdout)
        raw = "has elements of type |V2, expected numbers; raw bf16 wants --dtype bf16"
        self.expect_error("linear", x, w, saying=raw)

    def test_errors(self):
        three = self.write("three.npy", npy(self.x[:12], (3,)))
        bytes_ = self.write("bytes.npy", npy(bytes(OUT * IN), (OUT, IN), "|V1"))
        for arguments, saying in (
            ((self.x_file,), "linear has 1 files, expected two: x and w"),
            ((self.x_file, self.w_file, "--check", 5), "rows are given as --check=5"),
            ((self.x_file, self.w_file, "--activation", "gelu"), "--activation is 'gelu', expected none or swiglu"),
            ((self.x_file, self.w_file, "--w-dtype", "f32"), "--w-dtype is 'f32', expected i8 or f8e4m3fn"),
            ((self.x_file, self.w_file, "--w-dtype", "i8"), "expected bytes, which --w-dtype i8 names"),
            ((self.x_file, self.w_file, "--out-dtype", "i8"), "--out-dtype is 'i8'"),
            ((self.x_file, self.w_file, "--out-dtype", "f16"), "out.dtype is f16, expected f32 = x.dtype"),
            ((self.x_file, three), "w has shape (3), expected two axes, in_features the last"),
            ((three, self.w_file), "w.shape[1] is 16, expected 3 = x.shape[1]; w is (out_features, in_features)"),
            ((self.write("scalar.npy", npy(self.x[:4], ())), self.w_file), "has no axes, expected (..., in_features)"),
            ((self.x_file, bytes_), "raw bytes of w want --w-dtype f8e4m3fn"),
            ((self.x_file, bytes_, "--w-dtype", "i8"), "w_scale is NULL, expected it beside w of i8 or f8e4m3fn"),
            ((self.x_file, self.w_file, "--bias", three), "--bias has shape (3), expected (10) = (w.shape[0])"),
            ((self.x_file, self.w_file, "--residual", three), "has shape (3,), expected (6, 10), that of out"),
            ((self.x_file, self.w_file, "--out", self.w_file), "--out is"),
            ((self.x_file, self.w_file, "--kernel", "reference.merge"), "computes merge, not linear"),
            ((self.x_file, self.w_file, "--kernel", "nobody"), '--kernel is "nobody", expected one of'),
            ((self.x_file, self.w_file, "--num-threads", -1), "--num-threads"),
        ):
            self.expect_error("linear", *arguments, saying=saying)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
