"""The operators' kernels in C++ against those in Python: the same bits, shapes, strides and sentences."""

import pytest
import tessella

torch = pytest.importorskip("torch")

import tessella.torch  # noqa: E402
from tessella import _kernels  # noqa: E402
from tessella.torch import _native, _operator  # noqa: E402

pytestmark = pytest.mark.skipif(not _operator.is_native, reason=_kernels.torch_operators)

F32, BF16, F8 = torch.float32, torch.bfloat16, torch.float8_e4m3fn


def made(shape, dtype=F32):
    return torch.randn(shape).to(dtype)


def inputs(dtype=F32, layout="bshd"):
    shapes = ((2, 9, 4, 16), (2, 13, 2, 16), (2, 13, 2, 8))
    made_of = [made(shape, dtype) for shape in shapes]
    return [tensor.transpose(1, 2) for tensor in made_of] if layout == "bhsd" else made_of


def int32(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def calls():
    """Keywords of attention, by name; a list gives q, k and v too."""
    torch.manual_seed(2)
    pages = [made((2, 1, 4, 16)), made((6, 4, 2, 16)), made((6, 4, 2, 16))]
    page_table = torch.tensor([[0, 2], [5, 1]], dtype=torch.int32)
    bytes_of = [made((2, 3, 4, 16), BF16), *(torch.randint(0, 255, (2, 13, 2, 8), dtype=torch.uint8) for _ in "kv")]
    scales = {"k_scale": torch.ones(1, 1, 2), "v_scale": torch.ones(1, 1, 2)}
    float8 = [made((1, 5, 2, 16)).to(F8), made((1, 256, 2, 16)).to(F8), made((1, 2, 16, 256)).to(F8)]
    packed = [made((9, 4, 16)), made((13, 2, 16)), made((13, 2, 16))]
    return {
        "plain": {},
        "layout": {"layout": "bhsd", "qkv": inputs(layout="bhsd")},
        "bf16 to f32": {"qkv": inputs(BF16), "out_dtype": F32},
        "window and numbers": {"window_left": 3, "window_right": 0, "scale": 0.3, "softcap": 2.5, "keep_first": 1},
        "dropout": {"dropout": 0.3, "seed": (1 << 63) - 7, "offset": 5},
        "tensors": {"bias": made((9, 13)), "alibi_slopes": made(4).abs(), "sink": made(4), "seqlens_kv": int32(5, 13)},
        "dropout by tensors": {"dropout": 0.3, "seed_tensor": torch.tensor([3]), "offset_tensor": torch.tensor([1])},
        "mask": {"dense_mask": torch.rand(9, 13) > 0.3},
        "deterministic": {"deterministic": True, "batch_invariant": True, "query_class": 1, "num_threads": 1},
        "kernel": {"kernel_name": "reference.attention"},
        "packed": {"qkv": packed, "cu_seqlens_q": int32(0, 4, 9), "cu_seqlens_kv": int32(0, 6, 13)},
        "no batch": {"qkv": [made((9, 16)), made((13, 16)), made((13, 8))]},
        "one head": {"qkv": [made((9, 4, 16)), made((13, 2, 16)), made((13, 2, 16))], "layout": "bshd"},
        "no keys": {"qkv": [made((1, 3, 2, 8)), made((1, 0, 2, 8)), made((1, 0, 2, 8))]},
        "negative": {"qkv": [torch._neg_view(tensor) for tensor in inputs()]},
        "expanded": {"qkv": [made((2, 9, 4, 16)), made((2, 13, 1, 16)).expand(2, 13, 4, 16), made((2, 13, 4, 16))]},
        "pages": {"qkv": pages, "page_table": page_table, "seqlens_kv": int32(3, 8), "window_right": 0},
        "int4": {"qkv": bytes_of, "kv_dtype": "int4", **scales},
        "transposed v": {"qkv": float8, "v_transposed": True, "out_dtype": BF16, "seqlens_kv": int32(200)},
        # What is wrong.
        "head dims": {"qkv": [made((1, 3, 2, 8)), made((1, 3, 2, 9)), made((1, 3, 2, 8))]},
        "heads first": {"qkv": [made((1, 3, 4, 8)), made((1, 3, 3, 8)), made((1, 3, 3, 8))], "layout": "bhsd"},
        "a dtype": {"qkv": [made((1, 3, 2, 8)).to(torch.int16)] * 3},
        "a layout": {"layout": "sbhd"},
        "axes": {"qkv": [made((1,) * 9)] * 3},
        "no axes": {"qkv": [made(())] * 3},
        "bytes": {"kv_dtype": "int4"},
        "a kernel": {"kernel_name": "cpu.nothing"},
        "a number": {"num_splits": 1 << 40},
        "a window": {"window_left": -7},
    }


CALLS = calls()
OPERATORS = torch.ops.tessella


def use_count(tensor):
    """Of the tensor's own implementation, not of its storage."""
    return tensor._use_count()


def result_of(call):
    """What a call gives, or the class and the words of what it raises."""
    try:
        return call()
    except RuntimeError as error:
        return RuntimeError, str(error).split("; layout")[0]
    except tessella.Error as error:
        return type(error), str(error).split("; ")[0]


def same(got, expected):
    assert (got is None) == (expected is None)
    if got is None:
        return
    assert (got.dtype, got.shape, got.stride()) == (expected.dtype, expected.shape, expected.stride())
    view = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
    assert torch.equal(got.view(view), expected.view(view))


@pytest.mark.parametrize("name", CALLS)
def test_forward(name):
    named = dict(CALLS[name])
    qkv = named.pop("qkv", None) or inputs()
    is_cached = _operator.SCHEMAS["attention_cached"] and name in ("pages", "int4", "transposed v", "bytes")
    kernel = _operator.attention_cached_lse if is_cached else _operator.attention_lse
    operator = getattr(OPERATORS, kernel.__name__).default
    with torch.inference_mode():  # without the key of autograd: torch calls C++ itself
        got = result_of(lambda: operator(*qkv, **named))
    resolved = [tensor.resolve_neg() for tensor in qkv]
    expected = result_of(lambda: kernel(*resolved, **named))
    if not isinstance(expected[0], torch.Tensor):
        assert got[0] is RuntimeError
        # Words that Python has before the call, C++ has not: the names of dtypes and options.
        if name not in ("a dtype", "bytes", "a number"):
            assert expected[1].split(", expected")[0] in got[1]
        by_user = result_of(lambda: operator(*qkv, **named))  # with autograd's key: an exception of Tessella
        assert by_user == expected
        return
    for one, other in zip(got, expected):
        same(one, other)
    only_out = getattr(OPERATORS, kernel.__name__.removesuffix("_lse")).default(*qkv, **named)
    same(only_out, expected[0])
    out, lse = torch.empty_like(expected[0]), torch.empty_like(expected[1])
    version = out._version, lse._version
    amax = (None,) if is_cached else ()
    getattr(OPERATORS, kernel.__name__.replace("_lse", "_out")).default(out, lse, *amax, *qkv, **named)
    same(out, expected[0])
    same(lse, expected[1])
    assert out._version > version[0] and lse._version > version[1]


@pytest.mark.parametrize("sum_of", [False, True], ids=["gradient of rows", "gradient of a sum"])
@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("pages", "int4", "transposed v", "bytes")])
def test_backward(name, sum_of):
    named = {key: value for key, value in CALLS[name].items() if key not in ("qkv", "kernel_name", "query_class")}
    qkv = [tensor.resolve_neg() for tensor in CALLS[name].get("qkv") or inputs()]
    forward = result_of(lambda: _operator.attention_lse(*qkv, **named))
    if not isinstance(forward[0], torch.Tensor):
        return
    out, lse = forward
    d_out = torch.ones(()).to(out.dtype).expand(out.shape) if sum_of else torch.randn_like(out)
    gradients = 7 | (56 if name == "tensors" else 0)
    arguments = (d_out, None if sum_of else torch.randn_like(lse), out, lse, *qkv)
    with torch.inference_mode():
        got = result_of(lambda: OPERATORS.attention_backward.default(*arguments, **named, gradients=gradients))
    expected = result_of(lambda: _operator.attention_backward(*arguments, **named, gradients=gradients))
    if not isinstance(expected[0], torch.Tensor):
        assert got[0] is RuntimeError and (name == "a number" or expected[1] in got[1])
        return
    for one, other in zip(got, expected):
        same(one, other)


def test_nothing_is_kept_of_a_call_that_is_wrong():
    """What the dispatcher hands over is owned: a wrong layout stands before every tensor that is given by keyword."""
    q, k, v = inputs()
    bias = torch.zeros(9, 13)
    before = use_count(bias)
    with torch.inference_mode():
        for _ in range(5):
            with pytest.raises(RuntimeError, match="layout is 'xyz'"):
                OPERATORS.attention.default(q, k, v, bias=bias, layout="xyz")
    assert use_count(bias) == before


def test_every_argument_has_a_place():
    for kernel, (_, schema) in _operator.KERNELS.items():
        taken = schema.rpartition(" -> ")[0][1:-1]
        of_schema = getattr(OPERATORS, kernel.__name__).default._schema.arguments
        assert [argument.name.decode() for argument in _native._arguments(taken)] == [one.name for one in of_schema]


def test_no_keys_of_another_torch(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    assert _native.register({}) == "torch is 2.9.1+cpu, and its stable ABI begins with 2.10"


def test_info_says_what_runs():
    assert tessella.info().splitlines()[-1] == "torch operators: in C++"
