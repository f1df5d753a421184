"""attn_implementation="tessella": models of transformers give what they give with "eager", and masks are not dense."""

import copy
import pickle
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")
pytestmark = pytest.mark.filterwarnings("ignore")

import tessella.torch  # noqa: E402
import tessella.transformers  # noqa: E402
from tessella.transformers import _pattern  # noqa: E402
from tessella.transformers._mask import MaskTensor, attention_mask  # noqa: E402
from transformers import masking_utils as masks  # noqa: E402

NAME = tessella.transformers.register()
SHAPE = {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = {**SHAPE, "num_key_value_heads": 2, "intermediate_size": 96, "head_dim": 16, "pad_token_id": 0}
LAYERS = ["sliding_attention", "full_attention"]


def needs_5_24():
    """Skips what older versions cannot do with any attention, or do otherwise."""
    if tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 24):
        pytest.skip(f"transformers is {transformers.__version__}, expected 5.24")


@pytest.fixture(autouse=True)
def version(record_property):
    """What the report of a test names."""
    record_property("transformers", transformers.__version__)
    record_property("torch", str(torch.__version__))
    torch.manual_seed(3)


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=97, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, pad_token_id=0
    )
    config.bos_token_id = config.eos_token_id = None
    return transformers.GPT2LMHeadModel(config)


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED, eos_token_id=None, bos_token_id=1))


def gemma2():
    """Softcap, and a window of 5 in the first layer."""
    config = transformers.Gemma2Config(
        **GROUPED, sliding_window=5, layer_types=LAYERS, attn_logit_softcapping=2.0, query_pre_attn_scalar=16
    )
    config.eos_token_id = None
    return transformers.Gemma2ForCausalLM(config)


def gemma3():
    config = transformers.Gemma3TextConfig(**GROUPED, sliding_window=5, layer_types=LAYERS, query_pre_attn_scalar=16)
    config.eos_token_id = None
    return transformers.Gemma3ForCausalLM(config)


def gpt_oss():
    """Sinks, and a window of 5 in the first layer."""
    config = transformers.GptOssConfig(
        **GROUPED, sliding_window=5, layer_types=LAYERS, num_local_experts=2, num_experts_per_tok=1
    )
    config.eos_token_id = None
    model = transformers.GptOssForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(parameter)
    return model


def llama4():
    """Chunks of 5 in the first layer."""
    config = transformers.Llama4TextConfig(
        **GROUPED, intermediate_size_mlp=96, num_local_experts=2, attention_chunk_size=5, interleave_moe_layer_step=3
    )
    config.layer_types = ["chunked_attention", "full_attention"]
    config.eos_token_id = None
    return transformers.Llama4ForCausalLM(config)


def bert():
    config = transformers.BertConfig(
        **SHAPE, intermediate_size=96, hidden_dropout_prob=0, attention_probs_dropout_prob=0
    )
    return transformers.BertForMaskedLM(config)


def modern_bert():
    """A window of 3 on both sides in the first layer."""
    config = transformers.ModernBertConfig(
        **SHAPE, intermediate_size=96, local_attention=6, layer_types=LAYERS, pad_token_id=0
    )
    return transformers.ModernBertForMaskedLM(config)


DECODERS = [gpt2, llama, gemma2, gemma3, gpt_oss, llama4]
MODELS = [*DECODERS, bert, modern_bert]
LENGTH = 13


def tokens(device="cpu", batch=2):
    return torch.randint(3, 97, (batch, LENGTH), device=device)


def labels_of(x, mask):
    """Real tokens behind real tokens: what a query of padding sees is not said."""
    before = torch.nn.functional.pad(mask[:, :-1], (1, 0))
    return x.masked_fill(mask * before == 0, -100)


def of_both(model, run):
    """What `run` gives with "eager" and with ours, and the masks that our attention was given."""
    model.set_attn_implementation("eager")
    expected = run()
    model.set_attn_implementation(NAME)
    return run(), expected


@pytest.fixture
def seen(monkeypatch):
    """The masks that are made: their options, None for no mask, "dense" for a dense one."""
    made = []
    mapping = masks.AttentionMaskInterface._global_mapping

    def noted(*args, **kwargs):
        mask = attention_mask(*args, **kwargs)
        options = mask if mask is None else dict(mask._options) if isinstance(mask, MaskTensor) else "dense"
        made.append(options)
        return mask

    monkeypatch.setitem(mapping, NAME, noted)
    return made


