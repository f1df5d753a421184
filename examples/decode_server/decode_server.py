"""Serves ragged requests from one pool of pages and compares each token with that of attention without a cache.

usage: decode_server.py [--device cpu|cuda]    On cuda arrays are torch's, and a step of decoding is a CUDA graph.
"""

import argparse
import time
from collections import deque
from dataclasses import dataclass, replace

import numpy as np
import tessella

VOCABULARY, LAYERS, WIDTH, HEADS, HEADS_KV, HEAD_DIM, POSITIONS = 256, 3, 128, 4, 2, 32, 256
PAGES, PAGE_SIZE, SLOTS, ROWS = 32, 16, 8, 32  # a step has a slot for each sequence and a row for each new token


def make_weights(rng):
    """A language model of random weights: an embedding, layers of attention, and a head."""

    def random(inputs, outputs, std=1):
        return (rng.standard_normal((inputs, outputs)) * std / inputs**0.5).astype(np.float32)

    # Queries and outputs are twice as large as is usual: a token then depends on which keys there are.
    return {
        "embedding": random(VOCABULARY, WIDTH, VOCABULARY**0.5),
        "q": [random(WIDTH, HEADS * HEAD_DIM, 2) for _ in range(LAYERS)],
        "kv": [random(WIDTH, 2 * HEADS_KV * HEAD_DIM) for _ in range(LAYERS)],
        "out": [random(HEADS * HEAD_DIM, WIDTH, 2) for _ in range(LAYERS)],
        "head": random(WIDTH, VOCABULARY),
    }


def normalized(x):
    return x / ((x * x).mean(-1, keepdims=True) + 1e-6) ** 0.5


def ranking(weights, tokens, attend):
    """All tokens by how likely they follow each row, likeliest last. attend(layer, q, k, v) is attention of rows."""
    x = weights["embedding"][tokens]
    for layer in range(LAYERS):
        rows = normalized(x)
        q = (rows @ weights["q"][layer]).reshape(-1, HEADS, HEAD_DIM)
        kv = (rows @ weights["kv"][layer]).reshape(-1, 2 * HEADS_KV, HEAD_DIM)
        out = attend(layer, q, kv[:, :HEADS_KV], kv[:, HEADS_KV:])
        x = x + out.reshape(-1, HEADS * HEAD_DIM) @ weights["out"][layer]
    return (normalized(x) @ weights["head"]).argsort(-1)


