"""The decoder against a Llama in plain Python, and against Hugging Face's where transformers is there.

Run as decoder_test.py DECODER cpu|cuda [unittest options]. The models are tiny, with random weights. Skipped
where there is no GPU, or nothing to compile its kernels with.
"""

import array
import json
import math
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unittest

try:
    import torch
    import transformers
except ImportError:
    transformers = None

DECODER, DEVICE = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 131,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "dtype": "float32",
    "torch_dtype": "float32",
    "eos_token_id": None,
    "bos_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
PROMPTS = [[5, 17, 99, 3, 64, 2, 88], [101], [(7 * i + 3) % 131 for i in range(40)]]


def shapes(config):
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", (hidden,)
        yield at + "post_attention_layernorm.weight", (hidden,)
        for name, shape in {
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }.items():
            yield f"{at}{name}.weight", shape
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], hidden)


def rounded(values, dtype):
    """As stored in F32, in F16, or in BF16 by truncation."""
    if dtype == "F16":
        return array.array("f", struct.unpack(f"<{len(values)}e", struct.pack(f"<{len(values)}e", *values)))
    bits = array.array("I", array.array("f", values).tobytes())
    if dtype == "BF16":
        bits = array.array("I", (word & 0xFFFF0000 for word in bits))
    return array.array("f", bits.tobytes())


def random_weights(config, seed, dtype="F32"):
    """Sharp enough that a token depends on which keys there are."""
    rng = random.Random(seed)
    weights = {}
    for name, shape in shapes(config):
        size = 1 if len(shape) == 1 or "embed" in name else 2 / math.sqrt(shape[1])
        mean = 1 if len(shape) == 1 else 0
        spread = 0.2 if len(shape) == 1 else size
        weights[name] = rounded([rng.gauss(mean, spread) for _ in range(math.prod(shape))], dtype)
    return weights


def save(folder, config, weights, num_files=1, dtype="F32"):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    sizes, files = dict(shapes(config)), {}
    for i, name in enumerate(weights):
        files.setdefault(i % num_files, []).append(name)
    names = {}
    for i, inside in files.items():
        file = "model.safetensors" if num_files == 1 else f"model-{i + 1:05}-of-{num_files:05}.safetensors"
        header, data = {"__metadata__": {"format": "pt"}}, b""
        for name in inside:
            elements = weights[name].tobytes()
            if dtype == "F16":
                elements = struct.pack(f"<{len(weights[name])}e", *weights[name])
            elif dtype == "BF16":
                elements = b"".join(elements[at + 2 : at + 4] for at in range(0, len(elements), 4))
            header[name] = {
                "dtype": dtype,
                "shape": sizes[name],
                "data_offsets": [len(data), len(data) + len(elements)],
            }
            data += elements
            names[name] = file
        text = json.dumps(header).encode()
        (folder / file).write_bytes(struct.pack("<Q", len(text)) + text + data)
    if num_files > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))


def added(a, b):
    return [list(map(float.__add__, *rows)) for rows in zip(a, b)]


