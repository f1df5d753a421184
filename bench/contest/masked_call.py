"""Both passes of a call with a mask, into memory that is there."""

from __future__ import annotations

import math

import tessella
import tessella.torch
import torch


class MaskedCall:
    """tensors: q, k, v."""

    def __init__(self, tensors: list[torch.Tensor], d_out: torch.Tensor, mask: tessella.Mask) -> None:
        self.tensors, self.d_out, self.mask = tensors, d_out, mask
        self.out = torch.empty_like(d_out)
        self.lse = torch.empty(d_out.shape[0], d_out.shape[2], d_out.shape[1], device=d_out.device)
        self.gradients = [torch.empty_like(tensor) for tensor in tensors]

    def forward(self) -> None:
        q, k, v = self.tensors
        tessella.torch.attention(q, k, v, out=self.out, lse=self.lse, mask=self.mask)

    def backward(self) -> None:
        q, k, v = self.tensors
        dq, dk, dv = self.gradients
        tessella.attention_backward(q, k, v, self.out, self.lse, self.d_out, dq=dq, dk=dk, dv=dv, mask=self.mask)

    def both(self) -> None:
        self.forward()
        self.backward()

    def error(self, visible: torch.Tensor) -> float:
        """The largest ||result - reference|| / ||reference|| of the last sequence's first KV head and its query heads.

        visible: (queries, keys) of that sequence.
        """
        self.both()
        group = self.tensors[0].shape[2] // self.tensors[1].shape[2]

        def heads(tensor: torch.Tensor, count: int) -> torch.Tensor:
            return tensor[-1, :, :count].transpose(0, 1).double()

        counts = (group, 1, 1)
        inputs = [heads(tensor, count).requires_grad_() for tensor, count in zip(self.tensors, counts)]
        q, k, v = inputs
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~visible, -math.inf)
        out = scores.softmax(-1) @ v
        wanted = [out.detach(), *torch.autograd.grad(out, inputs, heads(self.d_out, group))]
        got = [heads(tensor, count) for tensor, count in zip((self.out, *self.gradients), (group, *counts))]
        return max(float((one - other).norm() / other.norm()) for one, other in zip(got, wanted))