ANGLES = np.arange(POSITIONS)[:, None] * 10000.0 ** (-2 * np.arange(HEAD_DIM // 2) / HEAD_DIM)
ROTARY = np.cos(ANGLES).astype(np.float32), np.sin(ANGLES).astype(np.float32)


def attend_by_formula(layer, q, k, v):
    """softmax(q k^T) v of one sequence, all keys at hand."""
    cos, sin = (angles[: len(q), None] for angles in ROTARY)

    def rotated(x):
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    k, v = (np.repeat(x, HEADS // HEADS_KV, axis=1) for x in (rotated(k), v))
    scores = np.einsum("qhd,khd->hqk", rotated(q), k) / HEAD_DIM**0.5
    scores = np.where(np.tri(len(q), dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v)


@dataclass
class Request:
    arrival: int  # the step before which it comes
    prompt: list
    num_new: int  # tokens to be generated
    num_samples: int  # of them


@dataclass
class Sequence:
    """A prompt and what was generated behind it. Sample n begins with the token that is nth likeliest."""

    request: Request
    tokens: list
    sample: int = 0
    id: int = -1  # in the cache
    num_cached: int = 0  # tokens that the cache has

    @property
    def num_slots(self):  # that it has, or will have behind its prompt
        return self.request.num_samples if len(self.tokens) == len(self.request.prompt) else 1

    @property
    def is_complete(self):
        return len(self.tokens) == len(self.request.prompt) + self.request.num_new


class Steps:
    """Steps of one kind: buffers, and a kernel that was chosen once with its workspace.

    On a GPU those of decoding are a CUDA graph, in which all layers follow one schedule of the step's lengths.
    """

    def __init__(self, server, num_rows, longest):
        self.server, self.graph, self.ranking = server, None, None
        self.is_graph = server.on_gpu and longest == 1
        self.tokens = server.give(np.zeros(num_rows, np.int64))
        self.lengths = {
            "cu_seqlens_q": server.give(np.zeros(SLOTS + 1, np.int32)),
            "seqlens_kv": server.give(np.zeros(SLOTS, np.int32)),
            "page_table": server.give(np.zeros((SLOTS, POSITIONS // PAGE_SIZE), np.int32)),
        }
        q = server.give(np.zeros((num_rows, HEADS, HEAD_DIM), np.float32))
        options = {**self.lengths, "schedule": True} if self.is_graph else self.lengths
        self.plan = tessella.plan(q, *server.cache.layer(0), mask="causal", max_seqlen_q=longest, **options)
        self.workspace = self.plan.workspace(q)

    def run(self):
        """The ranking of tokens behind each row."""
        if not self.is_graph:
            return self.compute()
        if self.graph is None:
            import torch

            self.compute()  # once before, as torch asks; the replay writes the same rows again
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.ranking = self.compute()
        self.graph.replay()
        return self.ranking

    def compute(self):
        cache, rotary = self.server.cache, self.server.rotary
        cu_seqlens, seqlens, table = self.lengths.values()
        options = dict(self.lengths)

        def attend(layer, q, k, v):
            q = cache.append(k, v, table, seqlens, layer=layer, cu_seqlens_new=cu_seqlens, rotary=rotary, q=q)
            if self.is_graph and layer == 0:  # for all layers
                options["schedule"] = self.plan.schedule(q, *cache.layer(0), **self.lengths)
            return self.plan.run(q, *cache.layer(layer), workspace=self.workspace, **options)

        return ranking(self.server.weights, self.tokens, attend)


class Server:
    def __init__(self, weights, device):
        self.on_gpu = device != "cpu"
        if self.on_gpu:
            import torch

            self.give, self.take = lambda array: torch.from_numpy(array).to(device), lambda tensor: tensor.cpu().numpy()
        else:
            self.give = self.take = lambda array: array
        self.weights = {
            name: list(map(self.give, value)) if isinstance(value, list) else self.give(value)
            for name, value in weights.items()
        }
        self.rotary = tuple(map(self.give, ROTARY))
        self.cache = tessella.PagedCache(
            PAGES, PAGE_SIZE, HEADS_KV, HEAD_DIM, dtype="float32", device=device, num_layers=LAYERS
        )
        self.decode, self.mixed = Steps(self, SLOTS, 1), Steps(self, ROWS, ROWS)
        self.waiting, self.running, self.finished = deque(), [], []
        self.num_steps = self.num_preempted = self.most_pages = 0

    def serve(self, requests):
        """The sequences of all requests, in the order in which they end."""
        coming = deque(requests)
        while coming or self.waiting or self.running:
            while coming and coming[0].arrival <= self.num_steps:
                request = coming.popleft()
                self.waiting.append(Sequence(request, list(request.prompt)))
            self.admit()
            if self.running:
                self.step()
            self.num_steps += 1
        return self.finished

    def admit(self):
        """Requests begin as they came, while there are slots for their samples and pages for their prompts."""
        num_slots = sum(sequence.num_slots for sequence in self.running)
        while self.waiting:
            sequence = self.waiting[0]
            num_slots += sequence.num_slots
            if num_slots > SLOTS or len(sequence.tokens) >= self.cache.num_free * PAGE_SIZE:
                return
            self.running.append(replace(self.waiting.popleft(), id=self.cache.new_sequence()))

    def step(self):
        while (num_new := self.reserve()) is None:
            self.preempt()
        steps = self.decode if max(num_new) == 1 else self.mixed
        tokens, ends = np.zeros(len(steps.tokens), np.int64), np.zeros(SLOTS + 1, np.int32)
        for slot, (sequence, n) in enumerate(zip(self.running, num_new)):  # packed: what the cache has not yet
            ends[slot + 1 :] = ends[slot] + n
            tokens[ends[slot] : ends[slot + 1]] = sequence.tokens[sequence.num_cached :][:n]
            sequence.num_cached += n
        steps.tokens[:] = self.give(tokens)
        steps.lengths["cu_seqlens_q"][:] = self.give(ends)
        steps.lengths["seqlens_kv"][:] = 0
        ids, used = [sequence.id for sequence in self.running], len(self.running)
        self.cache.seqlens(ids, out=steps.lengths["seqlens_kv"][:used])
        self.cache.page_table(ids, out=steps.lengths["page_table"][:used])
        self.choose(self.take(steps.run())[ends[1:] - 1])

    def reserve(self):
        """Tokens of each sequence in this step, which have pages from now on; None if there are too few pages.

        Each has a token; prompts, and what is computed again, have the rows that remain, first come, first served.
        """
        spare, num_new = ROWS - len(self.running), []
        for sequence in self.running:
            more = min(spare, len(sequence.tokens) - sequence.num_cached - 1)
            spare -= more
            num_new.append(1 + more)
        ids = [sequence.id for sequence in self.running]
        try:
            self.cache.reserve(ids, self.cache.lengths(ids) + num_new)
        except tessella.OutOfMemory:
            if len(ids) == 1:
                raise
            return None
        self.most_pages = max(self.most_pages, PAGES - self.cache.num_free)
        return num_new

    def preempt(self):
        """The sequence that came last gives its pages back; it is computed again when there is room."""
        sequence = self.running.pop()
        self.cache.release(sequence.id)
        self.waiting.appendleft(replace(sequence, num_cached=0))
        self.num_preempted += 1

    def choose(self, ranking):
        """A next token where the cache has all tokens; behind a prompt a sequence is forked into its samples."""
        for slot, sequence in enumerate(list(self.running)):
            if sequence.num_cached == len(sequence.tokens):
                for sample in range(1, sequence.num_slots):
                    tokens = [*sequence.tokens, int(ranking[slot, -1 - sample])]
                    id = self.cache.fork(sequence.id)
                    self.running.append(replace(sequence, tokens=tokens, sample=sample, id=id))
                sequence.tokens.append(int(ranking[slot, -1]))
        ended = [sequence for sequence in self.running if sequence.is_complete]
        self.cache.release([sequence.id for sequence in ended])
        self.finished += ended
        self.running = [sequence for sequence in self.running if not sequence.is_complete]


def count_wrong(weights, sequence):
    """How many generated tokens the model, reading the whole sequence at once, would not have chosen."""
    first = len(sequence.request.prompt)
    ranks = -1 - np.array([sequence.sample] + [0] * (len(sequence.tokens) - first - 1))
    expected = ranking(weights, sequence.tokens, attend_by_formula)[np.arange(len(ranks)) + first - 1, ranks]
    return int((expected != sequence.tokens[first:]).sum())


def has_gpu():
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def main():
    parser = argparse.ArgumentParser(description="Serves ragged requests from one pool of pages.")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda by torch")
    device = parser.parse_args().device
    if device not in ("cpu", "cuda"):
        parser.error(f"--device is {device}, expected cpu or cuda")
    if device == "cuda" and not has_gpu():
        parser.error("--device is cuda and torch is not here or finds no GPU, expected cpu")
    rng = np.random.default_rng(0)
    weights = make_weights(rng)
    requests = [
        Request(3 * i, rng.integers(VOCABULARY, size=rng.integers(1, 121)).tolist(), int(rng.integers(8, 41)), n)
        for i, n in enumerate([1, 3, 1, 1] * 4)
    ]
    server = Server(weights, device)
    begin = time.perf_counter()
    sequences = server.serve(requests)
    seconds = time.perf_counter() - begin
    num_tokens = sum(sequence.request.num_new for sequence in sequences)
    num_wrong = sum(count_wrong(weights, sequence) for sequence in sequences)
    print(
        f"{len(requests)} requests, {len(sequences)} sequences, {server.num_steps} steps, {num_tokens} tokens, "
        f"{num_tokens / seconds:.0f} tokens/s, {server.most_pages} of {PAGES} pages at most, "
        f"{server.num_preempted} preempted: {f'{num_wrong} tokens differ' if num_wrong else 'tokens agree'}"
    )
    return 1 if num_wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
