"""The same GPT in PyTorch, with tessella.torch's operator as its only attention: train_gpt.py FILE [STEPS]"""

import pathlib
import sys

import tessella.torch
import torch
from torch import nn
from torch.nn import functional

CONTEXT, LAYERS, HEADS, WIDTH, BATCH = 128, 4, 4, 128, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU("tanh"), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = self.qkv(self.norm_1(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS)).unbind(-3)
        x = x + self.projection(tessella.torch.attention(q, k, v, mask="causal").flatten(-2))
        return x + self.mlp(self.norm_2(x))


class Gpt(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.of_token, self.of_position = nn.Embedding(vocabulary, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocabulary))

    def forward(self, tokens):
        return self.head(self.blocks(self.of_token(tokens) + self.of_position.weight[: tokens.shape[-1]]))


text = pathlib.Path(sys.argv[1]).read_text()
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
alphabet = sorted(set(text))
corpus = torch.tensor([alphabet.index(character) for character in text])
torch.manual_seed(1)
model = Gpt(len(alphabet))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.99), weight_decay=0.1)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps + 1, pct_start=0.05)
for step in range(1, steps + 1):
    windows = corpus[torch.randint(len(corpus) - CONTEXT, (BATCH, 1)) + torch.arange(CONTEXT + 1)]
    loss = functional.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step in (1, steps) or step % 50 == 0:
        print(f"step {step:4} of {steps}  loss {loss.item():.4f}", flush=True)

tokens = corpus[:1]
for _ in range(400):
    with torch.no_grad():
        odds = functional.softmax(model(tokens[None, -CONTEXT:])[0, -1] / 0.8, -1)
    tokens = torch.cat([tokens, torch.multinomial(odds, 1)])
print("\n" + "".join(alphabet[token] for token in tokens[1:]))
