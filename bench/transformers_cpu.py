#!/usr/bin/env python3
"""Models of transformers on a CPU, with use_for_sdpa() on and off, in turn, in one process.

usage: transformers_cpu.py [--rounds 15] [--threads 2]
       milliseconds: the median of so many runs; the weights are random, the shapes those of small models
"""

import argparse
import statistics
import time

import tessella
import tessella.torch
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
    for name, make, work in CASES:
        run = work(make())
        times = {False: [], True: []}
        for round_of_all in range(-2, args.rounds):  # two to warm up
            for is_on in (False, True):
                with tessella.torch.use_for_sdpa(is_on):
                    took = milliseconds(run)
                    report = tessella.torch.sdpa_report()
                if round_of_all >= 0:
                    times[is_on].append(took)
        served = f"{report.served} calls" + (f", refused: {report.refused}" if report.refused else "")
        off, on = (statistics.median(times[is_on]) for is_on in (False, True))
        print(f"{name:30} torch {off:8.1f} ms   ours {on:8.1f} ms   {off / on:5.2f}   {served}", flush=True)


if __name__ == "__main__":
    main()
