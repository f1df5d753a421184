"""The GPT's like in PyTorch, whose only attention is tessella.torch's operator: train_gpt.py FILE [STEPS]"""

import pathlib
import sys

import tessella.torch
import torch
from torch import nn
from torch.nn import functional

CONTEXT, LAYERS, HEADS, WIDTH, BATCH, RATE = 128, 4, 4, 128, 8, 3e-3
SLOPES = 0.25 ** torch.arange(HEADS)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.projection = nn.Linear(WIDTH, WIDTH, bias=False)
        up, down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), up, nn.GELU("tanh"), down)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS)).unbind(-3)
        out = tessella.torch.attention(q, k, v, mask="causal", alibi_slopes=SLOPES)
        x = x + self.projection(out.flatten(-2))
        return x + self.mlp(x)


text = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 800
alphabet = sorted(set(text))
corpus = torch.tensor([alphabet.index(character) for character in text])
torch.manual_seed(1)
embedding, head = nn.Embedding(len(alphabet), WIDTH), nn.Linear(WIDTH, len(alphabet), bias=False)
nn.init.normal_(embedding.weight, std=0.05)
model = nn.Sequential(embedding, *(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH), head)
optimizer = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.99), weight_decay=0.1)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps + 1, pct_start=0.05)
for step in range(1, steps + 1):
    windows = corpus[torch.randint(len(corpus) - CONTEXT, (BATCH, 1)) + torch.arange(CONTEXT + 1)]
    loss = functional.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step in (1, steps) or step % 50 == 0:
        print(f"step {step:3} of {steps}  loss {loss.item():.4f}", flush=True)

tokens = corpus[:1]
for _ in range(400):
    with torch.no_grad():
        odds = functional.softmax(model(tokens[None, -CONTEXT:])[0, -1] / 0.8, -1)
    tokens = torch.cat([tokens, torch.multinomial(odds, 1)])
print("\n" + "".join(alphabet[token] for token in tokens[1:]))
