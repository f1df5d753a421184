"""A step by Tessella: all of it, or attention and append alone.

Linear layers and attention are runs of plans with workspaces of their own: in the capture of a CUDA graph a plain call
has its workspace zeroed by an operation of its own, behind which no kernel starts early.
"""

from __future__ import annotations

import ctypes as c

import tessella
import tessella.torch
import torch
from tessella import _declarations as d
from tessella._library import library, require
from tessella._linear import LinearCall
from tessella.torch._tensor import TensorSlot

from .model import Layer, Model, StepConfiguration
from .torch_step import TorchStep

ALIGNMENT = 64


class LinearPlan:
    """Linear layers of one shape, whose weights nothing writes. Their runs follow each other on one stream."""

    def __init__(self, rows: int, w: torch.Tensor, activation: str = "none", has_residual: bool = False) -> None:
        self._activation, self._is_on_gpu = activation, w.is_cuda
        x = w.new_empty(rows, w.shape[1])
        out = w.new_empty(rows, w.shape[0] // (2 if activation == "swiglu" else 1))
        self._plan = d.Plan()
        _, tagged = self._tagged(x, w, out, out if has_residual else None)
        require(library.tessella_plan_make(tagged, c.byref(self._plan)))
        self.kernel = str(library.tessella_plan_kernel(self._plan).decode())
        state, scratch = c.c_size_t(), c.c_size_t()
        require(library.tessella_plan_workspace(self._plan, c.byref(state), c.byref(scratch)))
        self._memory = [w.new_zeros(size.value + ALIGNMENT, dtype=torch.uint8) for size in (state, scratch)]
        at = [(tensor.data_ptr() + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT for tensor in self._memory]
        self._workspace = d.Workspace(at[0], state.value, at[1], scratch.value)
        self._out_features = out.shape[1]

    def __call__(self, x: torch.Tensor, w: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        out = x.new_empty(x.shape[0], self._out_features)
        _, tagged = self._tagged(x, w, out, residual)
        stream = torch.cuda.current_stream().cuda_stream if self._is_on_gpu else None
        require(library.tessella_plan_run(self._plan, tagged, self._workspace, stream))
        return out

    def _tagged(
        self, x: torch.Tensor, w: torch.Tensor, out: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[LinearCall, d.Call]:
        """The call, which has the memory of its structs, and what C takes of it."""
        call = LinearCall(TensorSlot)
        call.read_inputs({"x": x, "w": w}, None)
        call.set_activation(self._activation)
        call.read_results({"residual": residual, "out": out})
        call.options.weights_ready = 1
        call.options.num_threads = 0 if self._is_on_gpu else torch.get_num_threads()
        at = (c.cast(c.pointer(struct), c.c_void_p) for struct in (call.args, call.options))
        return call, d.Call(c.sizeof(d.Call), d.LINEAR, *at)


class OurAttentionStep(TorchStep):
    """torch's linear layers and ours between them: append with rotary embeddings, and attention."""

    def __init__(self, model: Model, config: StepConfiguration) -> None:
        super().__init__(model, config, lambda q, k, v: q)
        device = model.head.device
        cos, sin = model.angles(config.context)
        self.rotary = cos.float(), sin.float()
        self.seqlens = torch.full((config.batch,), config.context, dtype=torch.int32, device=device)
        _, k, v = self.layers[0]
        q = model.head.new_empty(config.batch, 1, model.shape.heads_q, model.shape.head_dim)
        self.plan = tessella.plan(q, k, v, mask="causal", seqlens_kv=self.seqlens)
        self.workspace = self.plan.workspace(q)
        self.kernels = {"attention": self.plan.kernel}

    def attention(self, layer: Layer, h: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        shape = self.model.shape
        heads = self.heads(layer, h).view(self.config.batch, 1, -1, shape.head_dim)
        q, k_new, v_new = heads.split((shape.heads_q, shape.heads_kv, shape.heads_kv), 2)
        q = tessella.torch.append(k_new, v_new, k, v, self.seqlens, rotary=self.rotary, q=q, q_out=q)
        out: torch.Tensor = self.plan.run(q, k, v, seqlens_kv=self.seqlens, workspace=self.workspace)
        return out.flatten(1)

    def heads(self, layer: Layer, h: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(h, layer.qkv)


class OurStep(OurAttentionStep):
    """Linear layers of ours too, with SwiGLU and the residual; the norms are torch's."""

    def __init__(self, model: Model, config: StepConfiguration) -> None:
        super().__init__(model, config)
        layer, rows = model.held[0], config.batch
        self.qkv = LinearPlan(rows, layer.qkv)
        self.out = LinearPlan(rows, layer.out, has_residual=True)
        self.gate_up = LinearPlan(rows, layer.gate_up, activation="swiglu")
        self.down = LinearPlan(rows, layer.down, has_residual=True)
        self.head = LinearPlan(rows, model.head)
        for name in ("qkv", "out", "gate_up", "down", "head"):
            self.kernels[name] = getattr(self, name).kernel

    def heads(self, layer: Layer, h: torch.Tensor) -> torch.Tensor:
        return self.qkv(h, layer.qkv)

    def after_attention(self, layer: Layer, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._with_norm(self.out(y, layer.out, x), layer.norm_mlp)

    def after_mlp(
        self, layer: Layer, x: torch.Tensor, h: torch.Tensor, norm: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._with_norm(self.down(self.gate_up(h, layer.gate_up), layer.down, x), norm)

    def _with_norm(self, x: torch.Tensor, norm: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, torch.nn.functional.rms_norm(x, norm.shape, norm, self.model.shape.epsilon)

    def logits(self, h: torch.Tensor) -> torch.Tensor:
        return self.head(h, self.model.head)
