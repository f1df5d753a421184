"""linear on tensors of torch: the operator tessella::linear."""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from .. import _declarations as d
from .._errors import Error, name_function
from .._linear import LinearCall, activation_code, out_code, output_shape
from .._scalars import switch
from ._append import require_tensor, set_resources
from ._schema import TORCH_DTYPES
from ._tensor import TensorSlot, refuse_other_layouts, require_one_device, run_call

_SCHEMA = (
    "(Tensor x, Tensor w, Tensor? bias=None, *, Tensor? w_scale=None, Tensor? residual=None, str activation='none', "
    "ScalarType? out_dtype=None, bool weights_ready=False, bool batch_invariant=False, str? kernel_name=None, "
    "int num_sms=0, int? num_threads=None) -> Tensor"
)


def linear(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    w_scale: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    activation: str = "none",
    out_dtype: Any = None,
    weights_ready: bool = False,
    batch_invariant: bool = False,
    kernel: str | None = None,
    num_sms: int = 0,
    num_threads: int | None = None,
) -> torch.Tensor:
    """A linear layer of few rows, out = f(x w^T + bias) + residual; `tessella.linear` on tensors.

    The call is one operator, tessella::linear, which waits for nothing and may be captured in a CUDA graph. It has no
    gradient: it is for decoding, under torch.no_grad() or torch.inference_mode(). The stream, the memory and the number
    of threads are torch's, as for `attention`.

    Args:
        As `tessella.linear`.

    Returns:
        out, a new tensor.

    Raises:
        As `tessella.linear`; Unsupported where a gradient would be wanted.
    """
    try:
        require_tensor("x", x)
        require_tensor("w", w)
        tensors = {"bias": bias, "w_scale": w_scale, "residual": residual}
        named: dict[str, Any] = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        for name, tensor in named.items():
            require_tensor(name, tensor)
        if activation_code(activation) != d.ACTIVATION_NONE:
            named["activation"] = activation
        if out_dtype is not None:
            named["out_dtype"] = TORCH_DTYPES[out_code(d.DTYPE_DEFAULT, out_dtype)]
        for name, value in (("weights_ready", weights_ready), ("batch_invariant", batch_invariant)):
            if switch(name, value):
                named[name] = True
        set_resources(named, kernel, num_sms, num_threads)
    except (Error, TypeError) as error:
        name_function(error, "linear")
        raise
    out: torch.Tensor = torch.ops.tessella.linear.default(x, w, **named)
    return out


def _new_output(x: torch.Tensor, w: torch.Tensor, activation: str, dtype: torch.dtype | None) -> torch.Tensor:
    shape = output_shape(x.shape, w.shape, activation_code(activation) == d.SWIGLU)
    return x.new_empty(shape, dtype=x.dtype if dtype is None else dtype)


def _run(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    w_scale: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    activation: str = "none",
    out_dtype: torch.dtype | None = None,
    weights_ready: bool = False,
    batch_invariant: bool = False,
    kernel_name: str | None = None,
    num_sms: int = 0,
    num_threads: int | None = None,
) -> torch.Tensor:
    call = LinearCall(TensorSlot)
    try:
        call.read_inputs({"x": x, "w": w, "w_scale": w_scale, "bias": bias}, None)
        call.set_activation(activation)
        out = _new_output(x, w, activation, out_dtype)
        call.read_results({"residual": residual, "out": out})
        call.options.weights_ready, call.options.batch_invariant = weights_ready, batch_invariant
    except Error as error:
        name_function(error, "linear")
        raise
    run_call(call, x.get_device(), kernel_name, num_sms, num_threads)
    return out


def _fake(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    activation: str = "none",
    out_dtype: torch.dtype | None = None,
    **named: Any,
) -> torch.Tensor:
    require_one_device("linear", {"x": x, "w": w, "bias": bias, **named})
    return _new_output(x, w, activation, out_dtype)


_torch_library: Any = torch.library  # whose functions have no types
_definitions = _torch_library.Library("tessella", "FRAGMENT")
_definitions.define("linear" + _SCHEMA)
for _device in ("CPU", "CUDA"):
    _definitions.impl("linear", _run, _device)
_torch_library.register_fake("tessella::linear", _fake, lib=_definitions)
refuse_other_layouts(_definitions, "linear", "linear")
