"""Gradients on the command line: attend, bench, ladder and kernels with --backward."""

import json
import math
import struct
import sys
import unittest
import zipfile

from array_files import SHAPE, floats, npy, npz, read_npy
from cli_case import CliTest, expected_attention, run

BIAS = (8, 8)


def loss(q, k, v, d_out):
    out = expected_attention(q, k, v)
    return sum(a * b for a, b in zip(out, struct.unpack(f"<{len(out)}f", d_out)))


def slope(operands, idx, at, d_out):
    """Of the loss by one element of one operand."""
    step, losses, steps = 1 / 64, [], []
    for sign in (1, -1):
        values = list(struct.unpack("<64f", operands[idx]))
        was = values[at]
        changed = list(operands)
        values[at] = was + sign * step
        changed[idx] = struct.pack("<64f", *values)
        steps.append(struct.unpack("<64f", changed[idx])[at])
        losses.append(loss(*changed, d_out))
    return (losses[0] - losses[1]) / (steps[0] - steps[1])


class Backward(CliTest):
    def setUp(self):
        super().setUp()
        self.d = floats(9)
        self.d_out = self.write("d_out.npy", npy(self.d))

    def check_gradients(self, files):
        for idx, path in enumerate(files):
            header, data = read_npy(path)
            self.assertEqual((header["shape"], header["descr"]), (SHAPE, "<f4"))
            got = struct.unpack("<64f", data)
            for at in range(0, 64, 7):
                self.assertAlmostEqual(got[at], slope((self.q, self.k, self.v), idx, at, self.d), delta=2e-3)

    def test_each_gradient_in_its_file(self):
        files = [self.folder / f"d{n}.npy" for n in "qkv"]
        options = [x for n, file in zip("qkv", files) for x in (f"--d{n}", file)]
        done = run("attend", *self.write_npys(), "--backward", self.d_out, *options, "--check=0")
        self.assertIn("check   passed: 16 rows against the float64 reference", done.stdout)
        self.assertIn("check   passed: gradients of 16 rows against the float64 reference", done.stdout)
        self.assertRegex(done.stdout, r"dk +\(1, 8, 2, 4\) f32  min .* -> .*dk.npy\n")
        self.check_gradients(files)
        before = files[2].read_bytes()
        files[0].unlink()
        done = run("attend", *self.write_npys(), "--backward", self.d_out, "--dv", files[2])
        self.assertNotIn("dq", done.stdout)  # what has no file is not computed beside one that has
        self.assertEqual(files[2].read_bytes(), before)

    def test_all_in_one_file(self):
        bias = self.write("bias.npy", npy(floats(7, BIAS), BIAS))
        d_lse = self.write("d_lse.npy", npy(floats(8, (1, 2, 8)), (1, 2, 8)))
        scores = ["--bias", bias, "--sink", "0.5,-1", "--alibi-slopes", "0.5,0.25", "--softcap", 5, "--dropout", 0.25]
        file = self.folder / "all.npz"
        run("attend", *self.write_npys(), "--mask", "causal", *scores, "--backward", self.d_out, "--d-lse", d_lse,
            "--gradients", file, "--check=0")
        with zipfile.ZipFile(file) as archive:
            self.assertEqual(archive.namelist(), [f"{n}.npy" for n in ("dq", "dk", "dv", "d_bias", "d_sink", "d_alibi_slopes")])
            archive.extractall(self.folder)
        self.assertEqual(read_npy(self.folder / "d_bias.npy")[0]["shape"], BIAS)
        self.assertEqual(read_npy(self.folder / "d_sink.npy")[0]["shape"], (2,))
        self.assertEqual(read_npy(self.folder / "d_alibi_slopes.npy")[0]["shape"], (2,))
        run("attend", *self.write_npys(), "--backward", self.d_out, "--gradients", self.folder / "all.safetensors")
        self.assertIn(b'"dv"', (self.folder / "all.safetensors").read_bytes())

    def test_ranges(self):
        """of keys and of queries: out and gradients are those of the same mask as a matrix"""
        of_keys = [[(0, i // 2), (i, i + 1)] for i in range(8)]
        of_queries = [[(j, 6 if j in (4, 5) else 8)] for j in range(8)]  # a prompt and two answers
        covers = lambda row, index: any(start <= index < end for start, end in row)
        for option, rows, shows in (
            ("--key-ranges", of_keys, lambda i, j: covers(of_keys[i], j)),
            ("--query-ranges", of_queries, lambda i, j: covers(of_queries[j], i)),
        ):
            numbers = [bound for row in rows for interval in row for bound in interval]
            shape = (8, len(rows[0]), 2)
            ranges = self.write("ranges.npy", npy(struct.pack(f"<{len(numbers)}i", *numbers), shape, "<i4"))
            visible = bytes(shows(i, j) for i in range(8) for j in range(8))
            dense = self.write("dense.npy", npy(visible, (8, 8), "|b1"))
            results = []
            for mask in ((option, ranges), ("--mask", f"dense:{dense}")):
                written = [self.folder / f"{n}.npy" for n in ("out", "dq", "dk", "dv")]
                options = [x for path in written for x in (f"--{path.stem}", path)]
                run("attend", *self.write_npys(), *mask, "--backward", self.d_out, *options, "--check=0")
                results.append([x for path in written for x in struct.unpack("<64f", read_npy(path)[1])])
            for got, expected in zip(*results):
                self.assertAlmostEqual(got, expected, places=5)

    def test_bhsd_layout(self):
        swapped = lambda x: b"".join(x[(s * 2 + h) * 16 : (s * 2 + h) * 16 + 16] for h in range(2) for s in range(8))
        back = lambda x: b"".join(x[(h * 8 + s) * 16 : (h * 8 + s) * 16 + 16] for s in range(8) for h in range(2))
        shape = (1, 2, 8, 4)
        files = [self.write(f"{n}.npy", npy(swapped(x), shape)) for n, x in zip("qkv", (self.q, self.k, self.v))]
        d_out = self.write("d.npy", npy(swapped(self.d), shape))
        run("attend", *files, "--layout", "bhsd", "--backward", d_out, "--gradients", self.folder / "g.npz", "--check")
        with zipfile.ZipFile(self.folder / "g.npz") as archive:
            archive.extractall(self.folder)
        for n in "qkv":
            header, data = read_npy(self.folder / f"d{n}.npy")
            self.assertEqual(header["shape"], shape)
            self.write(f"d{n}.npy", npy(back(data)))
        self.check_gradients([self.folder / f"d{n}.npy" for n in "qkv"])

    def test_packed_and_raw_bf16(self):
        raw = lambda x: b"".join(x[i + 2 : i + 4] for i in range(0, len(x), 4))
        shape = SHAPE[1:]
        files = [self.write(f"{n}.npy", npy(raw(x), shape, "|V2")) for n, x in zip("qkv", (self.q, self.k, self.v))]
        d_out = self.write("d.npy", npy(raw(self.d), shape, "|V2"))
        lengths = ["--cu-seqlens-q", "0,3,8", "--cu-seqlens-kv", "0,3,8"]
        options = [*lengths, "--mask", "causal", "--dtype", "bf16", "--backward", d_out, "--dk", self.folder / "dk.npy"]
        self.assertIn("bf16 is written raw", run("attend", *files, *options, "--check=0").stderr)
        self.assertEqual(read_npy(self.folder / "dk.npy")[0], {"descr": "|V2", "fortran_order": False, "shape": shape})

    def test_kernel_is_of_either_operation(self):
        for kernel, forward, backward in (
            ("reference.flash_backward", "cpu.decode_", "reference.flash_backward"),
            ("reference.flash_2", "reference.flash_2", "cpu.backward_"),
        ):
            done = run("attend", *self.write_npys(), "--backward", self.d_out, "--kernel", kernel, "--json", "--explain",
                       "--check=0")
            document = json.loads(done.stdout)
            self.assertTrue(document["kernel"].startswith(forward))
            self.assertTrue(document["backward"]["kernel"].startswith(backward))
            self.assertIn("operation=backward", document["backward"]["explain"])
            self.assertTrue(document["check"]["passed"] and document["backward"]["check"]["passed"])
            self.assertEqual(document["backward"]["dq"]["shape"], list(SHAPE))

    def test_errors(self):
        files = self.write_npys()
        q = files[0].read_bytes()
        wanted = ["--backward", self.d_out]
        for arguments, saying in [
            (["--dq", "x.npy"], "--dq is given without --backward, expected beside it"),
            (["--d-lse", "x.npy"], "--d-lse is given without --backward"),
            ([*wanted, "--dv", "x.npy", "--gradients", "g.npz"], "--gradients and --dv are both given, expected one"),
            ([*wanted, "--gradients", "g.npy"], "one array, not 3"),
            ([*wanted, "--dq", self.folder / "no" / "dq.npy"], "cannot write"),
            ([*wanted, "--dq", self.folder / "x.npy", "--out", f"{self.folder}/./x.npy"], "./x.npy, the same file"),
            ([*wanted, "--dq", self.folder / "x.npy", "--dk", self.folder / "x.npy"], "the same file"),
            ([*wanted, "--dq", files[0]], "an input"),
            ([*wanted, "--dq", self.d_out], "an input"),
            (["--backward", self.write("w.npy", npy(self.d, (1, 8, 4, 2)))], "d_out.shape[2] is 4, expected 2 = that of out"),
            (["--backward", self.folder / "nosuch.npy"], "cannot open"),
            ([*wanted, "--kernel", "nosuch"], "nosuch"),
        ]:
            self.expect_error("attend", *files, *arguments, saying=saying)
        self.assertEqual((files[0].read_bytes(), self.d_out.read_bytes()), (q, npy(self.d)))

    def test_bench(self):
        small = ["bench", "--backward", "--seqlen", "32:64", "--head-dim", 16, "--heads", "4/2", "--batch", 2, "--budget", 0.01]
        document = json.loads(run(*small, "--dtype", "f32,bf16", "--mask", "none,causal", "--json").stdout)
        rows = document["results"]
        self.assertEqual(document["operation"], "backward")
        self.assertEqual({(row["check"], row["baseline"]) for row in rows}, {("ok", "reference.standard_backward")})
        self.assertTrue(all(row["kernel"].startswith("cpu.backward_") for row in rows))
        for row in rows:  # 2.5 times the forward's
            heads = int(row["heads"].split("/")[0])  # fewer than asked for on a slow machine
            flops = 10 * row["batch"] * heads * row["seqlen"] ** 2 * 16 * (0.5 if row["mask"] == "causal" else 1)
            self.assertTrue(math.isclose(row["flops"], flops / row["seconds"], rel_tol=1e-6))
        long = ["bench", "--backward", "--seqlen", 600, "--head-dim", 16, "--heads", 1, "--batch", 1, "--mask", "none"]
        row = json.loads(run(*long, "--baseline", "none", "--budget", 0.01, "--json").stdout)["results"][0]
        self.assertEqual((row["check"], row["check_seqlen"], row["seqlen"]), ("ok", 512, 600))
        self.expect_error(*small, "--kernel", "reference.flash_2", saying="cpu.backward_baseline")

    def test_ladder(self):
        small = ["ladder", "--backward", "--seqlen", 64, "--head-dim", 16, "--heads", "2/1", "--budget", 0.01]
        rows = {row["kernel"]: row for row in json.loads(run(*small, "--json").stdout)["results"]}
        self.assertTrue(all(row["check"] == "ok" for row in rows.values()))
        standard, flash = rows["reference.standard_backward"], rows["reference.flash_backward"]
        self.assertEqual((standard["score_passes"], flash["score_passes"]), (6, 1))
        self.assertNotIn("reference.flash_2", rows)
        for fields in ("bytes_moved", "extra_bytes"):
            self.assertGreater(standard[fields], 0)

    def test_kernels(self):
        rows = {row["kernel"]: row for row in json.loads(run("kernels", "--json").stdout)["results"]}
        for name, row in rows.items():
            self.assertEqual("d_bias" in row["features"].split(), row["operation"] == "backward", name)
        without = "draft_mask, page_table, cache_batch_idx, score_mod, mask_mod, k_scale/v_scale, transposed_v, q_scale/out_scale/amax, mask_map, schedule"
        self.assertRegex(run("kernels").stdout, rf"reference.backward .* all but {without} ")
        why = run("kernels", "--why", "--backward", "--dtype", "f64", "--seqlen", 10).stdout
        self.assertRegex(why, r"cpu.backward_\w+ +runs this")
        self.assertNotIn("forward", why)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
