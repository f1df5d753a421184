"""Files that numpy and safetensors read: whatever else is in them, fast, and in memory for what is used."""

import json
import os
import resource
import struct
import subprocess
import sys
import unittest
import zipfile

from array_files import (SHAPE, add_to_zip, deflated_zeros, entry, floats, npy, npz, read_npy, safetensors, transposed,
                         zip_of)
from cli_case import CliTest, TESSELLA, run

GB_OF_ZEROS = deflated_zeros(b"", 1000)
# Of memory that was touched, 256 MiB of it AddressSanitizer's, and of work: a list of 100,000 tensors takes 0.3 s, beside
# AddressSanitizer 4 s, and took 57 s when it was quadratic.
MOST_KIB, MOST_SECONDS = 700_000, 25


class Files(CliTest):
    def run_limited(self, *arguments):
        limit = lambda: resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
        command = [TESSELLA, *map(str, arguments), "--num-threads", "1"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, preexec_fn=limit) as process:
            said = process.stderr.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        self.assertLess(usage.ru_maxrss, MOST_KIB)
        return subprocess.CompletedProcess(command, process.returncode, None, said)

    def arrays(self):
        return {n: npy(x) for n, x in zip("qkv", (self.q, self.k, self.v))}

    def test_100_000_tensors(self):
        size = len(self.q)
        header = {n: entry(i * size, (i + 1) * size) for i, n in enumerate("qkv")}
        header |= {f"layers.{i}.weight": entry(3 * size, 3 * size, (0,)) for i in range(100_000)}
        header["__metadata__"] = {f"key{i}": "x" for i in range(100_000)}
        file = self.write("many.safetensors", safetensors(header, self.q + self.k + self.v))
        done = self.run_limited("attend", file, "--out", self.folder / "out.npy")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("layers.19.weight and 99980 others", done.stderr)
        self.assertLess(len(done.stderr), 1000)
        self.check_out(self.folder / "out.npy")
        done = self.run_limited("attend", file, "--bias", f"{file}:x")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no array is called 'x'; it has q, k, v, layers.0.weight", done.stderr)

    def test_unused_arrays_are_not_inflated(self):
        archive = zip_of([("big.npy", GB_OF_ZEROS, 10**9), ("big2.npy", GB_OF_ZEROS, 10**9)])
        for name, data in self.arrays().items():
            archive = add_to_zip(archive, name, data)
        file = self.write("x.npz", archive)
        done = self.run_limited("attend", file, "--out", self.folder / "out.npy")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("not used: big, big2", done.stderr)
        self.check_out(self.folder / "out.npy")

    def test_a_bomb_is_refused_by_its_header(self):
        shape = (1, 10**9 // 32, 2, 4)
        for descr, claimed, saying in [
            ("<f4", SHAPE, "bytes after the array: 1000000000 bytes of data, shape (1, 8, 2, 4) of <f4 needs 256"),
            ("<f4", (1, 2**40, 2, 4), "truncated: 1000000000 bytes of data"),
            ("<i4", shape, "q has elements of type <i4, expected a float"),
            ("<f4", (*shape, 1), "q has shape (1, 31250000, 2, 4, 1), expected 2 to 4 axes"),
        ]:
            header = npy(b"", claimed, descr)
            file = self.write("bomb.npz", zip_of([("q.npy", deflated_zeros(header, 1000), len(header) + 10**9)]))
            done = self.run_limited("attend", file, *self.write_npys()[1:])
            self.assertEqual(done.returncode, 2)
            self.assertIn(f"bomb.npz:q: {saying}", done.stderr)
        header = npy(b"", (1000, 1000, 250), "<f4")
        file = self.write("bomb.npz", zip_of([("m.npy", deflated_zeros(header, 1000), len(header) + 10**9)]))
        done = self.run_limited("attend", *self.write_npys(), "--mask", f"dense:{file}")
        self.assertIn("--mask dense: ", done.stderr)
        self.assertIn("bomb.npz:m: elements are <f4, expected bool", done.stderr)

    def test_unused_arrays_may_be_of_any_type_and_shape(self):
        arrays = {**{"nine": npy(self.q, (1,) * 8 + (64,)), "wide": npy(b"", (2**40, 0))}, **self.arrays()}
        run("attend", self.write("x.npz", npz(arrays)), "--out", self.folder / "out.npy")
        self.check_out(self.folder / "out.npy")
        size = len(self.q)
        header = {n: entry(i * size, (i + 1) * size) for i, n in enumerate("qkv")}
        odd = {"nine": ((1,) * 8 + (64,), "F32"), "four": ((128,), "F4"), "complex": ((32,), "C64"), "scalar": ((), "X")}
        for i, (name, (shape, dtype)) in enumerate(odd.items()):
            header[name] = entry((3 + i) * size, (4 + i) * size, shape, dtype)
        file = self.write("x.safetensors", safetensors(header, self.q + self.k + self.v + bytes(4 * size)))
        run("attend", file, "--out", self.folder / "out.npy")
        self.check_out(self.folder / "out.npy")
        self.expect_error("attend", *self.write_npys(), "--bias", f"{file}:nine", saying="safetensors:nine: array has 9 axes")
        self.expect_error("attend", *self.write_npys(), "--bias", f"{file}:complex", saying=":complex: elements are C64, expected")

    def test_one_name_twice(self):
        twice = self.write("twice.npz", add_to_zip(add_to_zip(npz(self.arrays()), "q", npy(self.k)), "x", npy(self.k)))
        size = len(self.q)
        header = ", ".join(f'"{n}": {json.dumps(entry(i * size, (i + 1) * size))}' for i, n in enumerate("qkvq"))
        both = self.write("twice.safetensors", safetensors(f"{{{header}}}".encode(), self.q + self.k + self.v + self.q))
        for file in (twice, both):
            done = run("attend", file, expect=2)
            self.assertIn(f"{file}:q: the file has 2 arrays of this name, expected one", done.stderr)
            done = run("attend", file, "--names", "q,k,v", expect=2)
            self.assertIn(f"{file}:q: the file has 2 arrays of this name, expected one", done.stderr)
            self.expect_error("attend", *self.write_npys(), "--bias", f"{file}:q", saying=":q: the file has 2 arrays of this name")
        run("attend", twice, "--names", "x,k,v", "--check")  # the others are as usable as ever
        once = self.write("once.npz", npz(self.arrays()))
        more = self.write("more.npz", npz({"q": npy(self.q)}))
        self.expect_error("attend", once, more, "--names", "q,k,v", saying=f"--names has 'q', which {once}:q and {more}:q are called")
        run("attend", more, *[self.write(f"{n}.npz", npz({"q": npy(self.q)})) for n in "ab"], "--names", "q,q,q")

    def test_any_order_of_axes_and_bytes(self):
        swapped = lambda x: b"".join(x[i : i + 4][::-1] for i in range(0, len(x), 4))
        doubles = lambda x: struct.pack(">64d", *struct.unpack("<64f", x))
        for name, data in {
            "fortran": lambda x: npy(transposed(x, SHAPE, 4), fortran=True),
            "big-endian": lambda x: npy(swapped(x), descr=">f4"),
            "both": lambda x: npy(transposed(swapped(x), SHAPE, 4), descr=">f4", fortran=True),
            "native": lambda x: npy(x, descr="=f4"),
            "big-endian f64": lambda x: npy(doubles(x), descr=">f8"),
            "of Python 2": lambda x: npy(x, "(1L, 8L, 2L, 4L)"),
        }.items():
            arrays = {n: data(x) for n, x in zip("qkv", (self.q, self.k, self.v))}
            files = [[self.write(f"{n}.npy", x) for n, x in arrays.items()]]
            files += [[self.write(f"{c}.npz", npz(arrays, c))] for c in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)]
            for given in files:
                with self.subTest(name=name, given=given):
                    run("attend", *given, "--out-dtype", "f32", "--check=0", "--out", self.folder / "out.npy")
                    self.check_out(self.folder / "out.npy")
        raw = lambda x: b"".join(x[i + 2 : i + 4] for i in range(0, len(x), 4))
        outs = []
        for fortran in (False, True):
            order = (lambda x: transposed(x, SHAPE, 2)) if fortran else (lambda x: x)
            files = [self.write(f"{n}.npy", npy(order(raw(x)), descr="<V2", fortran=fortran)) for n, x in zip("qkv", (self.q, self.k, self.v))]
            run("attend", *files, "--dtype", "bf16", "--out", self.folder / "out.npy")
            outs.append(read_npy(self.folder / "out.npy"))
        self.assertEqual(*outs)

    def test_no_elements(self):
        shape = (1, 0, 2, 4)
        arrays = {n: npy(b"", shape) for n in "qkv"}
        header = {n: entry(0, 0, shape) for n in "qkv"}
        files = [self.write(f"x{c}.npz", npz(arrays, c)) for c in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)]
        for file in (*files, self.write("x.safetensors", safetensors(header, b""))):
            run("attend", file, "--out", self.folder / "out.npy")
            self.assertEqual(read_npy(self.folder / "out.npy"), ({"descr": "<f4", "fortran_order": False, "shape": shape}, b""))

    @unittest.skipUnless(os.environ.get("TESSELLA_TEST_LARGE"), "takes 9 GB of memory and a minute")
    def test_more_than_4_gib_deflated(self):
        rows = 2**21 + 10
        head = npy(b"", (1, rows, 4, 128))
        file = self.folder / "large.npz"
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr("q.npy", npy(bytes(2048), (1, 1, 4, 128)))
            for name in "kv":
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    member.write(head)
                    for _ in range(rows):
                        member.write(bytes(2048))
        self.assertIn(f"k       (1, {rows}, 4, 128) f32", run("attend", file).stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
