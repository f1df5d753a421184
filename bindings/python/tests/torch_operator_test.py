"""tessella.torch.attention as torch sees it: its operators checked, their fields, seeds, threads and errors."""

import ctypes as c
import math
import re
import subprocess
import sys

import numpy as np
import pytest
import tessella

torch = pytest.importorskip("torch")

import tessella.torch  # noqa: E402
from tensors import close  # noqa: E402
from tessella import _call  # noqa: E402
from tessella import _declarations as d  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()


@pytest.mark.parametrize("operator", ["attention", "attention_lse", "attention_cached", "attention_cached_lse"])
def test_opcheck(operator, qkv):
    q, k, v = qkv
    function = getattr(torch.ops.tessella, operator).default
    torch.library.opcheck(function, (q, k, v))
    bias = torch.ones(13, device=q.device)
    named = {"bias": bias, "window_right": 0, "softcap": 3.0, "max_seqlen_q": 9, "max_seqlen_kv": 13}
    torch.library.opcheck(function, (q, k, v), named)
    swapped = tuple(tensor.transpose(1, 2) for tensor in qkv)
    own = {"cache_settled": True} if "cached" in operator else {"deterministic": True}
    torch.library.opcheck(function, swapped, {"layout": "bhsd", "out_dtype": torch.float32, **own})


def test_opcheck_of_given_outputs(qkv):
    out, lse = torch.empty(2, 9, 4, 8, device=qkv[0].device), torch.empty(2, 4, 9, device=qkv[0].device)
    for outputs in ((out, None), (out, lse)):
        torch.library.opcheck(torch.ops.tessella.attention_out.default, (*outputs, *qkv))
        torch.library.opcheck(torch.ops.tessella.attention_cached_out.default, (*outputs, None, *qkv))


SOURCE = "layout=bhsd&x;%26 'a' \"b\" \\n\n\r\u00e9"
_NOT_OF_TORCH = ("struct_size", "allocator", "cancel")
FIELDS = {name: kind for name, kind in d.AttentionOptions._fields_ if name not in _NOT_OF_TORCH}


@pytest.mark.parametrize("operator", ["attention", "attention_cached"])
def test_every_field_passes_through(operator, qkv, monkeypatch):
    """Each field of the C structs arrives as it was set; none of them is cut or renamed on the way."""
    from tessella._options import SCHEMAS
    from tessella.torch import _attention, _schema, _tensor

    def has(name):
        return re.search(rf"\b{name}=", SCHEMAS[operator]) is not None

    values = {
        c.c_float: 0.5,
        c.c_double: 0.5,
        c.c_int32: 2**31 - 1,
        c.c_int64: 2**63 - 1,
        c.c_uint64: 2**64 - 1,
        c.c_char_p: SOURCE,
    }
    expected = {name: values[kind] for name, kind in FIELDS.items()}
    expected.update(dict.fromkeys(("causal_top_left", "batch_invariant", "cache_settled", "check_device_values"), 1))
    expected.update(deterministic=2, out_dtype=d.BF16)
    del expected["scale_f64"]  # which goes with scale
    expected = {name: value for name, value in expected.items() if has(_schema.OPTIONS[name].name)}
    given = _attention._Arguments()
    for name, value in expected.items():
        given.set_option(name, value)
    arrays = [name for name, _ in d.ForwardArgs._fields_ if name in _schema.TENSORS and has(_schema.TENSORS[name])]
    for name in arrays:
        given.set_array(name, qkv[0])
    given.set_mod_args([qkv[1], qkv[2]])
    seen, mod_args = [], []
    call = _tensor.TensorCall()

    def kernel(q, k, v, **named):
        monkeypatch.setattr(call, "set_array", lambda name, array: seen.append(name))
        monkeypatch.setattr(call, "set_mod_args", mod_args.extend)
        call.fill_tensors(q, k, v, named)
        return q.clone()

    with torch.library._scoped_library("tessella_test", "FRAGMENT") as library:
        library.define(f"fields({SCHEMAS[operator]}) -> Tensor")
        library.impl("fields", kernel, "CompositeExplicitAutograd")
        torch.ops.tessella_test.fields(*qkv, **given.named)
    got = {name: getattr(call.options, name) for name in expected}
    assert got == {name: value.encode() if isinstance(value, str) else value for name, value in expected.items()}
    assert sorted(seen) == sorted(arrays) and len(mod_args) == 2


def test_a_new_torch_has_the_operators_in_cpp():
    """Tests of the C++ kernels skip where they are not loaded: here that is a failure."""
    if tuple(int(number) for number in torch.__version__.split(".")[:2]) < (2, 10):
        pytest.skip("the stable ABI begins with torch 2.10")
    assert tessella.info().splitlines()[-1] == "torch operators: in C++"


