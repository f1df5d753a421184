"""attention on tensors of torch: options become arguments of the operator."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch  # type: ignore[import-not-found, unused-ignore]

from .._call import is_swapped
from .._errors import Error, InvalidArgument, Unsupported, name_function
from .._fields import set_options
from .._plan import plan
from .._scalars import switch
from . import (
    _operator,
    _vmap,  # noqa: F401  (what torch.func.vmap does with the operators)
)
from ._autograd import call
from ._schema import CACHE_DTYPES, NOT_OF_CACHES, OF_CACHES, OPTIONS, TENSORS
from ._seed import drawn

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._options import Options


class _Arguments:
    """The operator's arguments beside q, k and v, as set_options writes them."""

    def __init__(self) -> None:
        self.named: dict[str, Any] = {}

    def set_option(self, name: str, value: Any) -> None:
        if name == "scale_f64":  # goes with scale
            return
        if name not in OPTIONS:
            raise TypeError(f"{name} is no option of the operator, expected it in tessella.attention")
        option = OPTIONS[name]
        self.named[option.name] = option.type.of_field(value)

    def set_array(self, name: str, array: Any) -> None:
        if name not in TENSORS:
            raise TypeError(f"{name} is no argument of the operator, expected it in tessella.attention")
        if not isinstance(array, torch.Tensor):
            raise InvalidArgument(_no_tensor({name: array}))
        self.named[TENSORS[name]] = array

    def set_mod_args(self, arrays: Sequence[Any]) -> None:
        for array in arrays:
            if not isinstance(array, torch.Tensor):
                raise InvalidArgument(_no_tensor({"mod_args": array}))
        self.named["mod_args"] = list(arrays)

    def set_kv_dtype(self, code: int) -> None:
        self.named["kv_dtype"] = CACHE_DTYPES[code]

    def set_v_transposed(self) -> None:
        self.named["v_transposed"] = True


def _no_tensor(arrays: dict[str, Any]) -> str:
    """What to say of the first of the arrays that is not torch's."""
    name, array = next((name, array) for name, array in arrays.items() if not isinstance(array, torch.Tensor))
    return f"{name} is {type(array).__name__}, expected a torch.Tensor"


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    layout: str = "bshd",
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    return_lse: bool = False,
    **options: Unpack[Options],
) -> Any:
    """Exact attention, out = softmax(scale * q . k^T, masked) . v, in linear memory; `tessella.attention` on tensors.

    Shapes, dtypes, options and what is returned are those of `tessella.attention`; every array is a torch.Tensor on the
    device of q. The call is one operator, tessella::attention, or tessella::attention_cached on pages, slots and
    drafts, and beside scales: no graph break under torch.compile(fullgraph=True) and torch.export, and CUDA graphs
    capture it once a call like it has run. What torch decides:

        stream: the current one (torch.cuda.stream).
        memory: outputs and the GPU's workspace come from torch's allocator.
        num_threads: torch.get_num_threads() where it is absent.
        seed: without one, dropout draws an int64 tensor from the default generator of q's device (torch.manual_seed).
            The kernel reads it in memory, so that each replay of a CUDA graph drops other entries.
        gradients: of q, k, v, bias, sink and alibi_slopes, from those of out and lse, by the operator
            tessella::attention_backward; those that nothing needs are not computed.

    Args:
        q, k, v: (batch, seqlen, heads, head_dim), any strides with a contiguous head_dim; 3-D, 2-D and packed as there.
        layout: "bshd" or "bhsd".
        out, lse: tensors to write into; made when absent.
        return_lse: return (out, lse).
        options: those of tessella.Options.

    Raises:
        Unsupported: in grad mode a tensor requires grad beside page_table, cache_batch_idx, draft_mask, schedule, out=
            or lse=, or on CUDA with a head_dim above 256; dropout beside page_table, cache_batch_idx, draft_mask or
            scales; a tensor has a tangent of forward mode; a gradient of gradients, where it is taken; else as
            `tessella.attention`.
        InvalidArgument: an array that is no torch.Tensor; else as `tessella.attention`.
    """
    if not (isinstance(q, torch.Tensor) and isinstance(k, torch.Tensor) and isinstance(v, torch.Tensor)):
        raise InvalidArgument("forward: " + _no_tensor({"q": q, "k": k, "v": v}))
    named, is_cached = _named(q, layout, options) if options or layout != "bshd" else ({}, False)
    if "mod_args" in named and not torch.compiler.is_compiling():
        _require_unbatched(named["mod_args"])
    if return_lse is not True and return_lse is not False:
        return_lse = switch("forward: return_lse", return_lse)
    amax = named.pop("amax", None) if is_cached else None  # of a dict that is not remembered: tensors never are
    if out is None and lse is None and amax is None:
        if is_cached:
            return call(_operator.attention_cached_lse if return_lse else _operator.attention_cached, (q, k, v), named)
        return call(_operator.attention_lse if return_lse else _operator.attention, (q, k, v), named)
    _require_outputs({"out": out, "lse": lse, "amax": amax})
    if out is None:
        out = _operator.new_out(q, k, v, **named)
    if lse is None and return_lse:
        lse = _operator.new_lse(q, k, v, **named)
    if is_cached:
        call(_operator.attention_cached_out, (out, lse, amax, q, k, v), named)
    else:
        call(_operator.attention_out, (out, lse, q, k, v), named)
    return (out, lse) if return_lse else out


