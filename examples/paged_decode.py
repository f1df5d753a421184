"""Decoding with keys and values in pages: two sequences share a prompt by a fork, and each goes on with tokens of its own."""

import numpy as np
import tessella

VOCABULARY, WIDTH, HEADS_Q, HEADS_KV, HEAD_DIM, STEPS = 100, 64, 4, 2, 32, 12

rng = np.random.default_rng(0)
embedding = rng.standard_normal((VOCABULARY, WIDTH), np.float32)
w_q, w_k, w_v = (
    rng.standard_normal((WIDTH, heads * HEAD_DIM), np.float32) / 8 for heads in (HEADS_Q, HEADS_KV, HEADS_KV)
)
w_out = rng.standard_normal((HEADS_Q * HEAD_DIM, WIDTH), np.float32) / 8


def project(tokens, w):
    """(batch, new) tokens to (batch, new, heads, head_dim)."""
    return (embedding[tokens] @ w).reshape(*tokens.shape, -1, HEAD_DIM)


def attend(cache, ids, tokens):
    """Attention of new tokens (batch, new) over all that their sequences have in the cache, which has them from now on."""
    cache.reserve(ids, cache.lengths(ids) + tokens.shape[1])
    table, seqlens = cache.page_table(ids), cache.seqlens(ids)
    cache.append(project(tokens, w_k), project(tokens, w_v), table, seqlens)
    q = project(tokens, w_q)
    return tessella.attention(q, cache.k, cache.v, page_table=table, seqlens_kv=seqlens, mask="causal")


def main():
    cache = tessella.PagedCache(16, 8, HEADS_KV, HEAD_DIM, dtype="float32")  # 16 pages of 8 rows
    history = rng.integers(VOCABULARY, size=(1, 21))
    parent = cache.new_sequence()
    out = attend(cache, [parent], history)
    ids = [parent, cache.fork(parent)]
    print(f"two sequences of 21 tokens in {cache.pages.num_pages - cache.num_free} pages")

    scores = out[:, -1].reshape(1, -1) @ w_out @ embedding.T
    tokens = np.argsort(scores)[0, -2:, None]  # the two most likely tokens: one for each
    history, error = np.repeat(history, 2, axis=0), 0
    for _ in range(STEPS):
        history = np.concatenate([history, tokens], axis=1)
        out = attend(cache, ids, tokens)
        q, k, v = (project(history, w) for w in (w_q, w_k, w_v))
        error = max(error, np.abs(out - tessella.attention(q, k, v, mask="causal")[:, -1:]).max())
        tokens = (out.reshape(2, -1) @ w_out @ embedding.T).argmax(-1)[:, None]
    print(*(" ".join(map(str, row[21:])) for row in history), sep="\n")
    print(f"{cache.pages.num_pages - cache.num_free} pages; largest difference to attention without a cache {error:.1e}")
    return 0 if error < 1e-5 else 1


if __name__ == "__main__":
    raise SystemExit(main())
