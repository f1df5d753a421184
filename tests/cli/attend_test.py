"""Runs the command line as a user does. Where numpy is installed it also reads what the program wrote."""

import json
import math
import os
import pathlib
import resource
import struct
import subprocess
import sys
import unittest
import zipfile

from array_files import SHAPE, entry, floats, npy, npz, read_npy, safetensors
from cli_case import CliTest, SAMPLE, TESSELLA, expected_attention, run

try:
    import numpy
except ImportError:
    numpy = None


class Attend(CliTest):
    def test_three_npy_files(self):
        out = self.folder / "out.npy"
        run("attend", *self.write_npys(), "--out", out, "--check")
        self.check_out(out)

    def test_npy_version_2(self):
        files = [self.write(f"{n}.npy", npy(x, version=2)) for n, x in zip("qkv", (self.q, self.k, self.v))]
        run("attend", *files, "--out", self.folder / "out.npy")
        self.check_out(self.folder / "out.npy")

    def test_npz_stored_and_deflated_in_any_order(self):
        for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            arrays = {"v": npy(self.v), "q": npy(self.q), "k": npy(self.k)}
            file = self.write("qkv.npz", npz(arrays, compression))
            run("attend", file, "--out", self.folder / "out.npy", "--check")
            self.check_out(self.folder / "out.npy")

    def test_names(self):
        file = self.write("x.npz", npz({"c": npy(self.v), "a": npy(self.q), "b": npy(self.k), "d": npy(self.q)}))
        run("attend", file, "--names", "a,b,c", "--out", self.folder / "out.npy")
        self.check_out(self.folder / "out.npy")
        for names, saying in (
            ("a,b,x", "--names has 'x', which is not there; the files have c, a, b, d"),
            ("a,a,a", "--names has 'a' 3 times, and 1 is there, expected an array of its own for each of q, k and v"),
            ("a,b", "--names is 'a,b', expected three: Q,K,V"),
        ):
            self.expect_error("attend", file, "--names", names, saying=saying)
        again = self.write("y.npz", npz({"a": npy(self.k)}))
        self.expect_error("attend", file, again, "--names", "a,b,c", saying="--names has 'a', which ")
        same = [self.write(f"{i}.npz", npz({"x": npy(data)})) for i, data in enumerate((self.q, self.k, self.v))]
        run("attend", *same, "--names", "x,x,x", "--out", self.folder / "out.npy")
        self.check_out(self.folder / "out.npy")
        self.expect_error("attend", file, saying="got 4 arrays (c, a, b, d), expected q, k and v: arrays of these")

    def write_safetensors(self, **arrays):
        """As safetensors writes them: sorted by name."""
        size, names = len(self.q), sorted(arrays)
        header = {name: entry(i * size, (i + 1) * size) for i, name in enumerate(names)}
        return self.write("x.safetensors", safetensors(header, b"".join(arrays[name] for name in names)))

    def test_usual_names(self):
        for q, k, v in (
            ("Q", "K", "V"),
            ("query", "key", "value"),
            ("Queries", "Keys", "Values"),
            ("query_states", "key_states", "value_states"),
            ("attn.q_proj", "attn.k_proj", "attn.v_proj"),
            ("layers/0/attn/to_q", "layers/0/attn/to_k", "layers/0/attn/to_v"),
            ("xq", "xk", "xv"),
            ("k.q", "v.k", "q.v"),
        ):
            arrays = {q: self.q, k: self.k, v: self.v}
            packed = self.write("x.npz", npz({name: npy(arrays[name]) for name in sorted(arrays)}))
            for file in (self.write_safetensors(**arrays), packed):
                run("attend", file, "--check", "--out", self.folder / "out.npy")
                self.check_out(self.folder / "out.npy")
        file = self.write_safetensors(q=self.q, k=self.k, v=self.v, query=self.v, Q=self.k)
        self.assertIn("not used: Q, query", run("attend", file, "--out", self.folder / "out.npy").stderr)
        self.check_out(self.folder / "out.npy")

    def test_names_that_say_nothing_are_not_taken_by_position(self):
        file = self.write_safetensors(**{"a.weight": self.q, "b.weight": self.k, "c.weight": self.v})
        self.expect_error("attend", file, saying="got 3 arrays (a.weight, b.weight, c.weight), expected q, k and v")
        file = self.write_safetensors(**{"l.0.q": self.q, "l.1.q": self.q, "l.0.k": self.k, "l.0.v": self.v})
        self.expect_error("attend", file, saying=":l.0.q and ")
        self.expect_error("attend", file, saying=":l.1.q may both be q, expected one; the files have l.0.k, l.0.q, l.0.v, l.1.q")
        run("attend", file, "--names", "l.0.q,l.0.k,l.0.v", "--out", self.folder / "out.npy")
        self.check_out(self.folder / "out.npy")
        file = self.write_safetensors(q=self.q, k=self.k, memory=self.v)
        self.expect_error("attend", file, saying="got 3 arrays (k, memory, q)")
        once, again = (self.write(f"{n}.npz", npz({"q": npy(self.q), "k": npy(self.k), "v": npy(self.v)})) for n in "ab")
        self.expect_error("attend", once, again, saying="a.npz:q and ")

    def test_arrays_without_names_are_taken_by_position(self):
        operands = (self.q, self.k, self.v)
        files = [
            [self.write("x.npz", npz({f"arr_{i}": npy(x) for i, x in enumerate(operands)}))],
            [self.write(f"{i}.npz", npz({"arr_0": npy(x)})) for i, x in enumerate(operands)],
            [self.write(f"{i}.npy", npy(x)) for i, x in enumerate(operands)],
            [self.write("kv.npz", npz({"V": npy(self.v), "K": npy(self.k)})), self.write("0.npy", npy(self.q))],
        ]
        for given in files:
            run("attend", *given, "--check", "--out", self.folder / "out.npy")
            self.check_out(self.folder / "out.npy")
        self.expect_error("attend", *files[2], *files[0], saying="got 6 arrays (")

    def test_files_named_after_another_operand_are_not_taken_by_position(self):
        def named(*names):
            return [self.write(name, npy(x)) for name, x in zip(names, (self.q, self.k, self.v))]

        saying = "k.npy is given where q is expected, and its name says k, expected the files in the order q, k, v"
        for names in (("k.npy", "q.npy", "v.npy"), ("a_k.npy", "a_q.npy", "a_v.npy"), ("k.npy", "b.npy", "v.npy")):
            self.expect_error("attend", *named(*names), saying=saying)
        self.expect_error("attend", *named("key-0.npy", "Query-0.npy", "value-0.npy"), saying="its name says k")
        self.expect_error("attend", *named("q.npy", "v.npy", "k.npy"), saying="v.npy is given where k is expected")
        packed = [self.write(f"{n}.npz", npz({"arr_0": npy(x)})) for n, x in zip("kqv", (self.q, self.k, self.v))]
        self.expect_error("attend", *packed, saying="k.npz is given where q is expected")
        for names in (("q_of_k.npy", "kv.npy", "x.npy"), ("l0.q.npy", "l0.k.npy", "l0.v.npy"), ("1.npy", "2.npy", "v.npy"), ("key_a.npy", "key_b.npy", "key_c.npy")):
            run("attend", *named(*names), "--out", self.folder / "out.npy")
            self.check_out(self.folder / "out.npy")
        run("attend", *[self.folder / "k.npy"] * 3)  # nothing that could be swapped

    def test_safetensors_unaligned(self):
        size = len(self.q)
        header = {"__metadata__": {"a": "b"}, **{n: entry(i * size, (i + 1) * size) for i, n in enumerate("qkv")}}
        written = json.dumps(header).encode()
        for padding in range(4):
            file = self.write("x.safetensors", safetensors(written + b" " * padding, self.q + self.k + self.v))
            run("attend", file, "--out", self.folder / "out.npy", "--check")
            self.check_out(self.folder / "out.npy")

    def test_bhsd_layout(self):
        def swapped(x):  # (s, h, d) to (h, s, d)
            return b"".join(x[(s * 2 + h) * 16 : (s * 2 + h) * 16 + 16] for h in range(2) for s in range(8))

        files = [self.write(f"{n}.npy", npy(swapped(x), (1, 2, 8, 4))) for n, x in zip("qkv", (self.q, self.k, self.v))]
        done = run("attend", *files, "--layout", "bhsd", "--out", self.folder / "out.npy")
        document = json.loads(run("attend", *files, "--layout", "bhsd", "--json").stdout)
        for name in ("q", "k", "v", "out"):
            self.assertRegex(done.stdout, rf"(?m)^{name} +\(1, 2, 8, 4\) f32")
            self.assertEqual(document[name]["shape"], [1, 2, 8, 4])
        wide, tall, low = (
            self.write(f"{name}.npy", npy(bytes(4 * math.prod(shape)), shape))
            for name, shape in (("wide", (1, 3, 8, 4)), ("tall", (1, 4, 10, 4)), ("low", (1, 2, 4, 4)))
        )
        for arguments, saying in (
            ((wide, *files[1:], "--layout", "bhsd"), "q has 3 heads and k has 2, expected heads of q to be a multiple of heads "
             "of k (layout batch, seqlen, heads, head_dim; with axes 1 and 2 swapped they would fit: is it --layout bshd?); "
             "--layout bhsd was swapped to this order first"),
            ((tall, low, low), "; with axes 1 and 2 swapped they would fit: is it --layout bhsd?)\n"),
        ):
            self.expect_error("attend", *arguments, saying=saying)
        header, data = read_npy(self.folder / "out.npy")
        self.assertEqual(header["shape"], (1, 2, 8, 4))
        expected = expected_attention(self.q, self.k, self.v)
        for i, got in enumerate(struct.unpack("<64f", data)):
            h, s, d = i // 32, i // 4 % 8, i % 4
            self.assertAlmostEqual(got, expected[(s * 2 + h) * 4 + d], places=5)

    def test_raw_bf16(self):
        raw = lambda x: b"".join(x[i + 2 : i + 4] for i in range(0, len(x), 4))  # the upper half of each float
        files = [self.write(f"{n}.npy", npy(raw(x), descr="|V2")) for n, x in zip("qkv", (self.q, self.k, self.v))]
        self.expect_error("attend", *files, saying="|V2")
        run("attend", *files, "--dtype", "bf16", "--check=0", "--out", self.folder / "out.npy")
        self.assertEqual(read_npy(self.folder / "out.npy")[0]["descr"], "|V2")
        run("attend", *files, "--dtype", "bfloat16", "--out-dtype", "float32", "--out", self.folder / "out.npy")
        self.assertEqual(read_npy(self.folder / "out.npy")[0]["descr"], "<f4")
        self.expect_error("attend", *self.write_npys(), "--dtype", "bf16", saying="elements are <f4 (4 bytes)")

    def test_quantized_keys(self):
        shape, halves = (1, 8, 2, 4), (1, 8, 2, 2)
        numbers = [(7 * i) % 15 - 7 for i in range(64)]
        pairs = bytes((numbers[i] & 15) | (numbers[i + 1] & 15) << 4 for i in range(0, 64, 2))
        scales = [0.25 * 2 ** (i % 3) for i in range(16)]  # of each token and head
        rows = struct.pack("<64f", *(number * scales[i // 4] for i, number in enumerate(numbers)))
        expected = expected_attention(self.q, rows, rows)
        scale = self.write("scale.npy", npy(struct.pack("<16f", *scales), (1, 8, 2), "<f4"))
        options = ["--k-scale", scale, "--v-scale", scale, "--scale-block", "1", "--out", self.folder / "out.npy"]
        eighths = struct.pack("64b", *numbers)
        for kv_dtype, data, of, descr in (("i4", pairs, halves, "|u1"), ("i8", eighths, shape, "|u1"), ("i8", eighths, shape, "|i1")):
            arrays = {"q": npy(self.q), "k": npy(data, of, descr), "v": npy(data, of, descr)}
            cache = self.write("cache.npz", npz(arrays))
            done = run("attend", cache, "--kv-dtype", kv_dtype, *options, "--check=0")
            self.assertIn(f"k       (1, 8, 2, 4) {kv_dtype}", done.stdout)
            for got, wanted in zip(struct.unpack("<64f", read_npy(self.folder / "out.npy")[1]), expected):
                self.assertAlmostEqual(got, wanted, places=5)
            described = json.loads(run("attend", cache, "--kv-dtype", kv_dtype, *options, "--json").stdout)
            self.assertEqual((described["k"]["dtype"], described["k"]["shape"]), (kv_dtype, list(shape)))
            if descr == "|u1":
                self.expect_error("attend", cache, saying="k has elements of type |u1 without --kv-dtype, expected it to say what")
        self.expect_error("attend", cache, "--kv-dtype", "i4", saying="elements are |i1 (1 bytes), expected bytes, which --kv-dtype i4")
        self.assertIn("(1, 8, 2, 4) i8", run("attend", cache, "--kv-dtype", "int8", *options, "--check=0").stdout)
        self.expect_error("attend", cache, "--kv-dtype", "bf16", saying="--kv-dtype is 'bf16', expected f8e4m3fn, i8 or i4")

    def test_outputs(self):
        files = self.write_npys()
        run("attend", *files, "--out", self.folder / "o.npy", "--lse", self.folder / "l.npy")
        self.assertEqual(read_npy(self.folder / "l.npy")[0]["shape"], (1, 2, 8))
        run("attend", *files, "--out", self.folder / "both.npz", "--lse", self.folder / "both.npz")
        with zipfile.ZipFile(self.folder / "both.npz") as archive:
            self.assertEqual(archive.namelist(), ["out.npy", "lse.npy"])
            self.assertEqual(archive.read("out.npy"), (self.folder / "o.npy").read_bytes())
        run("attend", *files, "--out", self.folder / "o.safetensors")
        data = (self.folder / "o.safetensors").read_bytes()
        self.assertTrue(data.endswith(read_npy(self.folder / "o.npy")[1]))
        self.expect_error("attend", *files, "--out", "o.txt", saying="expected .npy, .npz or .safetensors")
        self.expect_error("attend", *files, "--out", "a.npy", "--lse", "a.npy", saying="one array, not 2")
        self.expect_error("attend", *files, "--out", self.folder / "no" / "o.npy", saying="cannot write")
        for option, name in (("--out", "no/o.npy"), ("--lse", "no/l.npz"), ("--out", "q.npy/o.npy")):
            # Said before anything is read: the input is not there either.
            self.expect_error("attend", self.folder / "nosuch.npy", option, self.folder / name, saying=f"{name}: cannot write")
        (self.folder / "folder.npy").mkdir()
        self.expect_error("attend", *files, "--out", self.folder / "folder.npy", saying="Is a directory")
        self.assertFalse((self.folder / "no").exists())

    def test_one_file_is_not_written_twice_nor_over_an_input(self):
        files = self.write_npys()
        both = self.folder / "both.npz"
        for other in (f"{self.folder}/./both.npz", f"{self.folder}/x/../both.npz"):
            (self.folder / "x").mkdir(exist_ok=True)
            self.expect_error("attend", *files, "--out", both, "--lse", other, saying="the same file")
        done = run("attend", *files, "--out", "both.npz", "--lse", "./both.npz", expect=2, cwd=self.folder)
        self.assertIn("the same file", done.stderr)
        (self.folder / "link.npy").symlink_to(files[0])
        for option in ("--out", "--lse"):
            self.expect_error("attend", *files, option, self.folder / "link.npy", saying="an input")
        self.assertEqual(files[0].read_bytes(), npy(self.q))
        seqlen, heads = SHAPE[1:3]
        mask = self.write("mask.npy", npy(b"\1" * seqlen**2, (1, 1, seqlen, seqlen), "|b1"))
        sink = self.write("sink.npz", npz({"sink": npy(bytes(8 * heads), (heads,), "<f8")}))
        before = mask.read_bytes(), sink.read_bytes()
        for option in ("--out", "--lse"):
            self.expect_error("attend", *files, "--mask", f"dense:{mask}", option, mask, saying="an input")
            self.expect_error("attend", *files, "--sink", f"{sink}:sink", option, sink, saying="an input")
        self.assertEqual((mask.read_bytes(), sink.read_bytes()), before)

    def test_a_write_that_fails_leaves_what_was_there(self):
        files = self.write_npys()
        for name in ("out.npy", "out.safetensors", "out.npz"):
            out = self.write(name, b"as it was")
            limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
            # Python ignores the signal of a file too large, and so does its child unless signals are restored.
            for restores in (False, True):
                done = subprocess.run([TESSELLA, "attend", *files, "--out", out], capture_output=True, text=True,
                                      preexec_fn=limit, restore_signals=restores)
                self.assertEqual(done.returncode, 2)
                self.assertRegex(done.stderr, f"{name}: cannot write: .*File too large")
                self.assertEqual(out.read_bytes(), b"as it was")
                self.assertEqual(sorted(p.name for p in self.folder.iterdir() if name in p.name), [name])
            out.chmod(0o600)
            run("attend", *files, "--out", out)
            self.assertEqual(out.stat().st_mode & 0o777, 0o600)

    def test_numbers_fit_their_type(self):
        files = self.write_npys()
        self.expect_error("attend", *files, "--alibi-slopes", "1,1e39", saying="--alibi-slopes: element 1 is 1e+39, beyond the largest f32")
        slopes = self.write("slopes.npy", npy(struct.pack("<2d", 1, 1e39), (2,), "<f8"))
        self.expect_error("attend", *files, "--alibi-slopes", slopes, saying="element 1 is 1e+39, beyond the largest f32")

    def test_arrays_that_are_not_used_may_be_of_any_type(self):
        arrays = {n: npy(x) for n, x in zip("qkv", (self.q, self.k, self.v))}
        odd = {
            "text": npy("hello".encode("utf-32-le"), (), "<U5"),
            "pickle": npy(b"any bytes", (2,), "|O"),
            "times": npy(bytes(512), descr="<M8[ns]"),
            "nine": npy(self.q, shape=(1,) * 8 + (64,)),
            "junk": b"no .npy file",
            "record": npy(bytes(12), (1,)).replace(b"'<f4'", b"[('a', '<f4', (3,)), ('b', '<U1')]"),
        }
        file = self.write("odd.npz", npz({**odd, **arrays}))
        self.assertIn("not used: text, pickle, times, nine, junk, record", run("attend", file, "--check=0").stderr)
        for name in odd:
            wrong = {"nine": "array has 9 axes", "junk": "no .npy file"}
            saying = wrong.get(name, "q has elements of type")
            done = run("attend", file, "--names", f"{name},k,v", expect=2)
            self.assertIn(f"odd.npz:{name}: {saying}", done.stderr)
            saying = wrong.get(name, "elements are ")
            done = run("attend", file, "--bias", f"{file}:{name}", expect=2)
            self.assertIn(f"--bias: {file}:{name}: {saying}", done.stderr)

    def test_empty_values(self):
        for option in ("--seqlens-kv", "--softcap", "--kernel", "--out", "--lse", "--names", "--dtype", "--mask"):
            self.expect_error("attend", SAMPLE, option, "", saying=f"{option} is '', expected a value")
        self.expect_error("attend", "", saying="FILE is ''")
        self.expect_error("bench", "--baseline", "", saying="--baseline is ''")

    def test_names_of_any_bytes(self):
        q, k, v = self.write_npys()
        name = os.fsencode(self.folder) + b"/\xff\x1b[31m.npy"
        pathlib.Path(os.fsdecode(name)).write_bytes(npy(self.q))
        done = subprocess.run([TESSELLA, "attend", name, k, v, "--json"], capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("\ufffd", json.loads(done.stdout)["q"]["from"])
        done = subprocess.run([TESSELLA, "attend", name, k], capture_output=True)
        self.assertNotIn(b"\x1b", done.stderr)

    def test_nan_is_counted(self):
        nan = npy(struct.pack("<64f", *[math.nan] * 64))
        q, k, v = self.write_npys()
        self.assertRegex(run("attend", self.write("n.npy", nan), k, v).stdout, r"out .*  all NaN\n")
        one = bytearray(self.v)
        one[-4:] = struct.pack("<f", math.nan)
        self.assertRegex(run("attend", q, k, self.write("w.npy", npy(bytes(one)))).stdout, r"min -?[\d.]+.*, 8 NaN\n")

    def test_one_prefix_stands_for_every_sequence(self):
        shape = (3, 8, 2, 4)
        files = [self.write(f"{n}.npy", npy(floats(i, shape), shape)) for i, n in enumerate("qkv")]
        outs = []
        for prefix in ("4", "4,4,4"):
            run("attend", *files, "--mask", f"prefix:{prefix}", "--check=0", "--out", self.folder / "o.npy")
            outs.append(read_npy(self.folder / "o.npy"))
        self.assertEqual(*outs)
        packed = [self.write(f"{n}.npy", npy(floats(i), SHAPE[1:])) for i, n in enumerate("qkv")]
        lengths = ["--cu-seqlens-q", "0,3,8", "--cu-seqlens-kv", "0,3,8"]
        run("attend", *packed, *lengths, "--mask", "prefix:2", "--check=0")

    def test_seed_is_any_64_bits(self):
        files = self.write_npys()
        run("attend", *files, "--dropout", 0.5, "--seed", 2**64 - 1, "--offset", 2**63, "--check=0")
        for seed in (2**64, -1, "1.5", "x"):
            self.expect_error("attend", *files, "--seed", seed, saying=f"--seed is {seed}, expected a whole number of 0 to {2**64 - 1}")

    def test_masks_and_options(self):
        files = self.write_npys()
        ids = self.write("ids.npy", npy(struct.pack("<8q", 0, 0, 0, 1, 1, 1, 2, 2), (8,), "<i8"))
        dense = self.write("dense.npy", npy(bytes([1, 0] * 32), (8, 8), "|b1"))
        bias = self.write("bias.npy", npy(floats(7, (8, 8)), (8, 8)))
        masks = ["none", "causal", "causal_top_left", "window:3,0", "window:2,-1", "chunk:3", "causal & keep_first:2",
                 "window:2,0&keep_first:1", "prefix:3", f"document:{ids}", "document:0,0,0,0,1,1,1,1", f"dense:{dense}"]
        for mask in masks:
            run("attend", *files, "--mask", mask, "--check=0")
        run("attend", *files, "--mask", "causal", "--mask", f"document:{ids}", "--scale", 0.3, "--softcap", 5, "--sink", "0.5,-1",
            "--alibi-slopes", "0.5,0.25", "--bias", bias, "--dropout", 0.25, "--seed", 3, "--seqlens-kv", 7, "--check=0")
        run("attend", *files, "--kernel", "reference.flash_2", "--num-threads", 1, "--check=0")

    def test_slots_and_drafts(self):
        q, k, v = self.write_npys()
        cache = [self.write(f"cache_{n}.npy", npy(floats(9) + x, (2, *SHAPE[1:]))) for n, x in zip("kv", (self.k, self.v))]
        run("attend", q, *cache, "--cache-batch-idx", 1, "--check=0", "--out", self.folder / "o.npy")
        self.check_out(self.folder / "o.npy")
        self.expect_error("attend", q, *cache, "--cache-batch-idx", 2, saying="tessella: --cache-batch-idx[0] is 2, expected 0 to 1")
        outs = []
        tree = self.write("tree.npy", npy(bytes(j <= i for i in range(8) for j in range(8)), (8, 8), "|b1"))
        for mask in (("--draft-mask", tree), ("--mask", "causal")):
            run("attend", q, k, v, *mask, "--check=0", "--out", self.folder / "o.npy")
            outs.append(struct.unpack("<64f", read_npy(self.folder / "o.npy")[1]))
        for got, expected in zip(*outs):
            self.assertAlmostEqual(got, expected, places=5)

    def test_ranges(self):
        """their arrays: axes that may be absent, packed rows, integers of any width, and what is wrong with others"""
        files = self.write_npys()
        packed = [self.write(f"packed_{n}.npy", npy(x, SHAPE[1:])) for n, x in zip("qkv", (self.q, self.k, self.v))]
        lengths = ["--cu-seqlens-q", "0,3,8", "--cu-seqlens-kv", "0,3,8"]
        whole = struct.pack("<16q", *(0, 8) * 8)
        for option in ("--key-ranges", "--query-ranges"):
            for shape in ((8, 1, 2), (1, 8, 1, 2), (1, 1, 8, 1, 2)):
                ranges = self.write("ranges.npy", npy(whole, shape, "<i8"))
                run("attend", *files, option, ranges, "--check=0", "--out", self.folder / "o.npy")
                self.check_out(self.folder / "o.npy")
                run("attend", *packed, *lengths, option, ranges, "--mask", "causal", "--check=0")
            row = "seqlen_q" if option == "--key-ranges" else "seqlen_kv"
            for shape, shown in (((4, 2, 2), "(4, 2, 2)"), ((8, 2), "(8, 2)"), ((2, 1, 4, 1, 2), "(2, 1, 4, 1, 2)")):
                saying = f"tessella: {option} has shape {shown}, expected (1 or 1, 2 or 1, 8, n, 2) = (batch, heads_q, {row}"
                self.expect_error("attend", *files, option, self.write("ranges.npy", npy(whole, shape, "<i8")), saying=saying)
            falling = self.write("falling.npy", npy(struct.pack("<16i", *(0, 8) * 3, 5, 2, *(0, 8) * 4), (8, 1, 2), "<i4"))
            self.expect_error("attend", *files, option, falling, saying=f"tessella: {option}[0, 0, 3, 0] is [5, 2), expected")

    def test_packed(self):
        files = [self.write(f"{n}.npy", npy(x, SHAPE[1:])) for n, x in zip("qkv", (self.q, self.k, self.v))]
        lengths = ["--cu-seqlens-q", "0,3,8", "--cu-seqlens-kv", "0,3,8"]
        run("attend", *files, *lengths, "--mask", "causal", "--check=0", "--lse", self.folder / "l.npy")
        self.assertEqual(read_npy(self.folder / "l.npy")[0]["shape"], (2, 8))

    def test_wrong_options(self):
        for arguments, saying in [
            (["--mask", "caual"], "--mask part is 'caual', expected one of none, causal"),
            (["--mask", "window:3"], "expected window:LEFT,RIGHT"),
            (["--mask", "causal:3"], "--mask causal takes no value"),
            (["--mask", "chunk:2 & chunk:3"], "--mask chunk is given twice"),
            (["--scale", "x"], "--scale is 'x', expected a number"),
            (["--seed", "-1"], "--seed is -1"),
            (["--sink", "1,2,3"], "sink"),
            (["--seqlens-kv", "1.5"], "expected a whole number that fits i32"),
            (["--layout", "sbhd"], "--layout is 'sbhd'"),
            (["--kernel", "nosuch"], "nosuch"),
            (["--dtype", "f8"], "--dtype is 'f8', expected one of f64, f32, bf16, f16, bool"),
            (["--no-such"], "'--no-such' is not taken, expected what `tessella attend --help` shows"),
            (["--scale"], "--scale has no value, expected one behind it"),
            (["--scale", "1", "--scale", "1"], "--scale is given twice, expected once"),
            (["--check", "5"], "FILE is '5', and no such file is there; rows are given as --check=5"),
            (["--scale", "1e400"], "--scale is 1e400, expected a number that float32 can hold"),
            (["--softcap", "1e-46"], "--softcap is 1e-46, expected a number that float32 can hold"),
            (["--sink", "1e400"], "--sink is 1e400, expected a number that float64 can hold"),
            (["--q-scale", "2"], "tessella: --q-scale is given and q.dtype is f32, expected a dtype of 8 or 4 bits\n"),
            (["--num-sms", "3"], "tessella: --num-sms is for GPUs, and q is on the CPU\n"),
            (["--dropout", "1"], "tessella: --dropout is 1, expected a probability in [0, 1)\n"),
            (["--mask", "dense:" + str(SAMPLE) + ":q"], "q: elements are F32, expected bool, or integers 0 and 1"),
            (["--keep", "return true;"], "--keep"),
            (["--mask-mod", "return true;"], "tessella: --mask-mod is for GPUs"),
            (["--score-mod", "return score;"], "tessella: --score-mod is for GPUs"),
            (["--deterministic", "yes"], "--deterministic is 'yes', expected automatic, required or not-needed"),
            (["--query-class", "few"], "tessella: --query-class is few, expected automatic unless --batch-invariant is set"),
            (["--batch-invariant", "--query-class", "few", "--kernel", "cpu.forward_baseline"],
             "--kernel is cpu.forward_baseline, which cannot run this call: is for many queries, and --query-class is few"),
            (["--first-query", "3"], "does not support slice"),
            (["--first-head", "3", "--whole-heads-q", "14"], "--whole-heads-q is 14, expected 15"),
            (["--scale-block", "64"], "--scale-block is 64, expected 0 without --q-scale"),
            (["--k-scale", "2", "--scale-block", "64"], "--k-scale is given and k.dtype is f32, expected a dtype of 8 or 4 bits"),
            (["--k-scale", "2,3"], "--k-scale has shape (2), expected one that broadcasts to (1, 1, 12)"),
            (["--out-dtype", "i8"], "--out-dtype is 'i8', expected f64, f32, bf16, f16, f8e4m3fn or f8e5m2"),
            (["--check=x"], "--check is 'x'"),
            (["--scale", "nan"], "--scale is nan, expected a finite number"),
            (["--softcap", "1e99"], "--softcap is 1e99, expected a number that float32 can hold"),
            (["--seqlens-kv", "abc"], "--seqlens-kv: abc: cannot open"),
            (["--mask", "prefix:"], "--mask prefix is '', expected numbers 1,2,3 or FILE[:NAME]"),
            (["--mask", "document:x"], "--mask document: x: cannot open"),
            (["--mask", "dense:"], "--mask dense is '', expected FILE[:NAME]"),
        ]:
            self.expect_error("attend", SAMPLE, *arguments, saying=saying)

    def test_wrong_environment(self):
        for threads in ("abc", "0", "2x", "99999999999"):
            saying = f"TESSELLA_NUM_THREADS is '{threads}', expected a number of at least 1"
            self.expect_error("attend", SAMPLE, saying=saying, TESSELLA_NUM_THREADS=threads)
            self.expect_error("info", saying=saying, TESSELLA_NUM_THREADS=threads)
            self.expect_error("bench", "--seqlen", "32,64", saying=saying, TESSELLA_NUM_THREADS=threads)
        run("attend", SAMPLE, TESSELLA_NUM_THREADS="")
        for values in ("2", "yes"):
            saying = f"TESSELLA_CHECK_DEVICE_VALUES is '{values}', expected 0 or 1"
            self.expect_error("attend", SAMPLE, saying=saying, TESSELLA_CHECK_DEVICE_VALUES=values)
        saying = 'tessella: TESSELLA_KERNEL is "nope", expected one of cpu.'
        self.expect_error("attend", SAMPLE, saying=saying, TESSELLA_KERNEL="nope")
        self.expect_error("bench", "--seqlen", "32,64", saying=saying, TESSELLA_KERNEL="nope")
        self.expect_error("attend", SAMPLE, "--kernel", "nope", saying='tessella: --kernel is "nope", expected one of cpu.')
        wrong = {"TESSELLA_KERNEL": "cuda.decode"}
        if "cuda.decode" in run("kernels").stdout:
            self.expect_error("attend", SAMPLE, saying="TESSELLA_KERNEL is cuda.decode, which cannot run this call", **wrong)
            self.expect_error("kernels", "build", saying="/dev/null/x: Not a directory (TESSELLA_CACHE_DIR)",
                              TESSELLA_CACHE_DIR="/dev/null/x")
            self.assertIn("TESSELLA_NVRTC is '/nope', expected the path of NVRTC version", run("info", TESSELLA_NVRTC="/nope").stdout)

    def test_json(self):
        result = json.loads(run("attend", SAMPLE, "--check", "--explain", "--json").stdout)
        self.assertTrue(result["check"]["passed"])
        self.assertEqual(result["q"]["shape"], [1, 347, 12, 32])
        self.assertIn(result["kernel"], result["explain"])
        self.assertNotIn("lse", result)
        file = str(self.folder / "lse.npy")
        result = json.loads(run("attend", SAMPLE, "--lse", file, "--json").stdout)
        self.assertEqual(result["lse"], {"shape": [1, 12, 347], "dtype": "f32", "from": file})
        self.assertIn("lse     (1, 12, 347) f32  min ", run("attend", SAMPLE, "--lse", file).stdout)

    @unittest.skipUnless(numpy, "numpy is not installed")
    def test_numpy(self):
        arrays = {n: numpy.random.randn(2, 5, 3, 8).astype("f2") for n in "qkv"}
        numpy.savez_compressed(self.folder / "x.npz", **arrays)
        run("attend", self.folder / "x.npz", "--out", self.folder / "out.npz", "--check=0")
        self.assertEqual(numpy.load(self.folder / "out.npz")["out"].dtype, numpy.float16)
        numpy.save(self.folder / "f.npy", numpy.asfortranarray(arrays["q"]))
        outs = []
        for file in ("f.npy", "c.npy"):
            numpy.save(self.folder / "c.npy", arrays["q"])
            run("attend", *[self.folder / file] * 3, "--out", self.folder / f"out_{file}", "--check=0")
            outs.append(numpy.load(self.folder / f"out_{file}").tobytes())
        self.assertEqual(*outs)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
