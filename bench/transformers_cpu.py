#!/usr/bin/env python3
"""Models of transformers on a CPU, with torch's attention, use_for_sdpa() and tessella.transformers, in turn.

usage: transformers_cpu.py [--rounds 15] [--threads 2]
       milliseconds, the median of so many runs, and how many times as fast as torch's; the weights are random, the
       shapes those of small models
"""

import argparse
import statistics
import time

import tessella
import tessella.torch
import tessella.transformers
import torch
import transformers


def bert():
    """MiniLM-L6: 6 layers, 12 heads of 32."""
    config = transformers.BertConfig(
        vocab_size=30522, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    return transformers.BertForMaskedLM(config)


def gpt2():
    """GPT-2 of half its depth: 6 layers, 12 heads of 64."""
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=6, vocab_size=8192, bos_token_id=0, eos_token_id=0)
    )


def llama():
    """6 layers, 8 heads of 64 that 2 KV heads serve."""
    config = transformers.LlamaConfig(
        vocab_size=8192,
        hidden_size=512,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=2,
        intermediate_size=1408,
    )
    return transformers.LlamaForCausalLM(config)


def padded(model):
    """A forward of 8 sequences of up to 83 tokens."""
    lengths = torch.linspace(20, 83, 8).long()
    mask = (torch.arange(83) < lengths[:, None]).long()
    tokens = torch.randint(0, model.config.vocab_size, (8, 83))

    def run():
        with torch.no_grad():
            model.eval()(tokens, attention_mask=mask)

    return run


def generation(model):
    """24 tokens after a prompt of 64."""
    tokens = torch.randint(0, model.config.vocab_size, (1, 64))
    arguments = {"max_new_tokens": 24, "min_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
    mask = torch.ones_like(tokens)
    return lambda: model.eval().generate(tokens, attention_mask=mask, **arguments)


def training_step(model):
    """Forward, backward and AdamW of 4 sequences of 128 tokens."""
    tokens = torch.randint(0, model.config.vocab_size, (4, 128))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

    def run():
        model.train()
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


CASES = [
    ("BERT, forward, 8 x 83 padded", bert, padded),
    ("GPT-2, 24 tokens", gpt2, generation),
    ("Llama, 24 tokens", llama, generation),
    ("BERT, training step", bert, training_step),
    ("GPT-2, training step", gpt2, training_step),
    ("Llama, training step", llama, training_step),
]


def milliseconds(run):
    """Of one run."""
    begin = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - begin)


def main():
    """Prints one line a case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    versions = f"tessella {tessella.__version__}, torch {torch.__version__}, transformers {transformers.__version__}"
    print(f"{versions}, {args.threads} threads")
    plugin = tessella.transformers.register()
    for name, make, work in CASES:
        model = make()
        run = work(model)
        times = {"torch": [], "switch": [], "plugin": []}
        for round_of_all in range(-2, args.rounds):  # two to warm up
            for way in times:
                model.set_attn_implementation(plugin if way == "plugin" else "sdpa")
                with tessella.torch.use_for_sdpa(way == "switch"):
                    took = milliseconds(run)
                    report = tessella.torch.sdpa_report()
                if way == "switch" and report.refused:
                    print(f"{name}: refused: {report.refused}")
                if round_of_all >= 0:
                    times[way].append(took)
        medians = {way: statistics.median(took) for way, took in times.items()}
        columns = (f"{way} {took:8.1f} ms {medians['torch'] / took:5.2f}" for way, took in medians.items())
        print(f"{name:30} {'   '.join(columns)}", flush=True)


if __name__ == "__main__":
    main()