def test_every_field_is_in_one_of_the_schemas():
    from tessella._options import SCHEMAS
    from tessella.torch import _schema

    names = {name for schema in SCHEMAS.values() for name in re.findall(r"(\w+)=", schema)}
    wanted = {*_schema.TENSORS.values(), *(option.name for option in _schema.OPTIONS.values())}
    assert wanted - names == {"amax"}  # which attention_cached_out writes


@pytest.mark.parametrize("operator", ["attention", "attention_cached"])
def test_defaults_are_those_of_c(operator, qkv):
    from tessella.torch import _tensor

    schema = getattr(torch.ops.tessella, operator).default._schema
    defaults = {argument.name: argument.default_value for argument in schema.arguments}
    call = _tensor.TensorCall()
    call.fill_tensors(*qkv, {name: value for name, value in defaults.items() if name not in ("q", "k", "v")})
    got, expected = ({name: getattr(struct, name) for name in FIELDS} for struct in (call.options, _call.INITIAL))
    if qkv[0].device.type == "cpu":
        assert got.pop("num_threads") == torch.get_num_threads() and expected.pop("num_threads") == 0
    assert math.isnan(got.pop("scale")) and math.isnan(expected.pop("scale"))
    assert got == expected


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_any_source_in_a_compiled_function(backend, qkv):
    """Code that torch generates holds it whole: the library's message says it back."""
    compiled = torch.compile(lambda q: tessella.torch.attention(q, *qkv[1:], kernel=SOURCE), backend=backend)
    with pytest.raises(Exception, match=re.escape(SOURCE)):
        compiled(qkv[0])


def test_calls_in_turn(qkv):
    """What a call remembers of the ones before it: options, and forms of outputs that were given or made."""
    q, k, v = qkv
    swapped = [tensor.transpose(1, 2) for tensor in qkv]
    shorter = [tensor[:, :5] for tensor in qkv]
    out, lse = torch.empty(2, 9, 2, 4, 8, device=q.device)[:, :, 0], torch.empty(2, 9, 4, device=q.device).mT
    calls = [
        ((q, k, v), {}),
        ((q, k, v), {"mask": "causal", "return_lse": True}),
        ((q, k, v), {"out": out, "lse": lse, "return_lse": True}),
        ((q, k, v), {"out_dtype": "f32", "scale": 0.5}),
        ((q, k, k), {"sink": torch.ones(4, device=q.device), "return_lse": True}),
        (swapped, {"layout": "bhsd", "mask": "causal", "return_lse": True}),
        (shorter, {"max_seqlen_q": 7, "max_seqlen_kv": 9, "return_lse": True}),
        ([tensor.bfloat16() for tensor in qkv], {"return_lse": True}),
        ([tensor.bfloat16() for tensor in qkv], {"out_dtype": torch.float32}),
    ]
    for first in calls:
        for tensors, options in (first, *calls):
            got, expected = tessella.torch.attention(*tensors, **options), tessella.attention(*tensors, **options)
            for one, other in zip(*([x] if torch.is_tensor(x) else x for x in (got, expected))):
                assert one.dtype is other.dtype and one.shape == other.shape and torch.equal(one, other)


def test_what_is_written_tells_autograd(qkv):
    q, k, v = qkv
    out, lse = torch.empty(2, 9, 4, 8, device=q.device), torch.empty(2, 4, 9, device=q.device)
    versions = out._version, lse._version
    tessella.torch.attention(q, k, v, out=out, lse=lse, return_lse=True)
    assert out._version > versions[0] and lse._version > versions[1]
    with pytest.raises(tessella.Unsupported, match="a tensor requires grad"):
        tessella.torch.attention(q, k, v, out=out.clone().requires_grad_())


def test_the_negative_bit(qkv):
    bias = torch.randn(9, 13, dtype=torch.complex64, device=qkv[0].device).conj().imag
    assert bias.is_neg()
    expected = tessella.torch.attention(*qkv, bias=bias.resolve_neg())
    assert close([tessella.torch.attention(*qkv, bias=bias)], [expected])
    negative = [torch._neg_view(tensor) for tensor in qkv]
    assert close([tessella.torch.attention(*negative)], [tessella.torch.attention(*(-tensor for tensor in qkv))])


def test_inference_mode(qkv):
    expected = tessella.torch.attention(*qkv)
    with torch.inference_mode():
        out = tessella.torch.attention(*(tensor.clone() for tensor in qkv))
        assert out.is_inference() and (out == expected).all()
        compiled = torch.compile(tessella.torch.attention, fullgraph=True, backend="eager")
        assert close([compiled(*qkv)], [expected])


