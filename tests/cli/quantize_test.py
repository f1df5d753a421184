"""tessella quantize: rows of a file as elements of 8 bits with their scales."""

import json
import math
import struct
import sys
import unittest
import zipfile

from array_files import floats, npy, npz, read_npy
from cli_case import SAMPLE, CliTest, run

SHAPE = (2, 10, 3, 32)


class Quantize(CliTest):
    def setUp(self):
        super().setUp()
        self.numbers = floats(9, SHAPE)
        self.file = self.write("keys.npy", npy(self.numbers, SHAPE))
        self.out = self.folder / "out.npz"

    def arrays(self):
        with zipfile.ZipFile(self.out) as archive:
            return {name.removesuffix(".npy"): read_npy(self.write(name, archive.read(name))) for name in archive.namelist()}

    def test_scales(self):
        for scale, shape in (("tensor", (1, 1, 1)), ("head", (2, 1, 3)), ("block", (2, 3, 3)), ("token", (2, 10, 3))):
            for kernel in ("cpu.quantize", "reference.quantize"):
                done = run("quantize", self.file, "--scale", scale, "--scale-block", 4, "--out", self.out, "--check=0",
                           "--kernel", kernel)
                self.assertIn("check   passed: 60 rows against the float64 reference", done.stdout)
                arrays = self.arrays()
                self.assertEqual(arrays["x"][0]["shape"], SHAPE)
                self.assertEqual(arrays["x_scale"][0]["shape"], shape)
        run("quantize", self.file, "--out", self.out)
        most = max(map(abs, struct.unpack(f"<{math.prod(SHAPE)}f", self.numbers)))
        self.assertAlmostEqual(struct.unpack("<f", self.arrays()["x_scale"][1])[0], most / 448, places=9)

    def test_hadamard_and_means(self):
        for layout in ("bshd", "bhsd"):
            done = run("quantize", self.file, "--hadamard", 42, "--smooth", "--to", "f8e5m2", "--scale", "token", "--check=0",
                       "--layout", layout, "--out", self.out)
            self.assertIn("passed", done.stdout)
            self.assertEqual(self.arrays()["x_mean"][0]["shape"], (2, 1, 3, 32) if layout == "bshd" else (2, 10, 1, 32))

    def test_names_of_a_file(self):
        out = self.folder / "k.safetensors"
        document = json.loads(run("quantize", f"{SAMPLE}:k", "--scale", "block", "--out", out, "--check", "--json",
                                  "--explain").stdout)
        self.assertEqual(document["out"]["dtype"], "f8e4m3fn")
        self.assertTrue(document["check"]["passed"])
        self.assertEqual(document["kernel"], "cpu.quantize")
        self.assertIn("scales of blocks computed on the way", document["explain"])
        for name in (b'"k"', b'"k_scale"'):
            self.assertIn(name, out.read_bytes()[:500])

    def test_attention_of_its_files(self):
        files = {name: self.folder / f"{name}.safetensors" for name in "qkv"}
        for name, file in files.items():
            run("quantize", f"{SAMPLE}:{name}", "--scale", "block", "--out", file)
        scales = [word for name, file in files.items() for word in (f"--{name}-scale", f"{file}:{name}_scale")]
        call = ["attend", *files.values(), *scales, "--scale-block", 128, "--check=0", "--json"]
        for more, dtype in (((), "bf16"), (("--out-dtype", "f8e5m2", "--out-scale", 0.01), "f8e5m2")):
            document = json.loads(run(*call, *more).stdout)
            self.assertEqual(document["out"]["dtype"], dtype)
            self.assertTrue(document["check"]["passed"])

    def test_errors(self):
        halves = self.write("halves.npz", npz({"q": npy(self.q), "k": npy(self.k)}))
        for arguments, saying in (
            ((self.file, "--to", "i8"), "--to is 'i8', expected f8e4m3fn or f8e5m2"),
            ((self.file, "--scale", "row"), "--scale is 'row', expected tensor, head, block or token"),
            ((self.file, "--scale", "block", "--scale-block", 0), "--scale-block"),
            ((self.file, "--layout", "sbhd"), "--layout is 'sbhd', expected bshd or bhsd"),
            ((self.file, "--hadamard", -1), "--hadamard"),
            ((self.file, self.file), "quantize has 2 files, expected one"),
            ((f"{halves}:q", "--hadamard", 1), "head_dim of x is 4, expected a multiple of 16"),
            ((self.file, "--out", self.folder / "out.npy"), "out.npy"),
            ((self.file, "--out", self.file.with_suffix(".csv")), "csv"),
        ):
            self.expect_error("quantize", *arguments, saying=saying)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
