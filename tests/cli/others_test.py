"""Commands other than attend, and what all have in common."""

import csv
import io
import json
import pathlib
import platform
import re
import subprocess
import sys
import time
import unittest

from array_files import npy
from cli_case import CliTest, REPOSITORY, SAMPLE, TESSELLA, run


class Others(CliTest):
    @unittest.skipUnless(pathlib.Path("/dev/full").exists(), "/dev/full is a thing of Linux")
    def test_outputs_that_take_nothing(self):
        with open("/dev/full", "w") as full:
            for arguments in (["attend", SAMPLE, "--json"], ["kernels"], ["info"], ["--version"]):
                done = subprocess.run([TESSELLA, *arguments], stdout=full, stderr=subprocess.PIPE, text=True)
                self.assertEqual((done.returncode, done.stderr),
                                 (2, "tessella: cannot write the results: No space left on device\n"))
            for arguments, code in ((["nonsense"], 2), (["attend", SAMPLE], 0), (["attend", "nosuch.npy"], 2)):
                done = subprocess.run([TESSELLA, *arguments], stdout=subprocess.DEVNULL, stderr=full)
                self.assertEqual(done.returncode, code)
                done = subprocess.run(["sh", "-c", 'exec "$@" 2>&-', "sh", TESSELLA, *arguments], stdout=subprocess.DEVNULL)
                self.assertEqual(done.returncode, code)

    def test_info(self):
        self.assertIn("version: ", run("info").stdout)
        about = json.loads(run("info", "--json").stdout)["library"]
        for name in ("version", "CUDA driver", "NVRTC", "kernel cache", "embedded kernels"):
            self.assertIn(name, about)

    def test_kernels_build(self):
        self.expect_error("kernels", "build", "--arch", "sm_70", saying="tessella: --arch has 'sm_70', expected sm_80 or later")
        self.expect_error("kernels", "--why", "--dtype", "f32", "build", saying="--why is given before build, which has no such option")
        self.expect_error("kernels", "--kernel", "cuda.decode", "build", saying="--kernel is given before build, expected behind it")
        self.expect_error("kernels", "build", "--arch", "", saying="expected a value")
        self.expect_error("kernels", "build", "--kernel", "nonsense", saying="expected one of")
        self.assertIn("Compile GPU kernels", run("kernels", "build", "--help").stdout)

    def test_kernels(self):
        self.assertIn("reference.attention", run("kernels").stdout)
        why = run("kernels", "--why", "--dtype", "f64", "--head-dim", 64, "--seqlen", 100, "--mask", "causal").stdout
        self.assertIn("runs this", why)
        self.assertIn("does not compute f64", why)
        rows = json.loads(run("kernels", "--json").stdout)["results"]
        self.assertEqual(sum(row["operation"] == "forward" for row in rows), why.count("\n") - 1)
        operations = {"forward", "backward", "merge", "append", "copy_pages", "quantize", "dequantize", "linear"}
        self.assertEqual({row["operation"] for row in rows}, operations)
        self.assertIn("any", {row["architectures"] for row in rows})
        quantized = run("kernels", "--why", "--dtype", "f8e4m3fn", "--head-dim", 64).stdout
        self.assertIn("runs this", quantized)
        self.assertIn("does not compute f8e4m3fn", quantized)
        self.expect_error("kernels", "--why", "--heads", "3/2", saying="multiple of KV heads")
        self.expect_error("kernels", "--seqlen", 5, "--json", saying="--seqlen is given without --why")
        for arguments in ((), ("--why",)):
            rows = json.loads(run("kernels", *arguments, "--json").stdout)["results"]
            lines = list(csv.DictReader(io.StringIO(run("kernels", *arguments, "--csv").stdout)))
            self.assertEqual(lines, [{key: str(value) for key, value in row.items()} for row in rows])
            self.expect_error("kernels", *arguments, "--csv", "--json", saying="more than one is given")

    @unittest.skipUnless(platform.machine() == "x86_64", "the page shows the kernels of x86-64")
    def test_docs_show_the_support_matrix(self):
        page = (REPOSITORY / "docs/kernels/README.md").read_text()
        shown = page.split("<!-- tessella kernels --markdown -->\n")[1].split("<!-- end -->")[0]
        self.assertEqual(shown, run("kernels", "--markdown").stdout, "paste the output of `tessella kernels --markdown`")

    def test_ladder(self):
        done = run("ladder", "--seqlen", 64, "--head-dim", 16, "--heads", "2/1", "--budget", 0.01, "--json")
        rows = {row["kernel"]: row for row in json.loads(done.stdout)["results"]}
        decoding = ("flash_decoding", "flash_decoding_pp")
        for name in ("standard", "safe_softmax", "online_softmax", "one_pass", "flash_1", "flash_2", *decoding):
            self.assertEqual(rows[f"reference.{name}"]["check"], "ok")
        self.assertGreater(rows["reference.standard"]["extra_bytes"], rows["reference.flash_2"]["extra_bytes"])
        self.assertEqual(run("ladder", "--seqlen", 64, "--budget", 0.01, "--csv").stdout.count("\n"), len(rows) + 1)

    def test_ladder_of_8_bits(self):
        few = ["ladder", "--seqlen", 64, "--head-dim", 16, "--budget", 0.01, "--json"]
        for dtype, expected in (("bf16", {"bf16", "f8e4m3fn"}), ("f8e5m2", {"f8e5m2"})):
            rows = json.loads(run(*few, "--dtype", dtype).stdout)["results"]
            self.assertEqual({row["dtype"] for row in rows}, expected)
            self.assertTrue(all(row["check"] == "ok" for row in rows))

    def test_ladder_decode(self):
        few = ["ladder", "--decode", "--head-dim", 16, "--seqlen", "2k", "--budget", 0.01]
        for queries in (1, 3):
            document = json.loads(run(*few, "--queries", queries, "--json").stdout)
            self.assertEqual([document["problem"][name] for name in ("queries", "seqlen", "mask")], [queries, 2048, "causal"])
            rows = {row["kernel"]: row for row in document["results"]}
            self.assertTrue(all(row["check"] == "ok" for row in rows.values()))
            moved = {name: rows[f"reference.{name}"]["bytes_moved"] for name in ("flash_2", "flash_decoding")}
            self.assertLess(moved["flash_2"], moved["flash_decoding"])
            self.assertLess(moved["flash_decoding"], 1.1 * moved["flash_2"])
        self.assertIn("queries 1, seqlen 2048, heads 8/2", run(*few).stderr)
        self.expect_error(*few, "--queries", 4096, saying="--queries is 4096")
        self.expect_error(*few, "--backward", saying="expected one")
        self.expect_error("ladder", "--queries", 2, saying="without --decode")

    def test_ladder_linear(self):
        small = ["ladder", "linear", "96x40", "30x64", "--budget", 0.01]
        for extra in ([], ["--swiglu"], ["--dtype", "f16", "--w-dtype", "i8"], ["--dtype", "f32", "--w-dtype", "f8e4m3fn"]):
            document = json.loads(run(*small, *extra, "--rows", "1,9", "--num-threads", 1, "--json").stdout)
            self.assertEqual(document["command"], "ladder linear")
            rows = document["results"]
            kernels = {row["kernel"] for row in rows}
            self.assertIn("cpu.linear_baseline", kernels)
            self.assertTrue(all(name.startswith("cpu.linear_") for name in kernels))
            self.assertEqual({(row["w"], row["rows"]) for row in rows}, {(w, n) for w in ("96x40", "30x64") for n in (1, 9)})
            self.assertEqual(len(rows), len({(row["w"], row["rows"], row["kernel"]) for row in rows}))
            for row in rows:
                self.assertEqual((row["check"], row["threads"]), ("ok", 1), row)
                self.assertEqual(row["activation"], "swiglu" if "--swiglu" in extra else "none")
                elements = 96 * 40 if row["w"] == "96x40" else 30 * 64
                self.assertEqual(row["weight_bytes"], elements * {"f32": 4, "bf16": 2, "f16": 2, "i8": 1, "f8e4m3fn": 1}[row["w_dtype"]])
                self.assertAlmostEqual(row["bytes_per_second"] * row["seconds"], row["weight_bytes"], delta=1)
                self.assertAlmostEqual(row["read_ratio"] * row["seconds"], row["read_seconds"])
        done = run("ladder", "linear", "96x40", "--budget", 0.01, "--csv")
        self.assertEqual([row["rows"] for row in csv.DictReader(io.StringIO(done.stdout)) if row["kernel"] == "cpu.linear_baseline"],
                         ["1", "8", "16", "64"])
        self.assertEqual(run("ladder", "linear", "96x40", "--rows", 1, "--budget", 0.01).stdout.split()[:3], ["w", "rows", "kernel"])
        too_large = run("ladder", "linear", "2000000000x2000000000", expect=2)
        self.assertEqual(too_large.stdout, "")
        self.assertIn("not run at 2000000000x2000000000: it takes ", too_large.stderr)
        for arguments, saying in [
            ([], "SHAPES"),
            (["96"], "a shape is '96', expected OUTxIN, the rows and columns of w, as 12288x4096, or llama2-7b"),
            (["0x4"], "a shape's rows is 0"),
            (["5x4", "--swiglu"], "a shape is '5x4' with --swiglu, expected an even number of rows"),
            (["8x8", "--dtype", "f64"], "--dtype is 'f64', expected bf16, f16 or f32"),
            (["8x8", "--w-dtype", "f32"], "--w-dtype is 'f32', expected that of --dtype, i8 or f8e4m3fn"),
            (["8x8", "--rows", "0"], "--rows is 0"),
            (["8x8", "--rows", "2m"], "--rows is 2097152, expected at most 1048576"),
            (["8x8", "--check-rows", "0"], "--check-rows is 0"),
            (["8x8", "--budget", "0"], "--budget is 0"),
            (["8x8", "--device", "tpu"], "--device is 'tpu'"),
            (["8x8", "--json", "--csv"], "expected one"),
        ]:
            self.expect_error("ladder", "linear", *arguments, saying=saying)
        self.expect_error("ladder", "--dtype", "bf16", "linear", "8x8", saying="--dtype is given before linear, expected behind it")

    def test_bench(self):
        small = ["--seqlen", "32:128", "--head-dim", 16, "--heads", "4/2", "--batch", 2, "--budget", 0.01]
        done = run("bench", *small, "--dtype", "f32", "--mask", "none,causal,window:8,0", "--json")
        rows = json.loads(done.stdout)["results"]
        self.assertEqual([row["seqlen"] for row in rows], [32, 64, 128] * 3)
        self.assertTrue(all(row["check"] == "ok" and row["speedup"] > 0 for row in rows))
        self.assertIsNone(rows[-1]["flops"])
        printed = run("bench", *small, "--baseline", "none", "--kernel", "reference.flash_1,reference.flash_2").stdout
        self.assertEqual(printed.count("\n"), 1 + 2 * 3 * 2)
        self.assertEqual(run("bench", *small, "--csv").stdout.splitlines()[0].split(",")[0], "kernel")
        for arguments, saying in [
            (["--preset", "x"], "expected one of paper, gpt2, llama"),
            (["--seqlen", "16:8"], "--seqlen is 8, expected 16"),
            (["--seqlen", "0"], "--seqlen is 0"),
            (["--dtype", "x"], "--dtype is 'x', expected f64, f32, bf16, f16, f8e4m3fn or f8e5m2"),
            (["--dtype", "i8"], "expected a float; caches of 8 and 4 bits are timed by `tessella bench decode --kv-dtype`"),
            (["--json", "decode"], "--json is given before decode, expected behind it"),
            (["--seqlen", "128", "--mask", "causal", "decode"], "--seqlen is given before decode, expected behind it"),
            (["--mask", "causal", "decode"], "--mask is given before decode, which has no such option"),
            (["--budget", "0"], "--budget is 0"),
            (["--json", "--csv"], "expected one"),
            (["--baseline", "nosuch"], "nosuch"),
        ]:
            self.expect_error("bench", *arguments, saying=saying)

    def test_bench_fp8_error(self):
        done = run("bench", "fp8-error", "--data", "outliers", "--seqlen", "1k", "--queries", 512, "--heads", 4, "--json")
        rows = {(row["scale"], row["hadamard"], row["kernel"] == "emulated"): row for row in json.loads(done.stdout)["results"]}
        self.assertEqual(len(rows), 1 + 4 * 2 + 1)
        plain = rows[None, "no", False]
        self.assertLess(plain["relative"], 0.002 if plain["kernel"] == "cpu.forward_amx" else 1e-5)  # AMX rounds P
        per_tensor, spread = rows["tensor", "no", False], rows["head", "yes", False]
        self.assertEqual(per_tensor["of_tensor"], 1)
        self.assertLess(0.02, per_tensor["relative"])
        self.assertLess(spread["of_tensor"], 0.75)
        self.assertLess(spread["rmse"], 1.05 * rows["head", "yes", True]["rmse"])
        needle = ["bench", "fp8-error", "--data", "needle-50", "--seqlen", 300, "--queries", 3, "--heads", 1, "--head-dim", 64]
        self.assertEqual(len(list(csv.DictReader(io.StringIO(run(*needle, "--csv").stdout)))), 10)
        self.assertIn("file", run("bench", "fp8-error", "--file", SAMPLE, "--queries", 5).stdout)
        for arguments, saying in [
            (["--data", "x"], "--data is 'x', expected some of normal, outliers, mean-1, needle-5, needle-50"),
            (["--head-dim", "20"], "--head-dim is 20, expected a multiple of 16"),
            (["--file", SAMPLE, "--seqlen", "1k"], "--file is given, expected no --data"),
            (["--data", "normal,x"], "--data is 'x', expected some of normal"),
            (["--json", "--csv"], "expected one"),
        ]:
            self.expect_error("bench", "fp8-error", *arguments, saying=saying)

    def test_bench_decode(self):
        small = ["bench", "decode", "--heads", "4/2,2/2", "--head-dim", 16, "--batch", "1,3", "--budget", 0.01]
        done = run(*small, "--seqlen", "20:40", "--pages", "0,1,16", "--queries", "1,2", "--ragged", "--json")
        rows = json.loads(done.stdout)["results"]
        self.assertEqual(len(rows), 2 * 2 * 2 * 3 * 2)
        for row in rows:
            self.assertEqual(row["check"], "ok")
            self.assertAlmostEqual(row["bytes_per_second"] * row["seconds"], row["cache_bytes"], delta=1)
            self.assertAlmostEqual(row["read_ratio"] * row["seconds"], row["read_seconds"])
        self.assertTrue(all(row["cache_bytes"] <= 2 * 2 * 16 * 2 * row["batch"] * row["seqlen"] for row in rows))
        self.assertLess(len({row["cache_bytes"] for row in rows}), len(rows) // 3)  # pages and queries read the same
        lines = run(*small, "--seqlen", 20, "--dtype", "f32", "--kernel", "reference.flash_1,reference.attention").stdout
        self.assertEqual(lines.count("\n"), 1 + 2 * 2 * 2)
        default = run("bench", "decode", "--seqlen", "64k", "--budget", 0.01, "--csv")
        self.assertIn(",16/2,128,1,65536,uniform,0,1,", default.stdout)
        too_large = run("bench", "decode", "--preset", "gqa", "--batch", "64k", "--seqlen", "128k", expect=2)
        self.assertEqual(too_large.stdout, "")
        self.assertIn("nothing could be measured", too_large.stderr)
        self.assertIn("not run at bf16 64/8 heads x 128, batch 65536, seqlen 131072, 1 query: its caches take", too_large.stderr)
        refused = run("bench", "decode", "--head-dim", 600, "--seqlen", 16, "--budget", 0.01, expect=2)
        self.assertEqual(refused.stdout, "")
        self.assertIn("head_dim_qk is 600, at most 576", refused.stderr)
        for arguments, saying in [
            (["--preset", "x"], "expected one of flash-decoding, gqa, mha"),
            (["--pages", "-1"], "--pages is '-1', expected 0 (no pages) or sizes of 1 and more"),
            (["--queries", "0"], "--queries is 0"),
            (["--kv-dtype", "bf16,i2"], "--kv-dtype is 'i2', expected some of f64, f32, bf16, f16, f8e4m3fn, i8, i4"),
            (["--kv-dtype", "i8", "--kv-scale", "none"], "--kv-scale is 'none', expected some of tensor, head, token"),
            (["--kv-dtype", "i4", "--head-dim", "15"], "--head-dim is 15, expected an even one where --kv-dtype is i4"),
            (["--dtype", "i8"], "--dtype is 'i8', expected some of f64, f32, bf16, f16; caches have --kv-dtype"),
            (["--heads", "3/2"], "--heads is '3/2'"),
            (["--kernel", "nosuch"], "--kernel is 'nosuch'"),
            (["--seqlens-kv", "1,2"], "are for `tessella attend`"),
            (["--json", "--csv"], "expected one"),
        ]:
            self.expect_error("bench", "decode", *arguments, saying=saying)

    def test_bench_decode_of_quantized_caches(self):
        small = ["bench", "decode", "--heads", "4/2", "--head-dim", 16, "--batch", 3, "--seqlen", 40, "--budget", 0.01]
        caches = ["--kv-dtype", "bf16,f8e4m3fn,i8,i4", "--kv-scale", "tensor,head,token"]
        sizes = ["--ragged", "--pages", "0,16", "--queries", "1,2", "--kernel", "reference.attention"]
        rows = json.loads(run(*small, *caches, *sizes, "--json").stdout)["results"]
        self.assertEqual(len(rows), (1 + 3 * 3) * 2 * 2)
        whole = rows[0]["cache_bytes"]
        keys = whole // (2 * 2 * 16 * 2)
        for row in rows:
            self.assertEqual(row["check"], "ok", row)
            elements = whole * {"bf16": 16, "f8e4m3fn": 8, "i8": 8, "i4": 4}[row["kv_dtype"]] // 16
            scales = {"none": 0, "tensor": 1, "head": 2, "token": 2 * keys}[row["kv_scale"]]
            self.assertEqual(row["cache_bytes"], elements + 2 * 4 * scales)
        self.assertEqual({row["kv_scale"] for row in rows if row["kv_dtype"] == "bf16"}, {"none"})

    def test_bench_decode_says_its_threads(self):
        small = ["bench", "decode", "--heads", 2, "--head-dim", 16, "--batch", 1, "--seqlen", 64, "--budget", 0.01, "--json"]
        self.assertEqual(json.loads(run(*small, "--num-threads", 1).stdout)["results"][0]["threads"], 1)
        every = json.loads(run(*small).stdout)
        self.assertEqual(every["results"][0]["threads"], int(every["library"]["threads"]))

    def test_bench_leaves_out_what_is_too_large(self):
        for seqlen, saying in (("4m", "times --budget"), ("1g", "of memory per head")):
            large = ["--seqlen", seqlen, "--head-dim", 64, "--mask", "none", "--baseline", "none"]
            done = run("bench", *large, "--budget", 0.01, "--json", expect=2)
            self.assertEqual(done.stdout, "")
            self.assertIn(saying, done.stderr)
            self.assertIn("nothing could be measured", done.stderr)
            with_small = [f"32,{value}" if large[at - 1] == "--seqlen" else value for at, value in enumerate(large)]
            rows = json.loads(run("bench", *with_small, "--budget", 0.01, "--kernel", "reference.flash_2", "--json").stdout)
            self.assertEqual([row["seqlen"] for row in rows["results"]], [32])

    def test_bench_times_no_baseline_of_what_no_kernel_computes(self):
        # The baseline would compute it, in minutes.
        begin = time.monotonic()
        done = run("bench", "--head-dim", 9999, "--seqlen", 2048, "--mask", "none", "--batch", 1, "--heads", 8, "--budget", 30, expect=2)
        self.assertIn("not run at bf16, head_dim 9999, none, seqlen 2048: no kernel computes this call; ", done.stderr)
        self.assertLess(time.monotonic() - begin, 20)

    def test_bench_goes_on_after_a_configuration_that_fails(self):
        configuration = ["--dtype", "f32,bf16,f64", "--seqlen", 32, "--head-dim", 16, "--heads", 2, "--batch", 1, "--mask", "none"]
        done = run("bench", *configuration, "--budget", 0.01, "--kernel", "reference.flash_2,reference.attention", "--json", expect=2)
        rows = json.loads(done.stdout)["results"]
        self.assertEqual([row["dtype"] for row in rows if row["kernel"] == "reference.attention"], ["f32", "bf16", "f64"])
        self.assertIn("not run at f64, head_dim 16, none, seqlen 32: ", done.stderr)
        self.assertEqual(run("bench", *configuration, "--budget", 0.01, "--sink", "1,2,3", expect=2).stdout, "")

    def test_values_per_head_and_per_sequence(self):
        for command in ("bench", "ladder"):
            small = [command, "--dtype", "f32", "--seqlen", 16, "--head-dim", 8, "--heads", 2, "--batch", 2, "--mask", "none"]
            for values in (["--sink", "1,2"], ["--seqlens-kv", "5,5"], ["--mask", "prefix:3,4"]):
                done = run(*small[: -2 if "--mask" in values else None], *values, "--budget", 0.01, "--json")
                for row in json.loads(done.stdout)["results"]:
                    self.assertEqual(row["check"], "ok")
                    self.assertEqual((row.get("batch", 2), row.get("asked_heads", 2)), (2, 2))
        none = run("ladder", "--seqlen", "32k", "--head-dim", 8, "--heads", 1, "--budget", "1e-5", "--json", expect=2)
        self.assertEqual(none.stdout, "")
        self.assertIn("nothing could be measured", none.stderr)
        for budget in ("nan", "inf", "-1", "0"):
            self.expect_error("ladder", f"--budget={budget}", saying=f"--budget is {budget}, expected seconds above 0")
        self.expect_error("ladder", "--kernel", "reference.standard", saying="--kernel is reference.standard")

    def test_device(self):
        self.expect_error("attend", SAMPLE, "--device", "gpu", saying="--device is 'gpu', expected cpu, cuda or cuda:N")
        self.expect_error("bench", "--device", "cuda:x", saying="--device")
        configuration = ["--seqlen", 64, "--head-dim", 64, "--heads", 2, "--batch", 1, "--dtype", "bf16", "--budget", 0.01]
        commands = [["attend", SAMPLE, "--check"], ["bench", *configuration], ["ladder", *configuration], ["kernels", "--why"]]
        commands.append(["bench", "decode", *configuration])
        missing = run("attend", SAMPLE, "--device", "cuda:1023", expect=2).stderr
        if "libcuda" in missing or "does not start" in missing:  # each says so in one line
            for command in commands:
                self.expect_error(*command, "--device", "cuda", saying="no GPU here: ")
        else:
            for command in commands:
                self.assertIn("cuda.", run(*command, "--device", "cuda").stdout)

    def test_help(self):
        for command in ("attend", "bench", "ladder", "kernels"):
            self.assertIn("Examples:", run(command, "--help").stdout)
        flags = {"--help", "--check", "--explain", "--json", "--csv", "--markdown", "--why", "--backward", "--decode", "--ragged",
                 "--batch-invariant", "--check-device-values", "--smooth", "--swiglu"}
        for command in (["attend"], ["merge"], ["quantize"], ["linear"], ["bench"], ["bench", "decode"], ["ladder"], ["ladder", "linear"], ["kernels"], ["kernels", "build"]):
            printed = run(*command, "--help").stdout
            options = re.findall(r"^ *(?:-\w, ?)?(--[\w-]+)(?: (\S+))?", printed.split("Examples:")[0], re.M)
            self.assertGreater(len(options), 2, command)
            for option, value in options:
                with self.subTest(command=command, option=option):
                    self.assertTrue(value or option in flags)
        printed = run("attend", "--help").stdout
        for option in ("--scale FLOAT", "--seed N", "--bias FILE[:NAME]", "--sink NUMBERS|FILE[:NAME]", "--device cpu|cuda[:N] [cpu]"):
            self.assertIn(f"  {option} ", printed)
        self.assertIn("  --heads N/M ", run("bench", "--help").stdout)
        self.assertRegex(run("--version").stdout, r"^\d+\.\d+\.\d+\n$")
        self.expect_error("--json", "info", saying="the first word is '--json', expected one of attend, merge, quantize, linear, bench")
        self.expect_error("info", "kernels", saying="'kernels' is not taken, expected what `tessella info --help` shows")
        self.expect_error(saying="command is missing, expected one of attend, merge, quantize, linear, bench")
        self.expect_error("nosuch", saying="command is 'nosuch', expected one of attend, merge, quantize, linear, bench")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