class Llama:
    """In Python's doubles, without a cache."""

    def __init__(self, config, weights):
        self.config, self.weights = config, weights

    def matrix(self, name, x):
        w, columns = self.weights[name].tolist(), len(x[0])
        rows = [w[at : at + columns] for at in range(0, len(w), columns)]
        return [[sum(map(float.__mul__, row_of_w, row)) for row_of_w in rows] for row in x]

    def norm(self, name, x):
        weight = self.weights[name]
        return [
            [
                w * v / math.sqrt(sum(u * u for u in row) / len(row) + self.config["rms_norm_eps"])
                for w, v in zip(weight, row)
            ]
            for row in x
        ]

    def frequency(self, i):
        scaling = self.config.get("rope_scaling")
        frequency = self.config["rope_theta"] ** (-2 * i / self.config["head_dim"])
        if scaling is None:
            return frequency
        length = 2 * math.pi / frequency
        context = scaling["original_max_position_embeddings"]
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        if length < context / high:
            return frequency
        if length > context / low:
            return frequency / scaling["factor"]
        smooth = (context / length - low) / (high - low)
        return (1 - smooth) * frequency / scaling["factor"] + smooth * frequency

    def heads(self, row, position=None):
        dim = self.config["head_dim"]
        heads = [row[at : at + dim] for at in range(0, len(row), dim)]
        if position is None:
            return heads
        half, turned = dim // 2, []
        for head in heads:
            angles = [position * self.frequency(i) for i in range(half)]
            turned.append(
                [head[i] * math.cos(a) - head[i + half] * math.sin(a) for i, a in enumerate(angles)]
                + [head[i + half] * math.cos(a) + head[i] * math.sin(a) for i, a in enumerate(angles)]
            )
        return turned

    def attend(self, at, x):
        q = [self.heads(row, i) for i, row in enumerate(self.matrix(at + "q_proj.weight", x))]
        k = [self.heads(row, i) for i, row in enumerate(self.matrix(at + "k_proj.weight", x))]
        v = [self.heads(row) for row in self.matrix(at + "v_proj.weight", x)]
        group = len(q[0]) // len(k[0])
        out = []
        for i, queries in enumerate(q):
            row = []
            for h, query in enumerate(queries):
                scores = [
                    sum(map(float.__mul__, query, k[j][h // group])) / math.sqrt(len(query)) for j in range(i + 1)
                ]
                weights = [math.exp(score - max(scores)) for score in scores]
                row += [
                    sum(w * v[j][h // group][d] for j, w in enumerate(weights)) / sum(weights)
                    for d in range(len(query))
                ]
            out.append(row)
        return self.matrix(at + "o_proj.weight", out)

    def logits(self, tokens):
        """Behind the last token."""
        hidden = self.config["hidden_size"]
        table = self.weights["model.embed_tokens.weight"]
        x = [table[token * hidden : (token + 1) * hidden].tolist() for token in tokens]
        for layer in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            x = added(x, self.attend(at + "self_attn.", self.norm(at + "input_layernorm.weight", x)))
            normal = self.norm(at + "post_attention_layernorm.weight", x)
            gate, up = (self.matrix(f"{at}mlp.{name}_proj.weight", normal) for name in ("gate", "up"))
            inner = [[g / (1 + math.exp(-g)) * u for g, u in zip(*rows)] for rows in zip(gate, up)]
            x = added(x, self.matrix(at + "mlp.down_proj.weight", inner))
        head = "lm_head.weight" if "lm_head.weight" in self.weights else "model.embed_tokens.weight"
        return self.matrix(head, self.norm("model.norm.weight", x[-1:]))[0]


def decode(folder, prompts, *options, expect=0):
    command = [str(DECODER), str(folder), "--device", DEVICE, *options]
    for prompt in prompts:
        command += ["--prompt", ",".join(map(str, prompt))]
    done = subprocess.run(command, capture_output=True, text=True)
    if "no GPU here" in done.stderr or "NVRTC, which compiles kernels, was not found" in done.stderr:
        raise unittest.SkipTest(done.stderr.strip())
    assert done.returncode == expect, done.stderr
    return [[int(token) for token in line.split(",")] for line in done.stdout.split()] if expect == 0 else done.stderr


class DecoderTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name) / "model"

    def agree(self, config, sequences, weights, num_new, tie=1e-4):
        """Each token that was generated is the likeliest, or as likely as that."""
        llama = Llama(config, weights)
        for prompt, sequence in zip(PROMPTS, sequences, strict=True):
            self.assertEqual(sequence[: len(prompt)], prompt)
            self.assertEqual(len(sequence), len(prompt) + num_new)
            for end in range(len(prompt), len(sequence)):
                logits = llama.logits(sequence[:end])
                self.assertLess(max(logits) - logits[sequence[end]], tie, (prompt, end, sequence[end]))

    def test_prompts_of_several_lengths(self):
        weights = random_weights(CONFIG, 1)
        save(self.folder, CONFIG, weights)
        sequences = decode(self.folder, PROMPTS, "--tokens", "6")
        self.agree(CONFIG, sequences, weights, 6)
        self.assertGreater(len({token for sequence in sequences for token in sequence[-6:]}), 6)
        # A sequence does not depend on those beside it.
        for prompt, sequence in zip(PROMPTS, sequences):
            self.assertEqual(decode(self.folder, [prompt], "--tokens", "6"), [sequence])

    def test_a_long_prompt_is_computed_in_pieces(self):
        """Of 512 tokens; what a shorter one is continued by goes on from its cache, a token at a time."""
        save(self.folder, CONFIG, random_weights(CONFIG, 7))
        prompt = [(11 * i + i * i) % 131 for i in range(500)]
        whole = decode(self.folder, [prompt], "--tokens", "60")[0]
        for end in (511, 512, 513, 530):
            self.assertEqual(decode(self.folder, [whole[:end]], "--tokens", str(560 - end)), [whole])

    def test_tied_embeddings_llama3_and_several_files(self):
        config = {**CONFIG, "tie_word_embeddings": True, "rope_scaling": LLAMA3}
        weights = random_weights(config, 2)
        nulls = dict.fromkeys(("rope_parameters", "attention_bias", "hidden_act", "mlp_bias"))
        save(self.folder, {**config, **nulls}, weights, num_files=3)  # as Hugging Face writes what is absent
        self.agree(config, decode(self.folder, PROMPTS, "--tokens", "4"), weights, 4)

    def test_bf16(self):
        config = {**CONFIG, "dtype": "bfloat16", "torch_dtype": "bfloat16"}
        weights = random_weights(config, 3, "BF16")
        save(self.folder, config, weights, dtype="BF16")
        self.agree(config, decode(self.folder, PROMPTS, "--tokens", "4", "--dtype", "f32"), weights, 4)
        self.agree(config, decode(self.folder, PROMPTS, "--tokens", "4"), weights, 4, tie=0.3)

    def test_f16_is_widened(self):
        config = {**CONFIG, "dtype": "float16", "torch_dtype": "float16"}
        weights = random_weights(config, 6, "F16")
        weights["model.norm.weight"][0] = 3 * 2.0**-24  # a subnormal number
        save(self.folder, config, weights, dtype="F16")
        self.agree(config, decode(self.folder, PROMPTS, "--tokens", "4"), weights, 4)

    def test_ends(self):
        weights = random_weights(CONFIG, 1)
        save(self.folder, CONFIG, weights)
        whole = decode(self.folder, PROMPTS[:1], "--tokens", "6")[0]
        end = whole[-3]
        (self.folder / "config.json").write_text(json.dumps({**CONFIG, "eos_token_id": [end]}))
        ended = whole[: whole.index(end, len(PROMPTS[0])) + 1]
        self.assertEqual(decode(self.folder, PROMPTS[:1], "--tokens", "6"), [ended])

    def test_top_p(self):
        save(self.folder, CONFIG, random_weights(CONFIG, 1))
        greedy = decode(self.folder, PROMPTS, "--tokens", "8")
        drawn = [
            decode(self.folder, PROMPTS, "--tokens", "8", "--temperature", "1", "--top-p", top_p, "--seed", seed)
            for top_p, seed in (("0.9", "1"), ("0.9", "1"), ("0.9", "2"), ("0", "3"))
        ]
        self.assertEqual(drawn[0], drawn[1])
        self.assertNotEqual(drawn[0], drawn[2])
        self.assertNotEqual(drawn[0], greedy)
        self.assertEqual(drawn[3], greedy)  # the likeliest alone has as much
        # Sequences draw for themselves, from the first token on.
        twelve = decode(self.folder, [[5]] * 12, "--tokens", "1", "--temperature", "1", "--seed", "0")
        next_seed = decode(self.folder, [[5]] * 12, "--tokens", "1", "--temperature", "1", "--seed", "1")
        self.assertGreater(len({sequence[-1] for sequence in twelve}), 6)
        self.assertNotEqual(twelve[1:], next_seed[:-1])

    def test_nan_chooses_a_token(self):
        weights = random_weights(CONFIG, 1)
        weights["model.norm.weight"][3] = math.nan
        save(self.folder, CONFIG, weights)
        for sequence in decode(self.folder, PROMPTS, "--tokens", "4"):
            self.assertEqual(sequence[-4:], [0, 0, 0, 0])

    def test_draws_follow_probabilities(self):
        """Of many sequences that have the same two tokens to draw from."""
        config = {**CONFIG, "num_hidden_layers": 1}
        weights = random_weights(config, 4)
        hidden = config["hidden_size"]
        for name in ("model.layers.0.self_attn.o_proj.weight", "model.layers.0.mlp.down_proj.weight", "lm_head.weight"):
            weights[name] = array.array("f", [0.0] * len(weights[name]))
        embedding = weights["model.embed_tokens.weight"][:hidden].tolist()
        normal = Llama(config, weights).norm("model.norm.weight", [embedding])[0]
        square = sum(x * x for x in normal)
        for token, logit in ((7, 10.0), (9, 10.0 - math.log(3)), (11, 10.0 - math.log(50))):
            for i, x in enumerate(normal):
                weights["lm_head.weight"][token * hidden + i] = logit * x / square
        save(self.folder, config, weights)
        sequences = decode(self.folder, [[0]] * 400, "--tokens", "1", "--temperature", "1", "--top-p", "0.9")
        drawn = [sequence[-1] for sequence in sequences]
        self.assertEqual(set(drawn), {7, 9})  # the third is not needed for 0.9
        self.assertAlmostEqual(drawn.count(7) / 400, 0.75, delta=0.1)

    def test_errors(self):
        self.assertIn("config.json: is no file", decode(self.folder, PROMPTS, expect=1))
        weights = random_weights(CONFIG, 1)
        save(self.folder, CONFIG, weights)
        self.assertIn("has the token 131, the vocabulary has 131", decode(self.folder, [[131]], expect=2))
        self.assertIn("--prompt got 'x'", decode(self.folder, [["x"]], expect=2))
        self.assertIn("usage", decode(self.folder, [], expect=2))
        for option, value, said in (
            ("--tokens", "9223372036854775807", "--tokens is 9223372036854775807, expected 1 to"),
            ("--tokens", "0", "--tokens is 0"),
            ("--temperature", "nan", "--temperature got 'nan'"),
            ("--top-p", "5", "--top-p is above 1"),
            ("--device", "tpu", "--device got 'tpu', expected cpu or cuda"),
        ):
            self.assertIn(said, decode(self.folder, PROMPTS, option, value, expect=2))
        (self.folder / "config.json").write_text(json.dumps({**CONFIG, "hidden_size": 47}))
        self.assertIn("has shape (131, 48), expected (131, 47) by config.json", decode(self.folder, PROMPTS, expect=1))
        for changed, said in (
            ({"model_type": "qwen2"}, 'model_type is "qwen2", expected llama'),
            ({"num_attention_heads": 0}, "num_attention_heads is 0, expected an integer"),
            ({"num_key_value_heads": -2}, "num_key_value_heads is -2, expected an integer"),
            ({"num_key_value_heads": 4}, "num_attention_heads is 6, expected a multiple of num_key_value_heads, 4"),
            ({"num_hidden_layers": 2.9}, "num_hidden_layers is 2.9"),
            ({"rms_norm_eps": -1}, "rms_norm_eps is -1, expected a number above 0"),
            ({"rope_theta": "x"}, 'rope_theta is "x", expected a number above 0'),
            ({"tie_word_embeddings": 3}, "tie_word_embeddings is 3, expected true or false"),
            ({"dtype": "int8"}, 'dtype is "int8", expected float32'),
            ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor is 1.0, expected more than"),
            ({"head_dim": 7}, "head_dim is 7, expected"),
            ({"head_dim": "8"}, 'head_dim is "8"'),
            ({"hidden_size": 2**62}, "hidden_size is 4611686018427387904"),
            ({"hidden_act": "gelu"}, 'hidden_act is "gelu", expected silu'),
            ({"attention_bias": True}, "attention_bias is true"),
            ({"rope_scaling": {"rope_type": "yarn"}}, 'rope_scaling: rope_type is "yarn", expected default or llama3'),
        ):
            (self.folder / "config.json").write_text(json.dumps({**CONFIG, **changed}))
            self.assertIn(said, decode(self.folder, PROMPTS, expect=1))
        (self.folder / "config.json").write_text(json.dumps(CONFIG))
        file = self.folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-4])
        self.assertIn("outside the file", decode(self.folder, PROMPTS, expect=1))
        file.write_bytes(b"12345")
        self.assertIn("model.safetensors: is truncated", decode(self.folder, PROMPTS, expect=1))
        for index in ("{", "{}", '{"weight_map": {"a": 3}}'):
            (self.folder / "model.safetensors.index.json").write_text(index)
            self.assertIn("model.safetensors.index.json: [json", decode(self.folder, PROMPTS, expect=1))

    @unittest.skipIf(transformers is None, "no transformers here")
    def test_transformers(self):
        for name, config, num_files in (("plain", CONFIG, 1), ("llama3", {**CONFIG, "rope_scaling": LLAMA3}, 2)):
            folder = self.folder / name
            save(folder, config, random_weights(config, 5), num_files)
            model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
            sequences = decode(folder, PROMPTS, "--tokens", "24")
            for prompt, sequence in zip(PROMPTS, sequences):
                ids = torch.tensor([prompt])
                theirs = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24)
                self.assertEqual(theirs[0].tolist(), sequence)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
