"""The mask function: a mask that is said in options of attention, and is a bool tensor for whoever looks into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
from torch.utils import _pytree  # type: ignore[import-not-found, unused-ignore]
from transformers.masking_utils import causal_mask_function, sdpa_mask  # type: ignore[import-not-found, unused-ignore]
from transformers.utils.import_utils import is_tracing  # type: ignore[import-not-found, unused-ignore]

from .._mask import dense
from ..torch._attention import operator_arguments
from ..torch._prepared import Prepared
from ._options import Sizes, options_of, padding_of
from ._pattern import pattern_of

_jit: Any = torch.jit


def scores(scale: float | None, softcap: float | None) -> dict[str, Any]:
    """Options that are given: the operator's host reads the arguments that it has, which takes time in a short call."""
    given = {"scale": scale, "softcap": softcap}
    return {name: value for name, value in given.items() if value is not None}


class MaskTensor(torch.Tensor):  # type: ignore[misc, unused-ignore]
    """(batch, 1, seqlen_q, seqlen_kv) bool without memory; an operation on it makes the tensor first.

    Models hand masks on, and some of them cut or join them: then what follows is an ordinary dense mask.
    """

    sizes: tuple[int, int, int]  # batch, seqlen_q, seqlen_kv, as shape has them
    _options: dict[str, Any] | None
    _prepared: dict[tuple[float | None, float | None], Prepared]
    _make: Callable[[], torch.Tensor]
    _made: torch.Tensor | None

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @staticmethod
    def of(
        options: dict[str, Any], make: Callable[[], torch.Tensor], sizes: tuple[int, int, int], device: Any
    ) -> MaskTensor:
        """options: those of tessella.torch.attention. make: of the tensor."""
        shape = (sizes[0], 1, *sizes[1:])
        mask: MaskTensor = torch.Tensor._make_wrapper_subclass(MaskTensor, shape, dtype=torch.bool, device=device)
        mask.sizes = sizes
        mask._options, mask._prepared, mask._make, mask._made = options, {}, make, None
        return mask

    @classmethod
    def __torch_dispatch__(  # type: ignore[override, unused-ignore]
        cls, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        def opened(value: Any) -> Any:
            if not isinstance(value, MaskTensor):
                return value
            # It may be this tensor that is written, now or through the view that this makes.
            if function._schema.is_mutable or any(made.alias_info for made in function._schema.returns):
                value._options, value._prepared = None, {}
            return value.dense()

        args, kwargs = _pytree.tree_map(opened, (args, kwargs or {}))
        return function(*args, **kwargs)

    def __repr__(self, **_kwargs: Any) -> str:  # type: ignore[override, unused-ignore]
        return f"MaskTensor({self._options}, shape={tuple(self.shape)})"

    # What leaves torch is the tensor that it stands for.
    def __deepcopy__(self, _memo: Any) -> Any:
        return self._plain().clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._plain().__reduce_ex__(protocol)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self._plain().__array__(*args, **kwargs)

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._plain().__dlpack__(**kwargs)

    def numpy(self, **kwargs: Any) -> Any:
        return self._plain().numpy(**kwargs)

    def tolist(self) -> Any:
        return self._plain().tolist()

    def share_memory_(self) -> Any:
        return self._plain().share_memory_()

    def _plain(self) -> Any:  # of no type: some of torch's own methods have none
        return self.dense()

    def dense(self) -> torch.Tensor:
        """The tensor that it stands for."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def options(self) -> dict[str, Any]:
        """Options of tessella.torch.attention that say the mask."""
        return {"mask": dense(self.dense())} if self._options is None else self._options

    def prepared(self, scale: float | None, softcap: float | None) -> Prepared:
        """Attention with this mask; layers that share it mostly share this too."""
        prepared = self._prepared.get((scale, softcap))
        if prepared is None:
            prepared = Prepared(operator_arguments({**self.options(), **scores(scale, softcap)}))
            self._prepared[scale, softcap] = prepared
        return prepared


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    device: Any = "cpu",
    **others: Any,
) -> torch.Tensor | None:
    """What transformers calls for a mask, with the arguments of its sdpa_mask.

    None where the mask is plain and the caller allows that, a MaskTensor where the pattern is known, else a dense mask.
    """
    last = q_offset + q_length
    is_plain = mask_function is causal_mask_function and type(last) is int and last == kv_offset + kv_length
    if is_plain and allow_is_causal_skip and (q_length == 1 or q_offset == kv_offset) and attention_mask is None:
        return None  # first: most steps of a generation, which are short
    call = dict(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        device=device,
        **others,
    )
    device = torch.device(device)
    # On a GPU `generate` compiles steps with a static cache, whose masks are made before and are inputs there.
    is_step_of_static_cache = isinstance(q_offset, torch.Tensor) and q_length == 1
    if (is_step_of_static_cache and device.type != "cpu") or _is_traced(attention_mask, device):
        return sdpa_mask(
            **call,
            allow_is_causal_skip=allow_is_causal_skip,
            allow_is_bidirectional_skip=allow_is_bidirectional_skip,
        )
    q_offset = call["q_offset"] = int(q_offset)  # a static cache counts on in its tensor
    pattern = pattern_of(mask_function)
    sizes = Sizes(batch_size, q_length, kv_length, q_offset - kv_offset, kv_offset)
    padding = None if pattern is None else padding_of(attention_mask, sizes)
    options = None
    if pattern is not None and padding is not None:
        options = options_of(pattern, padding, sizes, device)

    def make() -> torch.Tensor:
        made: torch.Tensor | None = sdpa_mask(**call, allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
        assert made is not None  # as it skips nothing
        return made

    if options is None:
        return make()
    is_plain = options == ({} if q_length == 1 else {"mask": "causal"}) and q_length in (1, kv_length)
    if (allow_is_causal_skip and is_plain) or (allow_is_bidirectional_skip and not options):
        return None
    return MaskTensor.of(options, make, (batch_size, q_length, kv_length), device)


def _is_traced(attention_mask: torch.Tensor | None, device: torch.device) -> bool:
    """Whether a graph is made or captured, for which nothing is read."""
    if device.type == "cpu" and type(attention_mask) in (torch.Tensor, type(None)):
        # Of what transformers asks, what may be so here: its questions to CUDA take longer than the mask of a step.
        return bool(torch.compiler.is_compiling() or _jit.is_tracing())
    return bool(is_tracing(attention_mask))
