"""A step by transformers' LlamaForCausalLM with the same weights, called as `generate` calls it."""

from __future__ import annotations

import torch
import transformers

from .model import Layer, Model, StepConfiguration


def hugging_face_model(model: Model, context: int, attention: str) -> transformers.LlamaForCausalLM:
    """attention: attn_implementation of transformers. Its parameters are views of the model's."""
    shape, device = model.shape, model.head.device
    llama = transformers.LlamaConfig(
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads_q,
        num_key_value_heads=shape.heads_kv,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate,
        max_position_embeddings=context,
        vocab_size=shape.vocabulary,
        rms_norm_eps=shape.epsilon,
        rope_theta=shape.rope_theta,
        attn_implementation=attention,
        dtype=model.head.dtype,
    )
    with torch.device("meta"):
        made = transformers.LlamaForCausalLM(llama).eval()
    parameters = {
        "model.embed_tokens.weight": model.embedding,
        "model.norm.weight": model.norm,
        "lm_head.weight": model.head,
    }
    for idx, layer in enumerate(model.layers):
        parameters |= {f"model.layers.{idx}.{name}.weight": tensor for name, tensor in parts(layer, model).items()}
    made.load_state_dict(parameters, assign=True)
    made.model.rotary_emb = type(made.model.rotary_emb)(config=llama).to(device)  # its buffers are in no state_dict
    return made


def parts(layer: Layer, model: Model) -> dict[str, torch.Tensor]:
    shape = model.shape
    wide, narrow = (heads * shape.head_dim for heads in (shape.heads_q, shape.heads_kv))
    q, k, v = layer.qkv.split((wide, narrow, narrow))
    gate, up = layer.gate_up.chunk(2)
    return {
        "self_attn.q_proj": q,
        "self_attn.k_proj": k,
        "self_attn.v_proj": v,
        "self_attn.o_proj": layer.out,
        "mlp.gate_proj": gate,
        "mlp.up_proj": up,
        "mlp.down_proj": layer.down,
        "input_layernorm": layer.norm_attention,
        "post_attention_layernorm": layer.norm_mlp,
    }


class HuggingFaceStep:
    """With a DynamicCache, which grows by one token in each step; the step takes it away again."""

    def __init__(self, model: Model, config: StepConfiguration, attention: str) -> None:
        self.model = hugging_face_model(model, config.context, attention)
        self.tokens = torch.zeros(config.batch, dtype=torch.int64, device=model.head.device)
        self.cache = self.make_cache(config)
        for idx, layer in enumerate(model.layers):
            k, v = (cached[:, :-1].transpose(1, 2) for cached in model.cache(layer, config))
            self.cache.update(k, v, idx)

    def make_cache(self, config: StepConfiguration) -> transformers.Cache:
        return transformers.DynamicCache()

    def __call__(self) -> torch.Tensor:
        """The logits, (batch, vocabulary)."""
        made = self.model(self.tokens[:, None], past_key_values=self.cache, use_cache=True)
        self.take_back()
        logits: torch.Tensor = made.logits[:, -1]
        self.tokens.copy_(logits.argmax(-1))
        return logits

    def take_back(self) -> None:
        self.cache.crop(-1)


class StaticHuggingFaceStep(HuggingFaceStep):
    """With a StaticCache, whose steps may be a CUDA graph."""

    def make_cache(self, config: StepConfiguration) -> transformers.Cache:
        return transformers.StaticCache(config=self.model.config, max_cache_len=config.context)

    def take_back(self) -> None:
        torch._foreach_sub_([layer.cumulative_length for layer in self.cache.layers], 1)
