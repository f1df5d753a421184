"""Plan: a kernel chosen and prepared for calls of one kind, run without choosing, compiling or allocating again."""

from __future__ import annotations

import ctypes as c
import weakref
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from . import _declarations as d
from ._arrays import Slot, require_array
from ._backward_call import OPERANDS, BackwardCall, describe, gradient_names
from ._call import Call
from ._errors import Error, InvalidArgument, name_function
from ._fields import ARGUMENTS
from ._kinds import dlpack_stream, kind_of, stream_handle
from ._library import library, require

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import Options

_ALIGNMENT = 64


class Workspace:
    """Memory for the runs of one plan; made by `Plan.workspace`.

    One run at a time: another one that begins meanwhile is an InvalidArgument, and so is memory of it in an array of
    the run. On a GPU runs of one stream follow each other; those of two streams at a time are not seen, and their
    results are not defined.
    """

    def __init__(self, state_bytes: int, scratch_bytes: int, like: Any, stream: int | None) -> None:
        self.state_bytes = state_bytes
        self.scratch_bytes = scratch_bytes
        self._memory: list[Any] = []
        self._struct = d.Workspace(state_bytes=state_bytes, scratch_bytes=scratch_bytes)
        self._struct.state = self._allocated("state", state_bytes, like, stream)
        self._struct.scratch = self._allocated("scratch", scratch_bytes, like, stream)
        self._ref = c.byref(self._struct)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Workspace is memory of one plan's runs, expected one of its own by Plan.workspace()")

    def _allocated(self, name: str, size: int, like: Any, stream: int | None) -> int | None:
        """Address of so many bytes, aligned, in an array of the library of `like`."""
        if size == 0:
            return None
        array = kind_of(like).empty(f"workspace: {name}", ((size + _ALIGNMENT + 3) // 4,), d.I32, like)
        slot = Slot(name, d.Tensor(), self._memory)
        slot.read(array, False, stream)
        self._memory.append(array)
        address: int = slot.tensor.data
        return (address + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT


def _free(handle: c.c_void_p) -> None:
    """Frees the plan; what ends after it in a cycle of objects finds none, which C says."""
    plan, handle.value = handle.value, None
    library.tessella_plan_free(plan)


class Plan:
    """Immutable; threads may share it. It holds no q, k, v or other argument, but the options it was made with."""

    def __init__(self, handle: c.c_void_p, layout: str, return_lse: bool, options: dict[str, Any]) -> None:
        self._handle = handle
        self._layout = layout
        self._return_lse = return_lse
        self._options = options
        # Not at exit, when others may still hold the plan.
        weakref.finalize(self, _free, handle).atexit = False

    def __copy__(self) -> Plan:
        return self

    def __deepcopy__(self, memo: object) -> Plan:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Plan belongs to its process, expected one made anew there by plan()")

    @property
    def kernel(self) -> str:
        """Name of the kernel that runs."""
        return str(library.tessella_plan_kernel(self._handle).decode())

    def explain(self) -> str:
        """The problem, the kernel, its workspace, and why each better kernel is not eligible."""
        return str(library.tessella_plan_explain(self._handle).decode())

    def workspace(self, q: Any, *, stream: Any = None) -> Workspace:
        """Memory for runs, of q's library and on its device, ready for use: its state is zeroed on the stream."""
        state_bytes, scratch_bytes = c.c_size_t(), c.c_size_t()
        require(library.tessella_plan_workspace(self._handle, state_bytes, scratch_bytes))
        try:
            require_array("q", q)
            kind = kind_of(q)
            handle = stream_handle(stream, q, kind) if kind.is_on_gpu(q) else None
            workspace = Workspace(state_bytes.value, scratch_bytes.value, q, dlpack_stream(handle))
        except (Error, TypeError) as error:
            name_function(error, "plan_workspace")
            raise
        require(library.tessella_plan_initialize(self._handle, workspace._ref, handle))
        return workspace

    def run(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        out: Any = None,
        lse: Any = None,
        workspace: Workspace | None = None,
        stream: Any = None,
        **options: Unpack[Options],
    ) -> Any:
        """Attention as `attention` returns it, by the plan's kernel.

        Batch, heads, head dims, dtypes, device and features are those the plan was made for, lengths at most its
        bounds. Options given here replace those of the plan: scale, window widths, softcap, seed, mask arrays may
        differ; bias, sinks, lengths and other arguments are always given here. Where neither has a seed, each run's
        dropout draws one; a seed given to plan() is every run's. Without a workspace it takes memory as `attention`
        does.

        Raises:
            InvalidArgument: what differs from what the plan was made for; otherwise as `attention`.
        """
        with Call.of("plan_run") as call:
            if workspace is not None and not isinstance(workspace, Workspace):
                raise TypeError(f"workspace is {type(workspace).__name__}, expected a tessella.Workspace")
            for name in ("layout", "return_lse"):
                if name in options:
                    raise TypeError(f"{name} is given, expected it in plan(), whose runs are alike")
            kept = self._options
            if not {"cu_seqlens_q", "cu_seqlens_kv"}.intersection(options):  # bounds of a plan; of packed runs too
                kept = {name: value for name, value in kept.items() if not name.startswith("max_seqlen")}
            call.fill(q, k, v, self._layout, stream, {**kept, **options})
            call.draw_seed()
            made = call.outputs(q, out, lse, self._return_lse)
            memory = None if workspace is None else workspace._ref
            call.run(lambda: library.tessella_plan_run(self._handle, call.tagged(), memory, call.stream))
            return call.kind.results(made, (out, lse), self._return_lse)

    def schedule(
        self, q: Any, k: Any, v: Any, *, out: Any = None, stream: Any = None, **options: Unpack[Options]
    ) -> Any:
        """How the keys of ragged sequences are split, from their lengths as they are on the GPU: once a model step.

        Every layer with these lengths and this window then takes it as `schedule`, in `run` or in `attention`. The plan
        is made with schedule=True. Nothing waits: the call may be captured in a CUDA graph, and its replays follow the
        lengths. They may also have grown since: results are right, and the work is less even.

        Args:
            q, k, v, options: those of the calls to come; what q, k and v hold is not read.
            out: (n) int32, a schedule that is written anew; made when absent.
            stream: as for `attention`.

        Returns:
            out, on the device of q.
        """
        sizes_and_makes = library.tessella_plan_schedule_size_for, library.tessella_plan_schedule
        return self._made_before("schedule", sizes_and_makes, (q, k, v), out, stream, options)

    def mask_map(
        self, q: Any, k: Any, v: Any, *, out: Any = None, stream: Any = None, **options: Unpack[Options]
    ) -> Any:
        """What the mask of the calls hides, from masks and lengths as they are on the GPU: once for many calls.

        Calls with the same mask and lengths, of any head dim and dtype, and their gradients, take it as `mask_map`;
        with others results are wrong. The plan is made with mask_map=True. `tessella.mask_map` makes a mask that has
        it.

        Args:
            q, k, v, options: those of the calls to come; what q, k and v hold is not read.
            out: (n) int32, a map that is written anew; made when absent.
            stream: as for `attention`.

        Returns:
            out, on the device of q.
        """
        sizes_and_makes = library.tessella_plan_mask_map_size, library.tessella_plan_mask_map
        return self._made_before("mask_map", sizes_and_makes, (q, k, v), out, stream, options)

    def _made_before(
        self,
        name: str,
        functions: tuple[Any, Any],
        operands: tuple[Any, Any, Any],
        out: Any,
        stream: Any,
        options: Mapping[str, Any],
    ) -> Any:
        """What runs read as the argument `name`. functions: of C, which give its size and make it."""
        size_of, make = functions
        size = c.c_size_t()
        require(library.tessella_plan_schedule_size(self._handle, size))
        with Call.of(f"plan_{name}") as call:
            if not size.value:
                raise InvalidArgument(f"{self.kernel} reads no {name}, expected a plan of a GPU with {name}=True")
            call.fill(*operands, self._layout, stream, {**self._options, **options, name: None})
            describe(call, self._return_lse, frozenset())
            if out is None:
                call.describe_made(name)
                call.require(size_of(self._handle, call.tagged(), size))
                out = call.kind.empty("out", (size.value // 4,), d.I32, operands[0])
            else:
                kind_of(out).require_writable("out")
            call.set_array(name, out)
            call.require(make(self._handle, call.tagged(), call.stream))
            return out


def plan(q: Any, k: Any, v: Any, *, layout: str = "bshd", return_lse: bool = False, **options: Unpack[Options]) -> Plan:
    """Chooses and prepares a kernel for calls like this one, for lengths up to these or max_seqlen_q and max_seqlen_kv.

    Arguments and errors as for `attention`. A GPU kernel that is not embedded or cached is compiled here.
    schedule=True makes a plan of calls with a schedule, which `Plan.schedule` makes; mask_map=True likewise.
    """
    return _made(q, k, v, layout, return_lse, frozenset(), options)


def _made(
    q: Any, k: Any, v: Any, layout: str, return_lse: bool, gradients: Collection[str], options: Mapping[str, Any]
) -> Plan:
    """A plan of attention, or of its gradients if there are any."""
    with (BackwardCall if gradients else Call).of("plan_make") as call:
        to_be_made = [name for name in ("schedule", "mask_map") if options.get(name) is True]
        call.fill(q, k, v, layout, None, {**options, **dict.fromkeys(to_be_made)})
        for name in to_be_made:
            call.describe_made(name)
        describe(call, return_lse, gradients)
        handle = c.c_void_p()
        call.require(library.tessella_plan_make(call.tagged(), handle))
    kept = {name: value for name, value in options.items() if name not in ARGUMENTS}  # which every run brings anew
    return Plan(handle, layout, return_lse, kept)


def explain(
    q: Any,
    k: Any,
    v: Any,
    *,
    layout: str = "bshd",
    return_lse: bool = False,
    backward: bool | Collection[str] = False,
    **options: Unpack[Options],
) -> str:
    """What `attention` would do with these arguments: the kernel, and why each better one is not eligible.

    backward: ask about `attention_backward` with these gradients, names of a collection; True = dq, dk and dv.
    """
    return _made(q, k, v, layout, return_lse, gradient_names("backward", backward, OPERANDS), options).explain()