THREADS = """
import ctypes
from tessella import _declarations as d
from tessella._library import library

seen, forward = [], library.tessella_forward

@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(d.ForwardArgs), ctypes.POINTER(d.AttentionOptions), ctypes.c_void_p)
def recorded(args, options, stream):
    seen.append(options.contents.num_threads)
    return forward(args, options, stream)

library.tessella_forward = recorded
import torch, tessella.torch

q = torch.ones(1, 3, 2, 16)
for number in (1, 2):
    torch.set_num_threads(number)
    tessella.torch.attention(q, q, q)
    tessella.torch.attention(q, q, q, num_threads=3)
    tessella.torch.attention(q, q, q, num_threads=0)
print(seen)
"""


def test_threads_are_torchs():
    """In a process of its own, whose library writes down what it is given, before the operators take its functions."""
    ran = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True)
    assert ran.stdout == "[1, 3, 0, 2, 3, 0]\n", ran.stderr


def test_workspace_comes_from_torchs_allocator(monkeypatch):
    """C's two callbacks, over an allocator that only writes down what it was asked; torch_cuda_test has a real one."""
    from tessella.torch import _tensor

    asked = []

    class Cuda:
        @staticmethod
        def caching_allocator_alloc(*asked_for):
            asked.append(asked_for)
            if asked_for[0] > 1000:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
            return 4096

        caching_allocator_delete = asked.append

    monkeypatch.setattr(_tensor, "_cuda", Cuda)
    allocator = _tensor.allocator(3)
    assert allocator.alloc(100, 64, 7, allocator.user) == 4096 and allocator.alloc(100, 64, None, None) == 4096
    assert allocator.alloc(2000, 64, None, None) is None  # which C reports as out of memory
    allocator.free(4096, 100, 7, allocator.user)
    assert asked == [(100, 3, 7), (100, 0, 0), (2000, 0, 0), 4096]
    options = _tensor.options_of_c(3, 0, window_right=0).struct
    assert options.allocator.contents.user == 3 and options.num_threads == 0


def test_dropout_draws_from_the_generator(qkv):
    def dropped(**options):
        return tessella.torch.attention(*qkv, dropout=0.5, **options)

    torch.manual_seed(5)
    first, second = dropped(), dropped()
    assert not (first == second).all()
    torch.manual_seed(5)
    assert (dropped() == first).all() and (dropped() == second).all()
    assert (dropped(seed=3) == dropped(seed=3)).all() and (dropped(seed=3, offset=1) != dropped(seed=3)).any()
    state = torch.get_rng_state()
    dropped(seed=3), tessella.torch.attention(*qkv)
    assert (torch.get_rng_state() == state).all()
    compiled = torch.compile(dropped, fullgraph=True)
    assert not (compiled() == compiled()).all()


def test_dropout_of_a_known_seed_tensor(qkv):
    seed = torch.tensor([9], device=qkv[0].device)
    in_memory = tessella.torch.attention(*qkv, dropout=0.25, seed=seed)
    assert (in_memory == tessella.torch.attention(*qkv, dropout=0.25, seed=9)).all()


WRONG = [
    ({"bias": np.ones(13, np.float32)}, tessella.InvalidArgument, "bias is ndarray, expected a torch.Tensor"),
    (
        {"mask": tessella.dense(np.ones(13, bool))},
        tessella.InvalidArgument,
        "dense_mask is ndarray, expected a torch.Tensor",
    ),
    ({"k": [1.0]}, tessella.InvalidArgument, "k is list, expected a torch.Tensor"),
    ({"out": np.ones(3)}, tessella.InvalidArgument, "out is ndarray, expected a torch.Tensor"),
    (
        {"lse": torch._neg_view(torch.ones(2, 4, 13)), "return_lse": True},
        tessella.InvalidArgument,
        "lse has the negative bit, expected memory that holds its own numbers",
    ),
    ({"layout": "sbhd"}, tessella.InvalidArgument, "layout is 'sbhd', expected 'bshd' or 'bhsd'"),
    ({"sead": 3}, TypeError, "'sead' is no option, expected 'seed' or another of mask, scale, "),
    ({"return_lse": "no"}, TypeError, "return_lse is 'no', expected True or False"),
    ({"scale": math.nan}, tessella.InvalidArgument, "scale is nan, expected a number"),
    ({"dropout": 1.5}, tessella.InvalidArgument, "dropout is 1.5, expected a probability in [0, 1)"),
    ({"dropout": torch.ones(2)}, TypeError, "dropout is tensor([1., 1.]), expected a number"),
    ({"scale": torch.tensor(2.0, requires_grad=True)}, TypeError, "scale is tensor(2., requires_grad=True), expected "),
    (
        {"out": torch.ones(2, 13, 4, 16), "lse": torch.ones(2, 4, 13, device="meta")},
        tessella.InvalidArgument,
        "lse is on meta, expected cpu = the device of q",
    ),
    ({"kernel": "a\0"}, tessella.InvalidArgument, "kernel has a zero byte, where C would cut it off"),
    (
        {"k": torch.ones(1, dtype=torch.complex64)},
        tessella.Unsupported,
        "k.dtype is torch.complex64, expected that of q, or ",
    ),
    ({"k": torch.ones((1,) * 9)}, tessella.InvalidArgument, "k has 9 axes, expected at most 8"),
    (
        {"score_mod": "return score;", "mod_args": [torch.eye(13).to_sparse()]},
        tessella.InvalidArgument,
        "mod_args[0] cannot be viewed: ",
    ),
    (
        {"k": torch.ones(2, 13, 4, 16, device="meta")},
        tessella.InvalidArgument,
        "k is on meta, expected cpu = the device of q",
    ),
    (
        {"q": torch.ones(2, 13, 4, 16, device="meta")},
        tessella.InvalidArgument,
        "q is on meta, expected cpu = the device of k",
    ),
    (
        {"seqlens_kv": torch.ones(2, dtype=torch.int32, device="meta")},
        tessella.InvalidArgument,
        "seqlens_kv is on meta, expected cpu = the device of q",
    ),
    (
        {"score_mod": "return score;", "mod_args": [torch.ones(3), torch.ones(3, device="meta")]},
        tessella.InvalidArgument,
        "mod_args[1] is on meta, expected cpu = the device of q",
    ),
]


