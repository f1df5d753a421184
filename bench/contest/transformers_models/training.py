"""A training step of a model of transformers, whose attention is exchanged."""

from __future__ import annotations

import dataclasses

import torch
import transformers

# Largest ||x - another's|| / ||another's|| of what bf16 weights give after all layers; a wrong mask is far above.
BOUND = 0.1


@dataclasses.dataclass(frozen=True)
class TrainingShape:
    name: str
    batch: int
    seqlen: int
    heads_q: int
    heads_kv: int
    head_dim: int
    layers: int
    intermediate: int
    vocabulary: int

    def model(self) -> transformers.PreTrainedModel:
        hidden = self.heads_q * self.head_dim
        if self.name == "gpt2":
            config = transformers.GPT2Config(
                n_embd=hidden,
                n_layer=self.layers,
                n_head=self.heads_q,
                n_positions=self.seqlen,
                vocab_size=self.vocabulary,
                attn_pdrop=0,
                embd_pdrop=0,
                resid_pdrop=0,
                bos_token_id=0,
                eos_token_id=0,
                use_cache=False,
            )
            return transformers.GPT2LMHeadModel(config)
        config = transformers.LlamaConfig(
            hidden_size=hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads_q,
            num_key_value_heads=self.heads_kv,
            intermediate_size=self.intermediate,
            max_position_embeddings=self.seqlen,
            vocab_size=self.vocabulary,
            use_cache=False,
        )
        return transformers.LlamaForCausalLM(config)


SHAPES = [
    TrainingShape("gpt2", 8, 1024, 16, 16, 64, 24, 4096, 50257),  # GPT-2 medium
    TrainingShape("llama", 2, 2048, 32, 8, 128, 8, 14336, 32000),  # Llama 3 8B of a quarter of its depth
]
TINY = [
    TrainingShape("gpt2", 2, 32, 4, 4, 16, 2, 256, 101),
    TrainingShape("llama", 2, 32, 4, 2, 16, 2, 128, 101),
]


class TrainingStep:
    """Forward, backward and AdamW in bf16. Weights and tokens are the same in each; attention is the model's to say."""

    def __init__(self, shape: TrainingShape, device: str) -> None:
        torch.manual_seed(1)
        with torch.device(device):
            self.model = shape.model().to(torch.bfloat16).train()
        self.tokens = torch.randint(0, shape.vocabulary, (shape.batch, shape.seqlen), device=device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-5, fused=device == "cuda")

    def __call__(self) -> None:
        self.forward_and_backward()
        self.update()

    def forward_and_backward(self) -> torch.Tensor:
        loss: torch.Tensor = self.model(self.tokens, labels=self.tokens).loss
        loss.backward()
        return loss.detach()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def gradients(self) -> dict[str, torch.Tensor]:
        """Name -> copy, of the embedding and of the first layer's values, and keys and queries where they are one."""
        matrices = {name: weight for name, weight in self.model.named_parameters() if weight.dim() == 2}
        first = next(iter(matrices))
        values = next(name for name in matrices if name.endswith(("c_attn.weight", "v_proj.weight")))
        return {name: matrices[name].grad.clone() for name in (first, values)}
