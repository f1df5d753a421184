#!/usr/bin/env python3
"""Steps of generation in models of transformers, by torch's attention and by Tessella in turn, within one generation.

usage: transformers_steps.py [--rounds 5] [--threads 2] [--tokens 200]
       microseconds of a step, the median of blocks of steps, and how many times as fast Tessella's blocks are as the
       torch blocks beside them: by the time of the thread that generates, and by that of all threads. The first step
       of a block does not count: what it runs is not in the caches.
"""

import argparse
import itertools
import statistics
import time

import tessella.transformers
import torch
import transformers
from transformers_cpu import gpt2, llama

BLOCK = 6
CLOCKS = {"thread": time.thread_time_ns, "process": time.process_time_ns}


class Steps(transformers.StoppingCriteria):
    """Stops nothing: it times steps and changes attention between blocks of them."""

    def __init__(self, model, names):
        self.model, self.names = model, itertools.cycle(names)
        self.blocks = []
        self.begin = None

    def __call__(self, ids, scores, **_):
        now = [clock() for clock in CLOCKS.values()]
        if self.begin is not None:
            self.blocks[-1].append([end - begin for begin, end in zip(self.begin, now)])
        if not self.blocks or len(self.blocks[-1]) == BLOCK:
            self.blocks.append([])
            self.model.set_attn_implementation(next(self.names))
        self.begin = [clock() for clock in CLOCKS.values()]
        return torch.zeros(ids.shape[0], dtype=torch.bool)


def of_blocks(blocks):
    """The median step of each whole block, by both clocks."""
    whole = (block[1:] for block in blocks if len(block) == BLOCK)
    return [[statistics.median(times) for times in zip(*block)] for block in whole]


def main():
    """Prints one line a model and cache."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=200)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    names = ("sdpa", tessella.transformers.register())
    for make, cache in itertools.product((gpt2, llama), ("dynamic", "static")):
        model = make().eval()
        tokens = torch.randint(0, model.config.vocab_size, (1, 64))
        took = [[], []]
        ratios = []
        for _ in range(args.rounds):
            steps = Steps(model, names)
            model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=args.tokens,
                min_new_tokens=args.tokens,
                do_sample=False,
                pad_token_id=0,
                stopping_criteria=[steps],
                cache_implementation="static" if cache == "static" else None,
            )
            blocks = of_blocks(steps.blocks)
            for before, block, after in zip(blocks[::2], blocks[1::2], blocks[2::2]):
                took[0].append(before)
                took[1].append(block)
                ratios.append([(one + other) / 2 / own for one, own, other in zip(before, block, after)])
        columns = []
        for clock, of_torch, own, ratio in zip(CLOCKS, zip(*took[0]), zip(*took[1]), zip(*ratios)):
            torch_us, own_us = (statistics.median(times) / 1e3 for times in (of_torch, own))
            columns.append(f"{clock}: torch {torch_us:6.0f} tessella {own_us:6.0f} {statistics.median(ratio):5.3f}")
        print(f"{make.__name__:6} {cache:8} {'   '.join(columns)}", flush=True)


if __name__ == "__main__":
    main()
