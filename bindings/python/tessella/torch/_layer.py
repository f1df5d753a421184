"""The multi-head attention layer: torch's linear projections around the operator."""

from __future__ import annotations

import math
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
from torch.nn import Linear, Module  # type: ignore[import-not-found, unused-ignore]

from .._errors import InvalidArgument, Unsupported
from .._mask import causal_top_left, dense
from .._scalars import integer, real, switch
from ._attention import attention
from ._rotary import rotated

_PROJECTIONS = ("q_proj", "k_proj", "v_proj")


class MultiHeadAttention(Module):  # type: ignore[misc, unused-ignore]
    """out_proj(attention(q_proj(query), k_proj(key), v_proj(value))) in linear memory.

    What torch.nn.MultiheadAttention computes; it loads that layer's state dict. The weights of attention are never in
    memory, so the output alone is returned.

    Args:
        embed_dim: width of query and of the output.
        num_heads: heads of queries.
        dropout: probability that a weight of attention is dropped, in training.
        bias: whether the projections have one.
        num_kv_heads: heads of keys and values, a divisor of num_heads (grouped queries); None = num_heads.
        head_dim: None = embed_dim / num_heads.
        kdim, vdim: widths of key and value; None = embed_dim.
        rotary_base: of rotary embeddings in the half-split order of GPT-NeoX and Llama, where it is rope_theta; None =
            no rotary embeddings.
        batch_first: False = query, key, value and the output are (seqlen, batch, width), as torch's layer has them
            unless told otherwise.
        device, dtype: of the parameters.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        rotary_base: float | None = None,
        batch_first: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.embed_dim = _count("embed_dim", embed_dim)
        self.num_heads = _count("num_heads", num_heads)
        self.num_kv_heads = _count("num_kv_heads", self.num_heads if num_kv_heads is None else num_kv_heads)
        _require(
            self.num_heads % self.num_kv_heads == 0,
            "num_kv_heads",
            num_kv_heads,
            f"a divisor of num_heads, {num_heads}",
        )
        is_divisor = head_dim is not None or self.embed_dim % self.num_heads == 0
        _require(is_divisor, "num_heads", num_heads, f"a divisor of embed_dim, {embed_dim}, or head_dim given")
        self.head_dim = _count("head_dim", self.embed_dim // self.num_heads if head_dim is None else head_dim)
        self.kdim = _count("kdim", self.embed_dim if kdim is None else kdim)
        self.vdim = _count("vdim", self.embed_dim if vdim is None else vdim)
        self.dropout = real("MultiHeadAttention: dropout", dropout)
        _require(0 <= self.dropout < 1, "dropout", dropout, "a probability in [0, 1)")
        self.rotary_base = None if rotary_base is None else real("MultiHeadAttention: rotary_base", rotary_base)
        if self.rotary_base is not None:
            _require(0 < self.rotary_base < float("inf"), "rotary_base", rotary_base, "a positive number")
            _require(self.head_dim % 2 == 0, "head_dim", self.head_dim, "an even number beside rotary_base")
        self.batch_first = switch("MultiHeadAttention: batch_first", batch_first)
        made: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.q_proj = Linear(self.embed_dim, self.num_heads * self.head_dim, **made)
        self.k_proj = Linear(self.kdim, self.num_kv_heads * self.head_dim, **made)
        self.v_proj = Linear(self.vdim, self.num_kv_heads * self.head_dim, **made)
        self.out_proj = Linear(self.num_heads * self.head_dim, self.embed_dim, **made)
        self.reset_parameters()

    @classmethod
    def from_torch(cls, module: torch.nn.MultiheadAttention) -> MultiHeadAttention:
        """A layer with a copy of the weights, whose batch is first or not as module.batch_first says."""
        if not isinstance(module, torch.nn.MultiheadAttention):
            raise TypeError(f"from_torch: module is {type(module).__name__}, expected a torch.nn.MultiheadAttention")
        if module.add_zero_attn:
            raise Unsupported("from_torch: module.add_zero_attn is True, expected False")
        weight, has_bias = module.out_proj.weight, module.in_proj_bias is not None
        made: dict[str, Any] = {"kdim": module.kdim, "vdim": module.vdim, "dtype": weight.dtype}
        made["batch_first"] = module.batch_first
        # On "meta" no random numbers are drawn.
        layer = cls(module.embed_dim, module.num_heads, module.dropout, has_bias, device="meta", **made)
        layer.to_empty(device=weight.device).load_state_dict(module.state_dict())
        of_torch = dict(module.named_parameters())
        for name, parameter in layer.named_parameters():
            projection, kind = name.split(".")
            source = of_torch.get(name, of_torch.get(f"in_proj_{kind}"))
            parameter.requires_grad_((of_torch[f"{projection}_weight"] if source is None else source).requires_grad)
        layer.train(module.training)
        return layer

    def reset_parameters(self) -> None:
        """Draws the weights by torch's layer's rules: Xavier's for the projections of inputs; biases are 0.

        Inputs of one width have one matrix there, so its rows count together.
        """
        self.out_proj.reset_parameters()
        inputs = (self.q_proj, self.k_proj, self.v_proj)
        is_one = self.kdim == self.vdim == self.embed_dim
        rows = sum(projection.out_features for projection in inputs)
        for projection in inputs:
            bound = math.sqrt(6 / (projection.in_features + (rows if is_one else projection.out_features)))
            torch.nn.init.uniform_(projection.weight, -bound, bound)
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            if projection.bias is not None:
                torch.nn.init.zeros_(projection.bias)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor | None = None,
        value: torch.Tensor | None = None,
        key_padding_mask: torch.Tensor | None = None,
        *,
        attn_mask: torch.Tensor | None = None,
        is_causal: bool = False,
        seqlens: torch.Tensor | None = None,
        positions: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """(batch, seqlen_q, embed_dim). All masks hide together; a row that sees nothing is the bias of out_proj.

        Args:
            query: (batch, seqlen_q, embed_dim). Without a batch, (seqlen_q, embed_dim), none of the others has one.
                Where the layer has batch_first=False, the first two axes of query, key, value and the output are
                swapped; those of masks, seqlens and positions never are.
            key: (batch, seqlen_kv, kdim); None = query.
            value: (batch, seqlen_kv, vdim); None = key.
            key_padding_mask: (batch, seqlen_kv); as in torch's layer, bool, True = hidden, or added to the scores.
            attn_mask: (seqlen_q, seqlen_kv), (batch * num_heads, seqlen_q, seqlen_kv) or what broadcasts to (batch,
                num_heads, seqlen_q, seqlen_kv); bool, True = hidden, or added to the scores.
            is_causal: query i sees keys 0 to i; wants no attn_mask beside it.
            seqlens: (batch), integers; valid keys of each sequence, which costs less than a key_padding_mask.
            positions: for rotary embeddings: the first row's, or (seqlen_q) or (batch, seqlen_q); None = 0.
        """
        is_self = key is None or key is query
        key = query if key is None else key
        value = key if value is None else value
        is_batched = query.dim() != 2
        if not self.batch_first:
            rows = (query, key, value)
            query, key, value = (tensor.transpose(0, 1) if tensor.dim() == 3 else tensor for tensor in rows)
        if self.rotary_base is None:
            _require(positions is None, "positions", "given", "a layer with rotary_base")
        else:
            _require(is_self, "key", "another tensor than query", "query beside rotary_base")
            if isinstance(positions, torch.Tensor):
                shapes = (query.shape[-2:-1], query.shape[:-1])
                _require(
                    positions.shape in shapes, "positions", tuple(positions.shape), "{} or {}", *map(tuple, shapes)
                )
            else:
                _require(positions is None or type(positions) is int, "positions", positions, "a number or a tensor")
        inputs = (("query", query, self.q_proj), ("key", key, self.k_proj), ("value", value, self.v_proj))
        projected = []
        for (name, tensor, projection), heads in zip(inputs, (self.num_heads, self.num_kv_heads, self.num_kv_heads)):
            axes, width = 3 if is_batched else 2, projection.in_features
            fits = tensor.dim() == axes and tensor.shape[-1] == width
            _require(fits, name, tuple(tensor.shape), "{} axes, the last of {}", axes, width)
            rows = projection(tensor if is_batched else tensor[None])
            projected.append(rows.unflatten(-1, (heads, self.head_dim)))
        q, k, v = projected
        if not is_batched:
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
            seqlens = None if seqlens is None else seqlens[None]
        sizes = (q.shape[0], q.shape[1], k.shape[1])
        options = self._masks(sizes, q.dtype, key_padding_mask, attn_mask, is_causal)
        if seqlens is not None:
            given = seqlens.dtype if isinstance(seqlens, torch.Tensor) else type(seqlens).__name__
            _require(given in (torch.int32, torch.int64), "seqlens", given, "a tensor of int32 or int64")
            options["seqlens_kv"] = seqlens.clamp(-1, (1 << 31) - 1).to(torch.int32)  # what is too long stays so
        if self.rotary_base is not None:
            q, k = rotated(q, k, 0 if positions is None else positions, self.rotary_base)
        out = attention(q, k, v, dropout=self.dropout if self.training else 0.0, **options).flatten(-2)
        result: torch.Tensor = self.out_proj(out if is_batched else out[0])
        return result if self.batch_first or not is_batched else result.transpose(0, 1)

    def _masks(
        self, sizes: tuple[int, int, int], dtype: Any, padding: Any, attn_mask: Any, is_causal: bool
    ) -> dict[str, Any]:
        """The options mask and bias of attention."""
        batch, rows, keys = sizes
        if padding is not None:
            _require(padding.shape == (batch, keys), "key_padding_mask", tuple(padding.shape), "{}", (batch, keys))
            padding = padding[:, None, None]
        if attn_mask is not None:
            heads = batch * self.num_heads
            is_whole = attn_mask.shape in ((rows, keys), (heads, rows, keys)) or attn_mask.dim() == 4
            shapes = ((rows, keys), (heads, rows, keys))
            _require(is_whole, "attn_mask", tuple(attn_mask.shape), "{}, {} or 4 axes", *shapes)
            attn_mask = attn_mask.unflatten(0, (batch, self.num_heads)) if attn_mask.dim() == 3 else attn_mask
        visible = bias = None
        for name, mask in (("key_padding_mask", padding), ("attn_mask", attn_mask)):
            if mask is not None and mask.dtype is torch.bool:
                visible = ~mask if visible is None else visible & ~mask
            elif mask is not None:
                _require(mask.dtype in (dtype, torch.float32), name, mask.dtype, "bool, {} or torch.float32", dtype)
                bias = mask if bias is None else bias + mask
        if visible is None:
            return {"mask": "causal_top_left" if is_causal else None, "bias": bias}
        # torch 2.4 traces the method, and not the operator.
        return {"mask": dense(visible).__and__(causal_top_left()) if is_causal else dense(visible), "bias": bias}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """What torch loads this module by: the names of torch.nn.MultiheadAttention become those of the projections."""
        for name in ("bias_k", "bias_v"):
            if prefix + name in state_dict:
                raise Unsupported(f"load_state_dict: {prefix}{name} is given, expected weights without add_bias_kv")
        sizes = [self.q_proj.out_features, self.k_proj.out_features, self.v_proj.out_features]
        for kind in ("weight", "bias"):
            packed = state_dict.pop(f"{prefix}in_proj_{kind}", None)
            if packed is not None:
                if len(packed) != sum(sizes):
                    got = f"{prefix}in_proj_{kind} has {len(packed)} rows"
                    raise InvalidArgument(f"load_state_dict: {got}, expected {sum(sizes)}, of q, k and v {sizes}")
                for name, rows in zip(_PROJECTIONS, packed.split(sizes)):
                    state_dict[f"{prefix}{name}.{kind}"] = rows
        for name in _PROJECTIONS:  # where kdim or vdim is not embed_dim
            if f"{prefix}{name}_weight" in state_dict:
                state_dict[f"{prefix}{name}.weight"] = state_dict.pop(f"{prefix}{name}_weight")
        super()._load_from_state_dict(state_dict, prefix, *others)


def _count(name: str, value: Any) -> int:
    return integer(f"MultiHeadAttention: {name}", value, (1, (1 << 31) - 1))


def _require(is_true: bool, name: str, got: Any, expected: str, *sizes: Any) -> None:
    """sizes: what expected has braces for; torch's tracer makes a constant of a size that a sentence has."""
    if not is_true:
        raise InvalidArgument(f"MultiHeadAttention: {name} is {got}, expected {expected.format(*sizes)}")
