"""Files that are no arrays, or not quite."""

import io
import json
import os
import struct
import sys
import unittest
import zipfile

from array_files import deflated_zeros, entry, npy, npz, safetensors, zip_of
from cli_case import CliTest, run


class BadFiles(CliTest):
    def check_file(self, name, data, saying):
        """A file for q, beside a good k and v."""
        self.expect_error("attend", self.write(name, data), *self.write_npys()[1:], saying=saying)

    def test_npy(self):
        good = npy(self.q)
        for data, saying in [
            (b"", "bad.npy: is empty"),
            (b"\x93NUMPY\x01", "truncated"),
            (npy(self.q, magic=b"\x93NUMPX"), "magic"),
            (npy(self.q, version=9), "version is 9"),
            (good[:60], "truncated: header of"),
            (good[:-1], "truncated: 255 bytes of data"),
            (good + b"x", "bytes after the array: 257"),
            (npy(self.q, descr="hello"), "bad.npy: q has elements of type hello, expected a float"),
            (npy(self.q, descr="<U4"), "q has elements of type <U4"),
            (npy(self.q, descr="<i4"), "q has elements of type <i4"),
            (npy(self.q, descr="|b1"), "q has elements of type |b1"),
            (npy(self.q, ()), "q has shape ()"),
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
        good = npz({"q": npy(self.q)}, zipfile.ZIP_DEFLATED)
        file = npy(self.q)
        for data, saying in [
            (b"", "bad.npz: is empty"),
            (b"hello", "cannot read as .npz"),
            (b"PK", "cannot read as .npz"),
            (good[: len(good) // 2], "it begins as one, is it truncated?"),
            (npz({"q": b"junk"}), "bad.npz:q: no .npy file"),
            (npz({"q": b""}), "bad.npz:q: is empty"),
            (npz({}), "without files, expected arrays"),
            (npz({"q": file[:-3]}), "bad.npz:q: truncated: 253 bytes of data"),
            (npz({"q": file[:-3]}, zipfile.ZIP_DEFLATED), "bad.npz:q: truncated: 253 bytes of data"),
            (npz({"q": file[:60]}, zipfile.ZIP_DEFLATED), "bad.npz:q: truncated: header of"),
            (npz({"q": file + b"x"}), "bad.npz:q: bytes after the array: 257"),
            (zip_of([("q.npy", deflated_zeros(file[:128], 0), len(file))]), "bad.npz:q: CRC error"),
            (zip_of([("q.npy", deflated_zeros(file, 0), 10**7)]), "entry claims 10000000 bytes"),
            (zip_of([("q.npy", deflated_zeros(file, 0), len(file))]), "CRC"),
            (npz({"q": npy(b"", (2**40, 2**10))}), "bad.npz:q: truncated: 0 bytes of data"),
        ]:
            self.check_file("bad.npz", data, saying)
        stored = bytearray(npz({"q": file}))
        stored[stored.index(self.q) + 5] ^= 1
        self.check_file("bad.npz", bytes(stored), "CRC")

    def test_safetensors(self):
        size = len(self.q)
        two = self.q + self.k
        for data, saying in [
            (b"\x01", "truncated: 1 bytes"),
            (struct.pack("<Q", 2**63), "expected at most"),
            (struct.pack("<Q", 1000) + b"{}", "truncated: header of 1000"),
            (b"", "bad.safetensors: is empty"),
            (safetensors(b"{", b""), "no JSON"),
            (safetensors(b'{"q": 1', b""), "header entry is a JSON number"),
            (safetensors(json.dumps({"q": entry(0, size)}).encode()[:-1], self.q), "no JSON"),
            (safetensors(b"3", b""), "a JSON number, expected an object"),
            (safetensors({"q": []}, b""), ":q: header entry is a JSON array"),
            (safetensors({"q": entry(0, size, dtype="I64")}, self.q), "q has elements of type I64"),
            (safetensors({"q": entry(0, size, dtype="C64")}, self.q), "q has elements of type C64"),
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
        self.expect_error("attend", self.folder, saying="is a folder, expected a file")
        self.check_file("x.txt", b"hello", "extension is '.txt'")
        os.mkfifo(self.folder / "fifo.npy")
        self.expect_error("attend", self.folder / "fifo.npy", saying="no regular file")

    def test_other_formats_say_what_they_are(self):
        torch = io.BytesIO()
        with zipfile.ZipFile(torch, "w") as archive:
            for name in ("x/data.pkl", "x/data/0"):
                archive.writestr(name, b"any bytes")
        plain = io.BytesIO()
        with zipfile.ZipFile(plain, "w") as archive:
            archive.writestr("readme.txt", b"hello")
        is_torch = "is a PyTorch file (a pickle), which can run code; save its tensors with safetensors.torch.save_file"
        for name, data, saying in [
            ("x.pt", torch.getvalue(), is_torch),
            ("x.pth", torch.getvalue()[:-9], is_torch),  # which is no whole archive
            ("x.npz", torch.getvalue(), is_torch),
            ("x.bin", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M", is_torch),
            ("x.npy", b"\x80\x04\x95 ", "is a pickle, which can run code"),
            ("x.npz", plain.getvalue(), "a zip archive without .npy files, expected what numpy.savez writes; it has readme.txt"),
            ("x.gguf", b"GGUF\3\0\0\0", "is a GGUF file; read its tensors with gguf.GGUFReader"),
            ("x.h5", b"\x89HDF\r\n\x1a\n\0", "is an HDF5 file; read its arrays with h5py"),
            ("x.mat", b"MATLAB 5.0 MAT-file", "scipy.io.loadmat"),
            ("x.npy.gz", b"\x1f\x8b\x08", "compressed with gzip; decompress it first"),
            ("x.safetensors", b"version https://git-lfs.github.com/spec/v1\n", "fetch it with git lfs pull"),
            ("x.safetensors", b"<!DOCTYPE html>", "is a web page"),
        ]:
            self.check_file(name, data, saying)
        # A header of 640 bytes begins like a pickle.
        header = json.dumps({"q": entry(0, len(self.q))}).encode().ljust(640)
        run("attend", self.write("x", safetensors(header, self.q)), *self.write_npys()[1:])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
