"""Files that are no arrays, or not quite."""

import os
import struct
import sys
import unittest
import zipfile

from array_files import entry, npy, npz, safetensors
from cli_case import CliTest


class BadFiles(CliTest):
    def check_file(self, name, data, saying):
        self.expect_error("attend", self.write(name, data), saying=saying)

    def test_npy(self):
        good = npy(self.q)
        for data, saying in [
            (b"", "magic"),
            (b"\x93NUMPY\x01", "truncated"),
            (npy(self.q, magic=b"\x93NUMPX"), "magic"),
            (npy(self.q, version=9), "version is 9"),
            (good[:60], "truncated: header of"),
            (good[:-1], "truncated: 255 bytes of data"),
            (good + b"x", "bytes after the array: 257"),
            (npy(self.q, descr=">f4"), "big-endian"),
            (npy(self.q, descr="hello"), "element type is 'hello'"),
            (npy(self.q, shape=(-1, 8)), "extent of -1"),
            (npy(self.q, shape=(2**62, 2**62)), "larger than memory can be"),
            (npy(self.q, shape=(2**62, 2**62, 0)), "larger than memory can be"),
            (npy(self.q, shape=(2**70,)), "an extent of 63 bits"),
            (npy(self.q, shape=(1,) * 9), "9 axes"),
            (npy(self.q, shape="[1, 2]"), "expected '('"),
            (npy(self.q, fortran="Maybe"), "expected True or False"),
            (npy(self.q, descr="<f4', 'x': '1"), "key 'x'"),
        ]:
            self.check_file("bad.npy", data, saying)

    def test_npz(self):
        good = npz({n: npy(self.q) for n in "qkv"}, zipfile.ZIP_DEFLATED)
        for data, saying in [
            (b"PK", "cannot read as .npz"),
            (good[: len(good) // 2], "cannot read as .npz"),
            (npz({"q": b"junk"}), "bad.npz:q: no .npy file"),
            (npz({}), ""),
            (npz({"q": npy(self.q)[:-3]}), "bad.npz:q: truncated"),
        ]:
            self.check_file("bad.npz", data, saying)
        stored = bytearray(npz({n: npy(self.q) for n in "qkv"}))
        stored[stored.index(self.q) + 5] ^= 1
        self.check_file("bad.npz", bytes(stored), "CRC")

    def test_safetensors(self):
        size = len(self.q)
        two = self.q + self.k
        for data, saying in [
            (b"\x01", "truncated: 1 bytes"),
            (struct.pack("<Q", 2**63), "expected at most"),
            (struct.pack("<Q", 1000) + b"{}", "truncated: header of 1000"),
            (safetensors(b"{", b""), "no JSON"),
            (safetensors(b"[]", b""), "a JSON array, expected an object"),
            (safetensors({"q": 1}, b""), ":q: header entry is a JSON number"),
            (safetensors({"q": {}}, b""), ":q: header entry lacks 'dtype'"),
            (safetensors({"q": entry(0, size)}, self.q[:-4]), "lie outside"),
            (safetensors({"q": entry(size, 0)}, self.q), "lie outside"),
            (safetensors({"q": entry(0, size, (1, 8, 2, 5))}, self.q), "needs 320"),
            (safetensors({"q": entry(0, size, (2**40, 2**40))}, self.q), "larger than memory can be"),
            (safetensors({"q": entry(0, size), "k": entry(size - 4, 2 * size - 4)}, two), "inside another tensor"),
            (safetensors({"q": entry(0, size)}, two), "512 bytes of data, the header describes 256"),
            (safetensors({"q": entry(4, size + 4)}, two), "belong to no tensor"),
            (safetensors({"q": {**entry(0, size), "data_offsets": [-1, 255]}}, self.q), "data_offsets[0] is -1"),
            (safetensors({"q": {**entry(0, size), "shape": "x"}}, self.q), "shape is a JSON string"),
            (safetensors({"q": {**entry(0, size), "data_offsets": [[1], 2]}}, self.q), "data_offsets[0] is a JSON array"),
            (safetensors(b'{"q": {"data_offsets": [' + b"[" * 2_000_000, b""), "nests deeper than 64"),
            (safetensors(b'{"q": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", b""), "nests deeper than 64"),
            (safetensors({"[" * 100 + '"{\n\x1b': entry(0, size + 1)}, self.q), "[" * 80 + "...: data_offsets"),
            (safetensors({"a\nb\x1b": entry(0, size + 1)}, self.q), r":a\nb\x1b: data_offsets"),
        ]:
            self.check_file("bad.safetensors", data, saying)

    def test_not_a_file(self):
        self.expect_error("attend", self.folder / "nosuch.npy", saying="cannot open: No such file")
        self.expect_error("attend", self.folder, saying="no regular file")
        self.check_file("x.txt", b"hello", "extension is '.txt'")
        os.mkfifo(self.folder / "fifo.npy")
        self.expect_error("attend", self.folder / "fifo.npy", saying="no regular file")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
