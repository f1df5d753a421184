"""One backward call on its way into C: the forward's structs and those of the gradients."""

from __future__ import annotations

import ctypes as c
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from . import _declarations as d
from ._arrays import require_array
from ._call import Call, out_shape
from ._errors import InvalidArgument
from ._kinds import kind_of
from ._scalars import switch

# Gradients in the order in which they are returned -> the input whose they are.
GRADIENTS = {"dq": "q", "dk": "k", "dv": "v", "d_bias": "bias", "d_sink": "sink", "d_alibi_slopes": "alibi_slopes"}
BITS = {"dq": d.DQ, "dk": d.DK, "dv": d.DV, "d_bias": d.D_BIAS, "d_sink": d.D_SINK, "d_alibi_slopes": d.D_ALIBI_SLOPES}
OPERANDS = ("dq", "dk", "dv")  # whose axes the layout orders


def gradient_names(argument: str, value: Any, all_of: Collection[str]) -> frozenset[str]:
    """The gradients that a value names: True = all, False or None = none of them."""
    if value is None or isinstance(value, bool):
        return frozenset(all_of) if value else frozenset()
    if isinstance(value, str) or not isinstance(value, Collection):
        raise TypeError(f"{argument} is {value!r}, expected True, False or names of gradients")
    for name in value:
        if name not in GRADIENTS:
            raise InvalidArgument(f"{argument} has {name!r}, expected names among {', '.join(GRADIENTS)}")
    return frozenset(value)


class BackwardCall(Call):
    """The structs of one backward call, borrowed as those of a forward call are."""

    free: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        super().__init__()
        for name in ("d_out", "d_lse", *GRADIENTS):
            self.slots[name] = self.slot_type(name, d.Tensor(), self.capsules)
        self.backward = d.BackwardArgs(struct_size=c.sizeof(d.BackwardArgs), forward=c.pointer(self.args))
        self.backward.d_out = self.slots["d_out"].pointer
        self.backward_ref = c.byref(self.backward)
        self.passed: list[str] = []  # arrays of `backward` beside d_out

    def tagged(self) -> Any:
        """The call as plans and questions take it."""
        return c.byref(d.Call(c.sizeof(d.Call), d.BACKWARD, c.addressof(self.backward), c.addressof(self.options)))

    def fill_backward(
        self,
        inputs: tuple[Any, Any, Any],
        outputs: tuple[Any, Any],
        incoming: tuple[Any, Any],
        layout: str,
        stream: Any,
        options: Any,
    ) -> None:
        """Reads (q, k, v), (out, lse), (d_out, d_lse) and the options."""
        _require_seed(options)
        self.fill(*inputs, layout, stream, options)
        out, lse = outputs
        for name, array in (("out", out), ("lse", lse), ("d_out", incoming[0])):
            require_array(name, array)
        self.compared(out, lse)
        self.slots["d_out"].read(incoming[0], self.is_swapped, self.dlpack_stream)
        if incoming[1] is not None:
            self.pass_gradient("d_lse", incoming[1])

    def gradients(self, q: Any, asked: Mapping[str, Any], code: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Those that are asked for, viewed, and beside each the caller's array or None.

        asked: True, False or an array for each; code: the dtype of those that are made, or None.
        """
        made: dict[str, Any] = {}
        given: dict[str, Any] = {}
        for name, wanted in asked.items():
            if wanted is None or wanted is False:
                continue
            self._require_input(name)
            if wanted is True:
                made[name], given[name] = self._new(name, code, q), None
            else:
                kind_of(wanted).require_writable(name)
                made[name] = given[name] = wanted
            self.pass_gradient(name, made[name])
        return made, given

    def set_accumulate(self, accumulate: Any, given: Mapping[str, Any]) -> None:
        """Says which of the given gradients are added to."""
        arrays = [name for name, array in given.items() if array is not None]
        if accumulate is True and not arrays:
            raise InvalidArgument("accumulate is True, expected gradients given as arrays, to which it adds")
        bits = 0
        for name in gradient_names("accumulate", accumulate, arrays):
            if name not in arrays:
                raise InvalidArgument(f"accumulate has {name!r}, expected names of arrays that are given")
            bits |= BITS[name]
        self.backward.accumulate = bits

    def describe_gradients(self, wanted: Collection[str]) -> None:
        """Gradients, incoming and wanted, without memory."""
        like, shape = self.slots["q"].tensor, out_shape(self.slots["q"].shape, self.v_shape())
        self.slots["d_out"].describe(self._out_code(), like, shape, self.is_swapped)
        for name in GRADIENTS:
            if name in wanted:
                self._require_input(name)
                slot = self.slots[GRADIENTS[name]]
                swapped = name in OPERANDS and self.is_swapped
                self.slots[name].describe(self._code(name, None), like, slot.shape, swapped)
                self._pass(name)

    def pass_gradient(self, name: str, array: Any) -> None:
        """Sets one field of `backward`."""
        swapped = name in OPERANDS and self.is_swapped
        self.slots[name].read(array, swapped, self.dlpack_stream)
        self._pass(name)

    def _pass(self, name: str) -> None:
        setattr(self.backward, name, self.slots[name].pointer)
        self.passed.append(name)

    def _require_input(self, name: str) -> None:
        if name not in OPERANDS and GRADIENTS[name] not in self.given:
            raise InvalidArgument(f"{name} is asked for, expected {GRADIENTS[name]} beside it")

    def _code(self, name: str, code: int | None) -> int:
        """Dtype of a gradient that is made."""
        if name in ("d_sink", "d_alibi_slopes"):
            return d.F32
        own: int = self.slots[GRADIENTS[name]].tensor.dtype
        return own if code is None or (name == "d_bias" and code != d.F32) else code

    def _new(self, name: str, code: int | None, like: Any) -> Any:
        return self.kind.empty(name, tuple(self.slots[GRADIENTS[name]].shape), self._code(name, code), like)

    def clear(self) -> None:
        """Lets go of the caller's memory and goes back to the defaults."""
        super().clear()
        for name in self.passed:
            setattr(self.backward, name, None)
        self.passed.clear()
        self.backward.accumulate = 0


def _require_seed(options: Mapping[str, Any]) -> None:
    if options.get("dropout") and options.get("seed") is None:
        raise InvalidArgument(
            f"dropout is {options['dropout']!r} without a seed, expected the seed of the forward call"
        )


def describe(call: Call, return_lse: Any, wanted: Collection[str]) -> None:
    """What is no input, without memory, for what only asks about the call; wanted: gradients, if it is of backward."""
    call.describe_outputs(switch("return_lse", return_lse) or isinstance(call, BackwardCall))
    if isinstance(call, BackwardCall):
        call.describe_gradients(wanted)
