"""Masks, ids, lengths, biases and gradients out of files of any type that has one meaning."""

import struct
import sys
import unittest

from array_files import SHAPE, entry, npy, npz, read_npy, safetensors, transposed
from cli_case import CliTest, run

INTEGERS = {"|u1": "B", "|i1": "b", "<i2": "<h", "<u2": "<H", "<i4": "<i", "<u4": "<I", "<i8": "<q", "<u8": "<Q",
            ">i2": ">h", ">u4": ">I", ">i8": ">q"}
FLOATS = {"<f8": "<d", "<f4": "<f", "<f2": "<e", ">f8": ">d", ">f2": ">e"}


def packed(code, values):
    order, kind = (code[0], code[1]) if len(code) == 2 else ("<", code)
    return struct.pack(f"{order}{len(values)}{kind}", *values)


def bf16(values):
    """The upper halves of floats that have no more."""
    return b"".join(struct.pack("<f", x)[2:] for x in values)


class SideArrays(CliTest):
    def setUp(self):
        super().setUp()
        self.files = self.write_npys()

    def out_of(self, *arguments, files=None, command="attend"):
        run(command, *(files or self.files), *arguments, "--out", self.folder / "out.npy")
        return read_npy(self.folder / "out.npy")

    def check_all(self, option, shape, values, codes, plain, before="", after="", beside=()):
        """A file of each type is as good as `plain`: arguments that mean the same. Beside it are others."""
        expected = self.out_of(*plain, *beside)
        for descr, code in codes.items():
            for fortran in (False, True):
                data = packed(code, values)
                if fortran:
                    data = transposed(data, shape, len(data) // len(values))
                with self.subTest(option=option, descr=descr, fortran=fortran):
                    file = self.write("side.npz", npz({"x": npy(data, shape, descr, fortran)}))
                    self.assertEqual(self.out_of(option, f"{before}{file}:x{after}", *beside), expected)

    def test_masks(self):
        values = [int(j <= i or (i + j) % 3 == 0) for i in range(8) for j in range(8)]
        dense = self.write("dense.npy", npy(bytes(values), (8, 8), "|b1"))
        codes = {"|b1": "B", **INTEGERS}
        self.check_all("--mask", (8, 8), values, codes, ["--mask", f"dense:{dense}"], before="dense:")
        self.check_all("--draft-mask", (8, 8), values, codes, ["--draft-mask", dense])
        values = [1, 0, 1, 1]
        blocks = self.write("blocks.npy", npy(bytes(values), (2, 2), "|b1"))
        self.check_all("--mask", (2, 2), values, codes, ["--mask", f"block_map:{blocks},4,4"], before="block_map:", after=",4,4")

    def test_what_is_no_mask(self):
        wrong = {"two": (bytes([1, 2] * 32), "|u1", ":two: element 1 is 2, expected 0 or 1"),
                 "minus": (packed("<i", [0] * 63 + [-1]), "<i4", ":minus: element 63 is -1, expected 0 or 1"),
                 "float": (bytes(256), "<f4", ":float: elements are <f4, expected bool, or integers 0 and 1; what is added to the scores is a --bias"),
                 "string": (bytes(64), "|S1", ":string: elements are |S1, expected bool, or integers 0 and 1"),
                 "raw": (bytes(64), "|V1", ":raw: elements are |V1, expected bool")}
        file = self.write("masks.npz", npz({name: npy(data, (8, 8), descr) for name, (data, descr, _) in wrong.items()}))
        for name, (_, _, saying) in wrong.items():
            for option, value in (("--mask", f"dense:{file}:{name}"), ("--mask", f"block_map:{file}:{name},1,1"), ("--draft-mask", f"{file}:{name}")):
                self.expect_error("attend", *self.files, option, value, saying=f"{file}{saying}")

    def test_whole_numbers(self):
        ids = [0, 0, 0, 1, 1, 1, 2, 2]
        codes = {**INTEGERS, **FLOATS}
        written = ",".join(map(str, ids))
        self.check_all("--mask", (1, 8), ids, codes, ["--mask", f"document:{written}"], before="document:")
        self.check_all("--seqlens-kv", (1,), [5], codes, ["--seqlens-kv", "5"])
        self.check_all("--seqlens-kv", (), [5], codes, ["--seqlens-kv", "5"])  # one number
        self.check_all("--mask", (), [3], codes, ["--mask", "prefix:3"], before="prefix:")
        for file, pool in zip(self.files[1:], (self.k, self.v)):
            file.write_bytes(npy(pool, (2, 4, 2, 4)))
        table = self.write("table.npy", npy(packed("<i", [1, 0]), (1, 2), "<i4"))
        self.check_all("--page-table", (1, 2), [1, 0], codes, ["--page-table", table])
        large = self.write("large.npz", npz({"x": npy(packed("<q", [0, 2**31]), (1, 2), "<i8"), "y": npy(packed("<Q", [0, 2**63]), (1, 2), "<u8"),
                                             "half": npy(packed("<f", [0, 1.5]), (1, 2), "<f4"), "raw": npy(bytes(4), (1, 2), "|V2")}))
        for name, saying in [("x", "element 1 is 2147483648, expected a whole number that fits i32"),
                             ("y", "element 1 is 9223372036854775808, expected one that fits i64"),
                             ("half", "element 1 is 1.5, expected a whole number that fits i32"),
                             ("raw", "elements are |V2, expected whole numbers; raw bf16 wants --dtype bf16")]:
            self.expect_error("attend", *self.files, "--page-table", f"{large}:{name}", saying=f"--page-table: {large}:{name}: {saying}")

    def test_packed_lengths(self):
        self.files = [self.write(f"{n}.npy", npy(x, SHAPE[1:])) for n, x in zip("qkv", (self.q, self.k, self.v))]
        kv = ["--cu-seqlens-kv", "0,3,8"]
        expected = self.out_of("--cu-seqlens-q", "0,3,8", *kv)
        for descr, code in INTEGERS.items():
            lengths = self.write("cu.npy", npy(packed(code, [0, 3, 8]), (3,), descr))
            self.assertEqual(self.out_of("--cu-seqlens-q", lengths, *kv), expected)

    def test_numbers(self):
        values = [(i * 7 % 31 - 15) / 8 for i in range(64)]
        bias = self.write("bias.npy", npy(packed("<f", values), (8, 8)))
        self.check_all("--bias", (8, 8), values, FLOATS, ["--bias", bias])
        whole = [i % 5 for i in range(64)]
        bias.write_bytes(npy(packed("<f", whole), (8, 8)))
        self.check_all("--bias", (8, 8), whole, {**FLOATS, **INTEGERS}, ["--bias", bias])
        self.check_all("--sink", (2,), [0.5, -1.0], FLOATS, ["--sink", "0.5,-1"])
        self.check_all("--alibi-slopes", (2,), [0.5, 0.25], FLOATS, ["--alibi-slopes", "0.5,0.25"])
        bias.write_bytes(npy(packed("<f", values), (8, 8)))
        expected = self.out_of("--bias", bias)
        eighths = bytes(0x38 | (i % 8) for i in range(64))  # f8e4m3fn: 1 to 1.875
        file = self.write("side.safetensors", safetensors({"b": entry(0, 128, (8, 8), "BF16"), "e": entry(128, 192, (8, 8), "F8_E4M3")}, bf16(values) + eighths))
        self.assertEqual(self.out_of("--bias", f"{file}:b"), expected)
        bias.write_bytes(npy(packed("<f", [1 + i % 8 / 8 for i in range(64)]), (8, 8)))
        self.assertEqual(self.out_of("--bias", f"{file}:e"), self.out_of("--bias", bias))
        for data, descr, saying in [
            (bytes(64), "|b1", "elements are |b1, expected numbers such as f32; true and false are a mask"),
            (bytes(128), "|V2", "elements are |V2, expected numbers such as f32; raw bf16 wants --dtype bf16"),
            (bytes(512), "<c8", "elements are <c8, expected numbers such as f32"),
            (packed("<d", [0] * 9 + [1e39] + [0] * 54), "<f8", "element 9 is 1e+39, beyond the largest f32"),
        ]:
            bias.write_bytes(npy(data, (8, 8), descr))
            self.expect_error("attend", *self.files, "--bias", bias, saying=f"--bias: {bias}: {saying}")

    def test_a_bias_may_be_of_q_s_type(self):
        half = [self.write(f"{n}.npy", npy(b"".join(x[i + 2 : i + 4] for i in range(0, 256, 4)), descr="|V2")) for n, x in zip("qkv", (self.q, self.k, self.v))]
        values = [(i * 7 % 31 - 15) / 8 for i in range(64)]
        bias = self.write("bias.npy", npy(packed("<f", values), (8, 8)))
        options = ["--dtype", "bf16", "--out-dtype", "f32", "--bias", bias]
        expected = self.out_of(*options, files=half)
        bias.write_bytes(npy(bf16(values), (8, 8), "|V2"))  # --dtype is of every raw array
        self.assertEqual(self.out_of(*options, files=half), expected)
        doubles = [self.write(f"{n}.npy", npy(struct.pack("<64d", *struct.unpack("<64f", x)), descr="<f8")) for n, x in zip("qkv", (self.q, self.k, self.v))]
        tenths = [i / 10 for i in range(64)]
        outs = []
        for descr, code in (("<f8", "<d"), ("<f4", "<f")):
            bias.write_bytes(npy(packed(code, tenths), (8, 8), descr))
            outs.append(self.out_of("--bias", bias, files=doubles))
        self.assertNotEqual(*outs)  # f64 stays f64 where q is

    def test_scales(self):
        numbers = bytes(i % 100 for i in range(64))
        cache = self.write("cache.npz", npz({"q": npy(self.q), "k": npy(numbers, descr="|i1"), "v": npy(numbers, descr="|i1")}))
        self.files = [cache]
        for shape, values, written in (((2,), [0.5, 0.25], "0.5,0.25"), ((), [0.5], "0.5")):
            self.check_all("--k-scale", shape, values, FLOATS, ["--k-scale", written], beside=["--v-scale", "1"])

    def test_gradients(self):
        d = [(i * 5 % 17 - 8) / 4 for i in range(64)]
        plain = self.write("d.npy", npy(packed("<f", d)))
        d_lse = self.write("l.npy", npy(packed("<f", d[:16]), (1, 2, 8)))
        gradient = lambda *arguments: (run("attend", *self.files, *arguments, "--dq", self.folder / "dq.npy"), read_npy(self.folder / "dq.npy"))[1]
        expected = gradient("--backward", plain, "--d-lse", d_lse)
        for descr, code in {**FLOATS, "<i4": "<i"}.items():
            values = [int(4 * x) for x in d] if descr == "<i4" else d
            data, data_lse = packed(code, values), packed(code, values[:16])
            size = len(data) // 64
            for fortran in (False, True):
                file = self.write("side.npz", npz({"d": npy(transposed(data, SHAPE, size) if fortran else data, SHAPE, descr, fortran),
                                                   "l": npy(data_lse, (1, 2, 8), descr)}))
                got = gradient("--backward", f"{file}:d", "--d-lse", f"{file}:l")
                if descr != "<i4":
                    self.assertEqual(got, expected)
                else:
                    self.assertNotEqual(got, expected)  # four times as much
        half = lambda x: b"".join(x[i + 2 : i + 4] for i in range(0, 256, 4))
        files = [self.write(f"raw_{n}.npy", npy(half(x), descr="|V2")) for n, x in zip("qkv", (self.q, self.k, self.v))]
        backward = [*files, "--dtype", "bf16", "--dq", self.folder / "dq.npy", "--backward"]
        run("attend", *backward, plain)  # quarters are bf16 as well
        exact = read_npy(self.folder / "dq.npy")
        plain.write_bytes(npy(bf16(d), descr="|V2"))
        run("attend", *backward, plain)
        self.assertEqual(read_npy(self.folder / "dq.npy"), exact)
        plain.write_bytes(npy(packed("<f", [0.1] * 64)))
        self.expect_error("attend", *backward, plain, saying=f"--backward: {plain}: element 0 is 0.1")
        run("attend", *backward, plain, "--out-dtype", "f32")
        plain.write_bytes(npy(bytes(64), descr="|b1"))
        self.expect_error("attend", *self.files, "--backward", plain, saying=f"--backward: {plain}: elements are |b1, expected numbers such as f32")
        plain.write_bytes(npy(bytes(64 * 3), descr="|V3"))
        self.expect_error("attend", *self.files, "--backward", plain, saying=f"--backward: {plain}: elements are |V3, expected numbers")

    def test_merge(self):
        state = self.folder / "state.npz"
        run("attend", *self.files, "--out", state, "--lse", state)
        other = self.write("other.npz", npz({"out": npy(self.q), "lse": npy(packed("<f", [i / 8 for i in range(16)]), (1, 2, 8))}))
        expected = self.out_of(files=[state, other], command="merge")
        for descr, code in FLOATS.items():
            for fortran in (False, True):
                out = transposed(self.q, SHAPE, 4) if fortran else self.q
                lse = packed(code, [i / 8 for i in range(16)])
                if fortran:
                    lse = transposed(lse, (1, 2, 8), len(lse) // 16)
                other.write_bytes(npz({"out": npy(out, fortran=fortran), "lse": npy(lse, (1, 2, 8), descr, fortran)}))
                self.assertEqual(self.out_of(files=[state, other], command="merge"), expected)
        for out, lse, saying in [
            (npy(self.q), npy(bytes(16), (1, 2, 8), "|b1"), ":lse: elements are |b1, expected numbers"),
            (npy(self.q, descr="<i4"), npy(bytes(64), (1, 2, 8)), ":out: has elements of type <i4, expected f64, f32, bf16 or f16"),
            (npy(bytes(128), descr="|V2"), npy(bytes(64), (1, 2, 8)), ":out: has elements of type |V2, expected f64, f32, bf16 or f16; raw"),
        ]:
            other.write_bytes(npz({"out": out, "lse": lse}))
            self.expect_error("merge", state, other, saying=f"{other}{saying}")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