@pytest.mark.parametrize(("changed", "error", "message"), WRONG, ids=range(len(WRONG)))
def test_errors(changed, error, message):
    q = torch.ones(2, 13, 4, 16)
    with pytest.raises(error, match=f"^forward: {re.escape(message)}"):
        tessella.torch.attention(**{"q": q, "k": q, "v": q, **changed})


def test_kernels_by_name(qkv):
    expected = tessella.torch.attention(*qkv)
    reasons = {name: tessella.refusals(*qkv, kernel=name)[name] for name in tessella.refusals(*qkv)}
    assert any(reason == "" for reason in reasons.values())
    for name, reason in reasons.items():
        if reason == "":
            assert close([tessella.torch.attention(*qkv, kernel=name)], [expected])
        else:
            with pytest.raises(tessella.Unsupported):
                pytest.fail(f"{name}: {reason}; it returned {tessella.torch.attention(*qkv, kernel=name)}")


def test_what_a_handler_raises_ends_a_call(ended_by_a_handler):
    rows = torch.zeros(1, 16384, 1, 64).expand(-1, -1, 64, -1)
    for _ in range(2):
        ended_by_a_handler(lambda: tessella.torch.attention(rows, rows, rows))
    few = rows[:, :8]
    assert (tessella.torch.attention(few, few, few) == 0).all()
    with pytest.raises(TypeError, match=r"^forward: cancel is no option of the operator, expected it in tessella\."):
        tessella.torch.attention(few, few, few, cancel=tessella.Cancel())


def test_layouts_that_are_no_arrays_are_named(qkv):
    """Every operator, and where a gradient would be wanted; torch itself would find no kernel."""
    q, k, v = qkv
    two = [q[0], q[1]]
    jagged, packed = (torch.nested.nested_tensor(two, layout=layout) for layout in (torch.jagged, torch.strided))
    lse = torch.zeros(2, 4, 9, device=q.device)
    lengths = torch.tensor([9, 9], dtype=torch.int32, device=q.device)
    rows = "expected packed rows beside cu_seqlens: values() and offsets().int() of a jagged one"
    for tensor, problem in (
        (jagged, f"is a nested tensor, {rows}"),
        (packed, f"is a nested tensor, {rows}"),
        (q.to_sparse(), "has layout torch.sparse_coo, expected to_dense() of it"),
    ):
        for call, name in (
            (lambda tensor=tensor: tessella.torch.attention(tensor, k, v), "forward: q"),
            (lambda tensor=tensor: tessella.torch.attention(q, k, tensor), "forward: v"),
            (lambda tensor=tensor: tessella.torch.attention(q, k, v, return_lse=True, bias=tensor), "forward: bias"),
            (lambda tensor=tensor: tessella.torch.attention(q.clone().requires_grad_(), tensor, v), "forward: k"),
            (lambda tensor=tensor: tessella.torch.attention(q, tensor, v, out=torch.empty_like(q)), "forward: k"),
            (lambda tensor=tensor: tessella.torch.merge([(q, lse), (tensor, lse)]), "merge: outs[1]"),
            (lambda tensor=tensor: tessella.torch.linear(q, q[0, 0], residual=tensor), "linear: residual"),
            (lambda tensor=tensor: tessella.torch.append(q, q, tensor, tensor, lengths), "append: k"),
            (lambda tensor=tensor: tessella.torch.copy_pages([tensor], lengths[None]), "copy_pages: pools[0]"),
        ):
            with pytest.raises(tessella.Unsupported, match=f"^{re.escape(f'{name} {problem}')}$"):
                call()
