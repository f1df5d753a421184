"""tessella merge: states of attention out of files."""

import json
import math
import struct
import sys
import unittest
import zipfile

from array_files import floats, npy, npz, read_npy
from cli_case import CliTest, run


class Merge(CliTest):
    """Rows 0 to 4 and 5 to 7 of k and v are two sets of keys."""

    def setUp(self):
        super().setUp()
        self.rows = lambda x, begin, end: x[begin * 32 : end * 32]  # 2 heads of 4 floats
        self.files = [self.state("a", 0, 5), self.state("b", 5, 8)]

    def state(self, name, begin, end):
        kv = (1, end - begin, 2, 4)
        q, k, v = npy(self.q), npy(self.rows(self.k, begin, end), kv), npy(self.rows(self.v, begin, end), kv)
        files = [self.write(f"{name}_{n}.npy", x) for n, x in zip("qkv", (q, k, v))]
        path = self.folder / f"{name}.npz"
        run("attend", *files, "--out", path, "--lse", path)
        return path

    def test_is_attention_over_all_keys(self):
        for extra in ((), ("--kernel", "reference.merge"), ("--num-threads", 1)):
            done = run("merge", *self.files, "--out", self.folder / "out.npy", "--check=0", *extra)
            self.assertIn("check   passed: 16 rows against the float64 reference", done.stdout)
            self.check_out(self.folder / "out.npy")

    def test_three_states_and_one(self):
        with_none = self.folder / "none.npz"
        infinity = struct.pack("<16f", *[-math.inf] * 16)
        with_none.write_bytes(npz({"out": npy(self.q), "lse": npy(infinity, (1, 2, 8))}))  # no keys: its out is nothing
        run("merge", self.files[0], with_none, self.files[1], "--out", self.folder / "out.npy", "--check")
        self.check_out(self.folder / "out.npy")
        both = self.folder / "one.npz"
        done = run("merge", both.with_name("a.npz"), "--out", both, "--lse", both, "--check")
        for name, shape in (("out", r"\(1, 8, 2, 4\)"), ("lse", r"\(1, 2, 8\)")):
            self.assertRegex(done.stdout, rf"(?m)^{name} +{shape} f32  min .*one.npz$")
        document = json.loads(run("merge", *self.files, "--lse", self.folder / "lse.npy", "--json").stdout)
        self.assertEqual([document[name]["from"] for name in ("out", "lse")], [None, str(self.folder / "lse.npy")])
        with zipfile.ZipFile(both) as one, zipfile.ZipFile(self.files[0]) as a:
            for name in ("out.npy", "lse.npy"):
                self.assertEqual(one.read(name), a.read(name))

    def test_names_without_case(self):
        for out, lse in (("OUT", "Lse"), ("attn.output", "attn.softmax_lse")):
            for file in self.files:
                with zipfile.ZipFile(file) as archive:
                    arrays = {lse: archive.read("lse.npy"), out: archive.read("out.npy")}
                self.write(f"named_{file.name}", npz(arrays))
            named = [self.folder / f"named_{file.name}" for file in self.files]
            run("merge", *named, "--out", self.folder / "out.npy", "--check=0")
            self.check_out(self.folder / "out.npy")

    def test_json_and_explain(self):
        document = json.loads(run("merge", *self.files, "--check", "--json", "--explain").stdout)
        self.assertEqual([state["shape"] for state in document["states"]], [[1, 8, 2, 4]] * 2)
        self.assertTrue(document["check"]["passed"])
        self.assertIn("num_states=2", document["explain"])
        self.assertTrue(document["kernel"].startswith("cpu.merge_"))

    def test_shapes_are_those_of_the_layout(self):
        files = [self.write(f"s{i}.npz", npz({"out": npy(self.q, (1, 2, 8, 4)), "lse": npy(self.q[:64], (1, 2, 8))})) for i in range(2)]
        done = run("merge", *files, "--layout", "bhsd")
        for name in ("state", "out"):
            self.assertRegex(done.stdout, rf"(?m)^{name} +\(1, 2, 8, 4\) f32")
        document = json.loads(run("merge", *files, "--layout", "bhsd", "--json").stdout)
        self.assertEqual([array["shape"] for array in (*document["states"], document["out"])], [[1, 2, 8, 4]] * 3)

    def test_out_dtype(self):
        run("merge", *self.files, "--out-dtype", "f16", "--out", self.folder / "out.npy", "--check")
        self.assertEqual(read_npy(self.folder / "out.npy")[0]["descr"], "<f2")
        done = run("merge", *self.files, "--out-dtype", "bf16", "--out", self.folder / "out.npy")
        self.assertIn("bf16 is written raw", done.stderr)

    def test_errors(self):
        twice = self.write("twice.npz", npz({n: npy(self.q) for n in ("Out", "output", "lse")}))
        self.expect_error("merge", twice, saying="twice.npz:output may both be out, expected one; the files have Out, output, lse")
        qkv = self.write("qkv.npz", npz({n: npy(x) for n, x in zip("qkv", (self.q, self.k, self.v))}))
        (self.folder / "link.npz").symlink_to(self.files[0])
        for again in (self.files[0], self.folder / "link.npz"):
            self.expect_error("merge", self.files[0], again, "--check", saying="are the same file, expected states of disjoint sets of keys")
        self.expect_error("merge", *self.files, "--check", "5", saying="rows are given as --check=5")
        self.expect_error("merge", qkv, saying="qkv.npz: has q, k, v, expected arrays out and lse")
        self.expect_error("merge", *self.files, "--out", self.files[0], saying="--out is")
        self.expect_error("merge", *self.files, "--layout", "sbhd", saying="--layout is 'sbhd', expected bshd or bhsd")
        self.expect_error("merge", *self.files, "--dtype", "bf16", saying="--dtype says bf16 (2 bytes)")
        self.expect_error("merge", "none.npz", "--num-threads", "x", saying="--num-threads is 'x', expected a whole number")
        self.expect_error("merge", *self.files, "--kernel", "cpu.forward_baseline", saying="computes forward, not merge")
        self.expect_error("merge", *self.files, "--kernel", "nobody", saying='tessella: --kernel is "nobody", expected one of cpu.')
        other = self.write("c.npz", npz({"out": npy(self.q, (1, 8, 4, 2)), "lse": npy(self.q[:64], (1, 2, 8))}))
        self.expect_error(
            "merge", self.files[0], other, saying="tessella: outs[1].shape[2] is 4, expected 2 = the heads of outs[0]"
        )


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