def _leave_out_what_caches_have_not(named: dict[str, Any]) -> bool:
    """Whether the call is attention_cached's. It lacks arguments of gradients, which say nothing of it, and dropout."""
    of_caches = [name for name in OF_CACHES if name in named]  # Dynamo of torch 2.4 has no next() with a default
    if not of_caches:
        return False
    if named.get("dropout"):
        raise Unsupported(f"dropout is given beside {of_caches[0]}, expected tessella.attention for such a call")
    if named.get("score_mod_gradient") and not named.get("score_mod"):
        raise InvalidArgument("score_mod_gradient is given, expected it beside score_mod")
    for name in NOT_OF_CACHES:
        named.pop(name, None)
    return True


def decode_schedule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, layout: str = "bshd", **options: Unpack[Options]
) -> torch.Tensor:
    """How the keys of ragged sequences are split, for `attention(..., schedule=)`: once a model step, for every layer
    with the same lengths and window.

    It is made on the GPU from lengths that only the GPU knows, waits for nothing, and may be captured in a CUDA graph
    once a call like it has run; replays follow the lengths. Each call looks for a plan; `tessella.Plan.schedule` has
    one. It is no operator: under torch.compile it belongs outside of what is compiled.

    Args:
        As for `attention`; what q, k and v hold is not read.

    Returns:
        (n) int32 on the device of q.

    Raises:
        Unsupported: q is not on a GPU; the kernels of CPUs follow no schedule.
    """
    if isinstance(q, torch.Tensor) and not q.is_cuda:
        raise Unsupported(f"decode_schedule: q is on {q.device}, expected a GPU; on others leave schedule out")
    q, k, v = q.detach(), k.detach(), v.detach()
    options["schedule"] = True
    made: torch.Tensor = plan(q, k, v, layout=layout, **options).schedule(q, k, v, **options)
    return made


def _require_outputs(arrays: dict[str, Any]) -> None:
    given = {name: array for name, array in arrays.items() if array is not None}
    if not all(isinstance(array, torch.Tensor) for array in given.values()):
        raise InvalidArgument("forward: " + _no_tensor(given))
    for name, array in given.items():
        if not torch.compiler.is_compiling() and array.is_neg():  # the operator would write a copy
            raise InvalidArgument(f"forward: {name} has the negative bit, expected memory that holds its own numbers")


_functorch: Any = torch._C._functorch


def _require_unbatched(arrays: Sequence[Any]) -> None:
    """torch.func.vmap sees tensors; into a list of them it does not look."""
    for array in arrays:
        while _functorch.is_functorch_wrapped_tensor(array):
            if _functorch.is_batchedtensor(array):
                raise Unsupported("forward: vmap goes over an array of mod_args, expected it over other tensors")
            array = _functorch.get_unwrapped(array)


# Options of these types make the same arguments every time. Tensors do not: what is remembered would keep them.
_PLAIN = frozenset((str, int, float, bool, type(None)))


def _named(q: torch.Tensor, layout: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """The operator's arguments after q, k and v, and whether it is attention_cached."""
    if torch.compiler.is_compiling():  # Dynamo knows no sets of types
        return _translate(q, layout, options)
    try:
        is_plain = type(layout) is str and _PLAIN.issuperset(map(type, options.values()))
        if not is_plain or (options.get("dropout") and options.get("seed") is None):
            return _translate(q, layout, options)
        return _remembered(layout, **options)
    except (Error, TypeError) as error:
        name_function(error, "forward")
        raise


@functools.lru_cache(maxsize=256, typed=True)  # typed: 1 is no True
def _remembered(layout: str, **options: Any) -> tuple[dict[str, Any], bool]:
    return _translate(None, layout, options)


def operator_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of tessella::attention beside q, k and v, for callers that keep them; no seed is drawn."""
    return _translate(None, "bshd", options)[0]


def _translate(q: torch.Tensor | None, layout: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """q: None where no seed is drawn."""
    given = _Arguments()
    if is_swapped(layout):
        given.named["layout"] = layout
    set_options(given, options)
    if q is not None and options.get("dropout") and options.get("seed") is None:
        given.set_array("seed", drawn(q))
    if given.named.get("scale_block") == 0:  # the default makes no call one on caches
        del given.named["scale_block"]
    return given.named, _leave_out_what_caches_have_not(given.named)
