"""mask_map: a mask that carries its map, for layers of any head dim and their gradients."""

import numpy as np
import pytest
import tessella
from tessella import ranges

BATCH, HEADS, SEQLEN = 2, 4, 300
TREE = [SEQLEN - 170, 100, 70]  # tokens of a prompt and two answers


def operands(head_dim=16):
    return [np.zeros((BATCH, SEQLEN, HEADS, head_dim), np.float32) for _ in "qkv"]


def test_on_a_cpu_there_is_nothing_to_make():
    mask = tessella.dense(np.ones((SEQLEN, SEQLEN), bool))
    assert tessella.mask_map(*operands(), mask) is mask


def test_tensors_of_a_training_step_require_grad():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(array).requires_grad_() for array in operands())
    bias = torch.zeros(SEQLEN, SEQLEN, requires_grad=True)
    mask = tessella.dense(torch.ones(SEQLEN, SEQLEN, dtype=torch.bool))
    assert tessella.mask_map(q, k, v, mask, bias=bias) is mask


PREFIX = np.zeros(BATCH, np.int32)


@pytest.mark.parametrize("mask", ["causal", tessella.window(3, 0), tessella.prefix(PREFIX)], ids=repr)
def test_other_masks_need_none(mask):
    given = tessella.mask_map(*operands(), mask)
    assert given is mask or mask == "causal"
    assert not given.arrays.get("mask_map")


def test_a_cpu_checks_the_call_too():
    with pytest.raises(tessella.InvalidArgument, match="dense_mask"):
        tessella.mask_map(*operands(), tessella.dense(np.ones((3, 64), bool)))
    with pytest.raises(TypeError, match="foo"):
        tessella.mask_map(*operands(), "causal", foo=3)


def test_a_map_has_the_lengths_it_was_made_with():
    mask = mapped()
    with pytest.raises(tessella.InvalidArgument, match="seqlens_kv is given, and the mask's map was made without it"):
        tessella.attention(*operands(), mask=mask, seqlens_kv=np.full(BATCH, 3, np.int32))
    mask.made_with = ("leftpad_kv",)
    with pytest.raises(tessella.InvalidArgument, match="leftpad_kv is absent, and the mask's map was made with it"):
        tessella.attention(*operands(), mask=mask)


def mapped():
    """As mask_map makes it on a GPU."""
    mask = tessella.dense(np.ones((SEQLEN, SEQLEN), bool))
    mask.arrays["mask_map"] = np.zeros(1, np.int32)
    return mask


def test_a_map_is_of_one_mask():
    with pytest.raises(tessella.InvalidArgument, match="^Mask: a mask that has a map is joined, expected mask_map"):
        mapped() & tessella.causal()
    with pytest.raises(tessella.InvalidArgument, match="^Mask: a mask that has a map is joined, expected mask_map"):
        tessella.causal() & mapped()
    with pytest.raises(tessella.InvalidArgument, match="^mask_map: mask has a map, expected one without"):
        tessella.mask_map(*operands(), mapped())
    with pytest.raises(tessella.InvalidArgument, match="mask_map is given beside a mask that has a map"):
        tessella.attention(*operands(), mask=mapped(), mask_map=np.zeros(1, np.int32))


torch = pytest.importorskip("torch")
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")


def on_cuda(head_dim, heads=HEADS, dtype=torch.bfloat16):
    torch.manual_seed(head_dim)
    shape = (BATCH, SEQLEN, heads, head_dim)
    return [torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for _ in "qkv"]


def masks():
    torch.manual_seed(1)
    padding = torch.arange(SEQLEN, device="cuda") < torch.tensor([[120], [SEQLEN]], device="cuda")
    ids = (torch.arange(SEQLEN, device="cuda", dtype=torch.int32) // 70).expand(BATCH, SEQLEN).contiguous()
    blocks = torch.rand(5, 5, device="cuda") < 0.5
    noise = torch.rand(BATCH, 1, SEQLEN, SEQLEN, device="cuda") < 0.9
    return {
        "padding": tessella.dense(padding[:, None, None].expand(BATCH, 1, SEQLEN, SEQLEN)) & tessella.causal(),
        "documents": tessella.document(ids, ids),
        "blocks": tessella.block_map(blocks, 64, 64) & tessella.keep_first(1),
        "noise": tessella.dense(noise),
        "a tree": tessella.query_ranges(torch.from_numpy(ranges.prefix_tree(TREE, [-1, 0, 0])).cuda()),
    }


@on_gpu
@pytest.mark.parametrize("name", ["padding", "documents", "blocks", "noise", "a tree"])
def test_one_map_serves_every_layer_and_its_gradients(name):
    """Of other head dims, heads and dtypes, and so of other kernels and tiles."""
    import tessella.torch

    mask = masks()[name]
    layers = [on_cuda(64), on_cuda(128, 8), on_cuda(192), on_cuda(36), on_cuda(64, dtype=torch.float32)]
    map_of_mask = tessella.mask_map(*layers[0], mask)
    for layer in layers:
        results = []
        for given in (mask, map_of_mask):
            out = tessella.torch.attention(*layer, mask=given)
            weights = torch.linspace(-1, 1, out.numel(), device="cuda").reshape(out.shape).to(out.dtype)
            results.append((out, *torch.autograd.grad(out, layer, weights)))
        for got, wanted in zip(*results):
            assert (got == wanted).all()


@on_gpu
def test_a_map_belongs_to_its_sizes():
    import tessella.torch

    mask = tessella.mask_map(*on_cuda(64), masks()["documents"])
    with torch.no_grad(), pytest.raises(tessella.InvalidArgument, match="forward: mask_map has"):
        longer = [torch.zeros(BATCH, 4 * SEQLEN, HEADS, 64, device="cuda", dtype=torch.bfloat16) for _ in "qkv"]
        ids = torch.zeros(BATCH, 4 * SEQLEN, device="cuda", dtype=torch.int32)
        tessella.torch.attention(*longer, mask=tessella.document(ids, ids), mask_map=mask.arrays["mask_map"])