PADDINGS = {
    "none": None,
    "left": [[0] * 4 + [1] * (LENGTH - 4), [1] * LENGTH],
    "right": [[1] * (LENGTH - 4) + [0] * 4, [1] * LENGTH],
}


def padded(padding, device="cpu"):
    """What models take as attention_mask."""
    given = PADDINGS[padding]
    return None if given is None else torch.tensor(given, device=device)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_logits(make, padding, seen, device):
    model, mask, x = make().eval().to(device), padded(padding, device), tokens(device)
    with torch.no_grad():
        got, expected = of_both(model, lambda: model(x, attention_mask=mask).logits)
    real = torch.ones_like(x) if mask is None else mask
    assert (got - expected)[real.bool()].abs().max() < 2e-5
    assert seen and "dense" not in seen


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_bfloat16(make, device):
    model, x = make().eval().bfloat16().to(device), tokens(device)
    with torch.no_grad():
        got, expected = of_both(model, lambda: model(x).logits.float())
    assert (got - expected).abs().max() < 0.05


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_loss_and_gradients(make, padding, device):
    model, mask, x = make().train().to(device), padded(padding, device), tokens(device)
    labels = x if mask is None else labels_of(x, mask)

    def step():
        model.zero_grad()
        loss = model(x, attention_mask=mask, labels=labels).loss
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    for got, expected in zip(*of_both(model, step), strict=True):
        assert (got - expected).abs().max() < 1e-5 + 2e-5 * expected.abs().max()


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("make", DECODERS, ids=lambda make: make.__name__)
def test_generate(make, padding, cache, seen, device):
    if make is llama4 and cache == "static":
        needs_5_24()
    model, mask, x = make().eval().to(device), padded(padding, device), tokens(device)
    mask = torch.ones_like(x) if mask is None else mask
    more = {"max_new_tokens": 9, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    more["disable_compile"] = True  # on a GPU generate() compiles steps of a static cache

    def generated():
        out = model.generate(x, attention_mask=mask, cache_implementation=cache, **more)
        return out.sequences, torch.stack(out.logits)

    got, expected = of_both(model, generated)
    assert (got[0] == expected[0]).all() and (got[1] - expected[1]).abs().max() < 2e-5
    assert (device, cache) == ("cuda", "static") or "dense" not in seen


@pytest.mark.parametrize("make", [llama, gemma3, llama4], ids=lambda make: make.__name__)
def test_packed_sequences(make, seen, device):
    """Documents in a row, by positions that start again: each gives what it gives alone."""
    if make is llama4:
        needs_5_24()
    model, x = make().eval().to(device), tokens(device)
    lengths = [6, 1, LENGTH - 7]
    positions = torch.cat([torch.arange(length, device=device) for length in lengths])[None]
    with torch.no_grad():
        got, expected = of_both(model, lambda: model(x, position_ids=positions, use_cache=False).logits)
        alone = torch.cat([model(part, use_cache=False).logits for part in x.split(lengths, 1)], 1)
    assert (got - expected).abs().max() < 2e-5 and (got - alone).abs().max() < 2e-5
    assert all("cu_seqlens_q" in options or "key_ranges" in options["mask"].arrays for options in seen[:2] if options)
    assert "dense" not in seen


def test_packed_sequences_in_training(device):
    model, x = gemma3().train().to(device), tokens(device)
    positions = torch.tensor([[*range(5), *range(LENGTH - 5)]], device=device)

    def step():
        model.zero_grad()
        model(x, position_ids=positions, labels=x, use_cache=False).loss.backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    for got, expected in zip(*of_both(model, step), strict=True):
        assert (got - expected).abs().max() < 1e-5 + 2e-5 * expected.abs().max()


@pytest.mark.parametrize("padding", ["none", "left"])
def test_images_of_gemma3(padding, seen, device):
    """Tokens of an image see each other, in layers with a window and without."""
    needs_5_24()
    model, x = gemma3().eval().to(device), tokens(device)
    is_image = torch.zeros_like(x)
    is_image[:, 5:8] = is_image[:, 9:12] = 1
    blocks = transformers.models.gemma3.modeling_gemma3.get_block_sequence_ids_for_mask(is_image)
    mask = padded(padding, device)

    def run():
        embeds = model.get_input_embeddings()(x)
        arguments = {"inputs_embeds": embeds, "attention_mask": mask, "cache": None, "position_ids": None}
        made = transformers.models.gemma3.modeling_gemma3.create_masks_for_generate(
            model.config, **arguments, block_sequence_ids=blocks
        )
        return model(inputs_embeds=embeds, attention_mask=made, use_cache=False).logits

    with torch.no_grad():
        got, expected = of_both(model, run)
        causal = model(x, attention_mask=mask, use_cache=False).logits
    real = torch.ones_like(x).bool() if mask is None else mask.bool()
    assert (got - expected)[real].abs().max() < 2e-5 and (got - causal)[real].abs().max() > 1e-3
    assert all("key_ranges" in options["mask"].arrays for options in seen[:2])


def test_continued_prompts(device):
    """A prompt in two parts: the second has keys before it."""
    for make in (llama, gemma3, gpt_oss):
        model, x = make().eval().to(device), tokens(device)

        def run(model=model, x=x):
            first = model(x[:, :7], use_cache=True)
            return model(x[:, 7:], past_key_values=first.past_key_values).logits

        with torch.no_grad():
            got, expected = of_both(model, run)
        assert (got - expected).abs().max() < 2e-5


FUNCTIONS = {
    "causal": lambda batch, keys: masks.causal_mask_function,
    "bidirectional": lambda batch, keys: masks.bidirectional_mask_function,
    "window": lambda batch, keys: masks.sliding_window_causal_mask_function(4),
    "window of both sides": lambda batch, keys: masks.sliding_window_bidirectional_mask_function(3),
    "spans": lambda batch, keys: masks.or_masks(
        masks.causal_mask_function, masks.blockwise_overlay(spans(batch, keys))
    ),
    "spans and a window": lambda batch, keys: masks.or_masks(
        masks.sliding_window_causal_mask_function(3), masks.blockwise_overlay(spans(batch, keys))
    ),
}


def spans(batch, keys):
    ids = torch.full((batch, keys), -1)
    ids[:, 2:6], ids[0, 7:9], ids[1, 8:12] = 0, 1, 1
    return ids


def chunked(padding):
    start = torch.zeros(2, dtype=torch.int64) if padding is None else (padding.cumsum(1) == 0).sum(1)
    return lambda batch, keys: masks.chunked_causal_mask_function(4, start)


SIZES = {  # seqlen_q, seqlen_kv, q_offset, kv_offset
    "prompt": (16, 16, 0, 0),
    "second part": (5, 16, 11, 0),
    "step": (1, 16, 15, 0),
    "empty static cache": (9, 16, 0, 0),
    "static cache": (5, 16, 4, 0),
    "cache of a window": (4, 12, 12, 4),
    "part of a cache of a window": (4, 14, 12, 4),
}
REAL = {"none": None, "left": [3, 16, 0, 16], "right": [0, 12, 0, 16], "both": [2, 12, 0, 15], "short": [0, 14, 0, 14]}


@pytest.mark.parametrize("padding", REAL)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("function", [*FUNCTIONS, "chunks"])
def test_masks(function, sizes, padding):
    """Options of attention say what transformers' dense mask does, also for queries that are padding."""
    seqlen_q, seqlen_kv, q_offset, kv_offset = SIZES[sizes]
    real = None
    if REAL[padding] is not None:
        at, (a, b, c, d) = torch.arange(16), REAL[padding]
        real = torch.stack([(at >= a) & (at < b), (at >= c) & (at < d)])[:, : 14 if padding == "short" else 16]
    make = chunked(real) if function == "chunks" else FUNCTIONS[function]
    call = {"batch_size": 2, "q_length": seqlen_q, "kv_length": seqlen_kv, "q_offset": q_offset, "kv_offset": kv_offset}
    call |= {"mask_function": make(2, kv_offset + seqlen_kv), "attention_mask": real}
    made = attention_mask(**call, allow_is_causal_skip=False)
    assert isinstance(made, MaskTensor)
    expected = masks.sdpa_mask(**call, allow_is_causal_skip=False)
    assert made.shape == expected.shape and (made & True == expected).all()
    q, k, v = (torch.randn(2, length, 2, 8) for length in (seqlen_q, seqlen_kv, seqlen_kv))
    by_options = tessella.torch.attention(q, k, v, **made.options())
    by_dense = tessella.torch.attention(q, k, v, mask=tessella.dense(expected))
    assert (by_options - by_dense).abs().max() < 1e-5, made


def test_all_parts_are_known():
    """Those of the installed transformers, else masks would be dense without a word."""
    needs_5_24()
    assert len(_pattern._NAMED) == 2 and len(_pattern._CLOSURES) == 8


UNKNOWN = {
    "a function of one's own": lambda b, h, q, k: (k <= q) & (k % 3 != 1),
    "a join with one": masks.and_masks(masks.causal_mask_function, lambda b, h, q, k: k != 2),
    "spans and a window beside": masks.and_masks(
        masks.or_masks(masks.causal_mask_function, masks.blockwise_overlay(torch.tensor([[0] * 8, [1] * 8]))),
        masks.sliding_window_overlay(3),
    ),
    "spans with a gap": masks.or_masks(
        masks.causal_mask_function, masks.blockwise_overlay(torch.tensor([[0, 0, -1, 0, 0, 1, 1, 1]] * 2))
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_other_masks_are_dense(name):
    call = {"batch_size": 2, "q_length": 8, "kv_length": 8, "mask_function": UNKNOWN[name]}
    made = attention_mask(**call)
    assert type(made) is torch.Tensor and (made == masks.sdpa_mask(**call, allow_is_causal_skip=False)).all()


def test_padding_with_a_hole_is_dense():
    model, x = llama().eval(), tokens()
    mask = torch.ones_like(x).index_fill(1, torch.tensor([4, 5]), 0)
    with torch.no_grad():
        got, expected = of_both(model, lambda: model(x, attention_mask=mask).logits)
    assert (got - expected)[mask.bool()].abs().max() < 2e-5


def test_a_mask_that_a_model_writes_is_dense():
    made = attention_mask(2, 5, 5, attention_mask=torch.tensor([[False] * 2 + [True] * 3, [True] * 5]))
    assert "leftpad_kv" in made.options()
    made.logical_and_(torch.eye(5).bool())
    assert "leftpad_kv" not in made.options() and (made.dense().sum(-1)[1] == 1).all()


def padded_mask():
    return attention_mask(2, 5, 5, attention_mask=torch.tensor([[False] * 2 + [True] * 3, [True] * 5]))


def test_a_mask_that_is_written_through_a_slice_is_dense():
    made = padded_mask()
    made[..., :3] = True
    assert "leftpad_kv" not in made.options()
    assert made.dense()[..., :3].all()


def test_a_mask_leaves_torch_as_the_tensor_that_it_stands_for():
    made = padded_mask()
    dense = made.dense()
    for leave in (
        copy.deepcopy,
        lambda mask: pickle.loads(pickle.dumps(mask)),
        torch.from_dlpack,
        MaskTensor.share_memory_,
    ):
        left = leave(made)
        assert type(left) is torch.Tensor
        assert torch.equal(left.bool(), dense)
    assert made.tolist() == dense.tolist()
    assert (made.numpy() == dense.numpy()).all()
    assert (np.asarray(made) == dense.numpy()).all()


def test_sinks_of_queries_are_refused():
    attend = transformers.AttentionInterface()[NAME]
    q = torch.randn(1, 2, 4, 8)
    with pytest.raises(tessella.Unsupported, match="sinks is given"):
        attend(torch.nn.Module(), q, q, q, None, sinks=torch.zeros(1, 2, 4))


def test_masks_of_users():
    """4-D masks, bool or added, go to attention as they are."""
    model, x = llama().eval(), tokens()
    visible = torch.rand(2, 1, LENGTH, LENGTH).round().bool() | torch.eye(LENGTH).bool()
    added = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
    with torch.no_grad():
        model.set_attn_implementation("eager")
        expected = model(x, attention_mask=added).logits
        model.set_attn_implementation(NAME)
        for mask in (visible, added):
            assert (model(x, attention_mask=mask).logits - expected).abs().max() < 2e-5


def test_position_bias(device):
    config = transformers.T5Config(vocab_size=97, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4)
    config.dropout_rate = 0
    model, x = transformers.T5ForConditionalGeneration(config).eval().to(device), tokens(device)
    mask = padded("right", device)
    with torch.no_grad():
        got, expected = of_both(model, lambda: model(x, attention_mask=mask, decoder_input_ids=x).logits)
    assert (got - expected).abs().max() < 2e-5


def test_dropout_in_training(device):
    config = transformers.LlamaConfig(**GROUPED, attention_dropout=0.5, attn_implementation=NAME)
    model, x = transformers.LlamaForCausalLM(config).to(device), tokens(device)
    first, second = (model.train()(x).logits for _ in range(2))
    assert (first != second).any() and first.isfinite().all()
    assert (model.eval()(x).logits == model(x).logits).all()


def test_autocast(device):
    model, x = llama().eval().to(device), tokens(device)

    def run():
        with torch.autocast(device, torch.bfloat16), torch.no_grad():
            return model(x).logits.float()

    got, expected = of_both(model, run)
    assert (got - expected).abs().max() < 0.05


def test_gradient_checkpointing(device):
    model, x = gemma3().train().to(device), tokens(device)
    model.set_attn_implementation(NAME)
    mask = padded("left", device)
    gradients = []
    for is_reentrant in (None, False, True):
        model.zero_grad()
        if is_reentrant is not None:
            model.gradient_checkpointing_enable({"use_reentrant": is_reentrant})
        model(x, attention_mask=mask, labels=labels_of(x, mask)).loss.backward()
        gradients.append(model.lm_head.weight.grad.clone())
    assert torch.allclose(gradients[0], gradients[1], atol=1e-6)
    assert torch.allclose(gradients[0], gradients[2], atol=1e-6)


def test_compiled(device):
    model, x = llama().eval().to(device), tokens(device)
    mask = padded("left", device)
    model.set_attn_implementation(NAME)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        for given in (None, mask):
            real = torch.ones_like(x).bool() if given is None else given.bool()
            got = compiled(x, attention_mask=given, use_cache=False).logits
            assert (got - model(x, attention_mask=given).logits)[real].abs().max() < 2e-5


def test_compiled_steps_of_a_static_cache(device):
    model, x = llama().eval().to(device), tokens(device)
    more = {"max_new_tokens": 5, "do_sample": False, "cache_implementation": "static", "attention_mask": x != 0}
    config = transformers.CompileConfig(backend="aot_eager", fullgraph=True, mode=None)
    config._compile_all_devices = True
    got, expected = of_both(model, lambda: model.generate(x, **more, compile_config=config))
    assert (got == expected).all()


def test_the_mask_of_a_step_stays_where_a_static_cache_counts_on():
    length = torch.tensor(5)
    mask = attention_mask(2, 1, 9, q_offset=length, allow_is_causal_skip=False)
    length += 1  # as a layer does that has its keys
    assert mask.options()["seqlens_kv"].tolist() == [6, 6]
    assert mask.dense().sum(-1).flatten().tolist() == [6, 6]


def test_output_attentions_gives_none():
    model, x = llama().eval(), tokens()
    model.set_attn_implementation(NAME)
    with torch.no_grad(), warnings.catch_warnings():
        assert not any(attentions is not None for attentions in model(x, output_attentions=True).attentions or ())


def test_one_line():
    config = transformers.LlamaConfig(**GROUPED)
    model = transformers.AutoModel.from_config(config, attn_implementation=tessella.transformers.register())
    assert model.config._attn_implementation == "tessella"


class Module(torch.nn.Module):
    is_causal = False


def test_tensors_of_other_shapes():
    """Queries of one batch, v of another head_dim, one that is not contiguous, and a mask made for other tensors."""
    q, k, v = torch.randn(1, 4, 3, 24), torch.randn(2, 2, 7, 24), torch.randn(2, 2, 16, 7).transpose(2, 3)
    run = transformers.AttentionInterface()[NAME]
    got = run(Module(), q, k, v, None, scaling=0.3)[0]
    repeated = (tensor.repeat_interleave(2, 1) for tensor in (k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(q.expand(2, -1, -1, -1), *repeated, scale=0.3)
    assert (got - expected.transpose(1, 2)).abs().max() < 1e-5
    of_one = attention_mask(1, 3, 7, attention_mask=torch.tensor([[True] * 5 + [False] * 2]))
    by_two = run(Module(), q, k, v, of_one)[0]
    assert (by_two - run(Module(), q, k, v, of_one.dense().expand(2, -1, -1, -1))[0]).abs().max() < 1e-6
    with pytest.raises(tessella.InvalidArgument):
        run(Module(), q, k, v, attention_mask(2, 3, 9, mask_function=masks.sliding_window_causal_mask_function(2)))


def test_compiled_training_with_dropout(device):
    config = transformers.LlamaConfig(**GROUPED, attention_dropout=0.5, attn_implementation=NAME)
    model, x = transformers.LlamaForCausalLM(config).train().to(device), tokens(device)
    torch.compile(model, backend="aot_eager", fullgraph=True)(x, labels=x, use_cache=False).loss.backward()
    assert model.lm_head.weight.grad.isfinite().all()
