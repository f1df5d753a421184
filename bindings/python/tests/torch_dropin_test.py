"""tessella.dropin: functions of flash_attn and flash_attn_interface by the tolerance rule of FlashAttention's tests: an
error of at most twice that of a plain computation in the same dtype, both against float32; gradients three times.
"""

import pytest
import tessella

torch = pytest.importorskip("torch")

import tessella.dropin  # noqa: E402
import tessella.torch  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def installed():
    tessella.dropin.install()
    yield
    tessella.dropin.uninstall()


def flash():
    import flash_attn

    return flash_attn


def flash_3():
    import flash_attn_interface

    return flash_attn_interface


def visible(rows, keys, causal, window, device, seqlens_k=None, seqlens_q=None):
    """(batch or 1, 1, rows, keys)"""
    row = torch.arange(rows, device=device)[None, :, None]
    key = torch.arange(keys, device=device)[None, None]
    lengths_k = torch.tensor([keys], device=device) if seqlens_k is None else seqlens_k
    lengths_q = torch.tensor([rows], device=device) if seqlens_q is None else seqlens_q
    at = row + (lengths_k - lengths_q)[:, None, None]
    left, right = window[0], 0 if causal else window[1]
    shown = key < lengths_k[:, None, None]
    shown = shown & (row < lengths_q[:, None, None])
    if left >= 0:
        shown = shown & (key >= at - left)
    if right >= 0:
        shown = shown & (key <= at + right)
    return shown[:, None]


def reference(q, k, v, shown, upcast=True, softcap=0.0, slopes=None, at=None, kept=None, p=0.0, scale=None, chunk=0):
    """out and lse, written out; not upcast: in the inputs' dtype with softmax in float32."""
    dtype = q.dtype
    if upcast:
        q, k, v = q.float(), k.float(), v.float()
    k, v = (t.repeat_interleave(q.shape[2] // t.shape[2], 2) for t in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q * (q.shape[-1] ** -0.5 if scale is None else scale), k).float()
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if slopes is not None:
        slopes = slopes if slopes.dim() == 2 else slopes[None]
        key = torch.arange(k.shape[1], device=q.device)
        row = torch.arange(q.shape[1], device=q.device) + k.shape[1] - q.shape[1]
        scores = scores - slopes[..., None, None] * (row[:, None] - key).abs()
    scores = scores.masked_fill(~shown, -torch.inf)
    weights = torch.softmax(scores, -1).masked_fill(~shown.any(-1, keepdim=True), 0.0)
    lse = torch.logsumexp(scores, -1).masked_fill(~shown.any(-1), torch.inf)
    if kept is not None:
        weights = weights.masked_fill(~kept, 0.0) / (1 - p)
    return torch.einsum("bhqk,bkhd->bqhd", weights.to(v.dtype), v).to(dtype), lse


def close(got, exact, plain, factor=2):
    error, allowed = (one.float() - exact.float() for one in (got, plain))
    assert not got.isnan().any()
    one_step = torch.finfo(exact.dtype).eps * exact.abs().max()  # to either side of a tie
    assert error.abs().max() <= factor * allowed.abs().max() + 1e-5 + one_step


def inputs(device, rows, keys, dim=32, heads=4, heads_k=2, dtype=torch.bfloat16, batch=2):
    torch.manual_seed(rows + keys)
    shapes = ((batch, rows, heads, dim), (batch, keys, heads_k, dim), (batch, keys, heads_k, dim))
    return [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for shape in shapes]


def compare(call, qkv, ours_to_reference, factor=3):
    """Values and gradients of call() beside the reference's, upcast and plain."""
    out = call(*qkv)
    exact, _ = ours_to_reference(True)
    plain, _ = ours_to_reference(False)
    close(out, exact, plain)
    weights = torch.randn_like(out)
    gradients = [torch.autograd.grad(one, qkv, weights) for one in (out, exact, plain)]
    for got, of_exact, of_plain in zip(*gradients):
        close(got, of_exact, of_plain, factor)


LENGTHS = [(1, 1), (3, 17), (64, 64), (33, 130), (128, 65), (108, 256)]
RULES = [(False, (-1, -1)), (True, (-1, -1)), (False, (7, 3)), (True, (20, -1))]


@pytest.mark.parametrize("causal, window", RULES)
@pytest.mark.parametrize("rows, keys", LENGTHS)
@pytest.mark.parametrize("dim", [32, 59, 128])
def test_func(rows, keys, causal, window, dim, device):
    qkv = inputs(device, rows, keys, dim)
    shown = visible(rows, keys, causal, window, device)
    for module in (flash(), flash_3()):
        compare(
            lambda q, k, v, module=module: module.flash_attn_func(q, k, v, causal=causal, window_size=window),
            qkv,
            lambda upcast: reference(*qkv, shown, upcast),
        )


@pytest.mark.parametrize("causal, window", RULES)
@pytest.mark.parametrize("rows, keys", LENGTHS[2:5])
def test_softcap_and_alibi(rows, keys, causal, window, device):
    qkv = inputs(device, rows, keys)
    shown = visible(rows, keys, causal, window, device)
    for slopes in (torch.rand(4, device=device) * 0.3, torch.rand(2, 4, device=device) * 0.3):
        compare(
            lambda q, k, v, slopes=slopes: flash().flash_attn_func(
                q, k, v, causal=causal, window_size=window, alibi_slopes=slopes
            ),
            qkv,
            lambda upcast, slopes=slopes: reference(*qkv, shown, upcast, slopes=slopes),
        )
    compare(
        lambda q, k, v: flash().flash_attn_func(q, k, v, causal=causal, window_size=window, softcap=5.0),
        qkv,
        lambda upcast: reference(*qkv, shown, upcast, softcap=5.0),
        factor=4,
    )


@pytest.mark.parametrize("with_alibi", [False, True], ids=["plain", "alibi"])
@pytest.mark.parametrize("causal, window", RULES)
def test_lse_has_their_conventions(causal, window, with_alibi, device):
    rows, keys = 40, 25
    q, k, v = inputs(device, rows, keys)
    shown = visible(rows, keys, causal, window, device)
    slopes = torch.rand(2, 4, device=device) if with_alibi else None
    named = {"causal": causal, "window_size": window, "alibi_slopes": slopes, "return_attn_probs": True}
    out, lse, probabilities = flash().flash_attn_func(q, k, v, **named)
    _, expected = reference(q, k, v, shown, slopes=slopes)
    if with_alibi and window[0] < 0 and causal:
        expected = expected + slopes[..., None] * (torch.arange(rows, device=device) + keys - rows)
    torch.testing.assert_close(lse, expected, rtol=1e-3, atol=1e-3)
    assert probabilities is None and lse.shape == (2, 4, rows)
    rule = (0.0, 32**-0.5, causal, *window, 0.0, slopes, False)
    state = flash().flash_attn_interface._flash_attn_forward(q, k, v, *rule)
    torch.testing.assert_close(state[1], lse)
    # Its backward undoes them.
    d_out = torch.randn_like(out)
    made = [torch.empty_like(tensor) for tensor in (q, k, v)]
    arguments = (d_out, q, k, v, out.detach(), lse.detach(), *made, *rule)
    flash().flash_attn_interface._flash_attn_backward(*arguments)
    for got, want in zip(made, torch.autograd.grad(out, (q, k, v), d_out)):
        torch.testing.assert_close(got, want)
    if not with_alibi:
        _, lse_3 = flash_3().flash_attn_func(q, k, v, causal=causal, window_size=window, return_attn_probs=True)
        torch.testing.assert_close(lse_3, lse)


@pytest.mark.parametrize("packed", [False, True], ids=["batches", "packed"])
def test_dropout_is_what_the_probabilities_say(packed, device):
    rows, keys, p = 40, 150, 0.25
    q, k, v = inputs(device, rows, keys)
    named = {"dropout_p": p, "causal": True, "return_attn_probs": True}
    if packed:
        lengths = [torch.arange(3, dtype=torch.int32, device=device) * n for n in (rows, keys)]
        flat = [tensor.flatten(0, 1) for tensor in (q, k, v)]
        out, _, signed = flash().flash_attn_varlen_func(*flat, *lengths, rows, keys, **named)
        out = out.unflatten(0, (2, rows))
    else:
        out, _, signed = flash().flash_attn_func(q, k, v, **named)
    assert signed.shape == (2, 4, 128, 256)
    kept = signed[:, :, :rows, :keys] >= 0
    shown = visible(rows, keys, True, (-1, -1), device)
    rate = kept[shown.expand_as(kept)].float().mean()
    assert abs(rate - (1 - p)) < 0.03
    exact, _ = reference(q, k, v, shown, kept=kept, p=p)
    plain, _ = reference(q, k, v, shown, False, kept=kept, p=p)
    close(out, exact, plain)


@pytest.mark.parametrize("causal, window", RULES)
def test_varlen(causal, window, device):
    lengths_q, lengths_k = [3, 0, 40, 17], [17, 5, 40, 0]
    cu_q, cu_k = (
        torch.tensor([0, *lengths], device=device).cumsum(0, dtype=torch.int32) for lengths in (lengths_q, lengths_k)
    )
    torch.manual_seed(3)
    q = torch.randn(60, 4, 32, device=device, dtype=torch.bfloat16, requires_grad=True)
    k, v = (torch.randn(62, 2, 32, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in "kv")

    def by_sequences(upcast):
        outs, lses = [], []
        for one in range(4):
            rows, keys = slice(cu_q[one], cu_q[one + 1]), slice(cu_k[one], cu_k[one + 1])
            shown = visible(lengths_q[one], lengths_k[one], causal, window, device)
            out, lse = reference(q[rows][None], k[keys][None], v[keys][None], shown, upcast)
            outs.append(out[0])
            lses.append(lse[0])
        return torch.cat(outs), torch.cat(lses, -1)

    named = {"causal": causal, "window_size": window}
    for module in (flash(), flash_3()):
        call = lambda q, k, v, module=module: module.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 40, 40, **named)  # noqa: E731
        compare(call, [q, k, v], by_sequences)
        made = module.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 40, 40, **named, return_attn_probs=True)
        torch.testing.assert_close(made[1], by_sequences(True)[1], rtol=1e-3, atol=1e-3)
    forward = flash().flash_attn_interface._flash_attn_varlen_forward
    backward = flash().flash_attn_interface._flash_attn_varlen_backward
    rule = (cu_q, cu_k, 40, 40, 0.0, 32**-0.5, causal, *window)
    out, lse, _, state = forward(q, k, v, *rule)
    into = [torch.empty_like(tensor) for tensor in (q, k, v)]
    d_out = torch.randn_like(out)
    backward(d_out, q, k, v, out, lse, *into, *rule, 0.0, None, False, state)
    for got, want in zip(into, torch.autograd.grad(call(q, k, v), (q, k, v), d_out)):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("causal", [False, True])
def test_packed_tensors(causal, device):
    torch.manual_seed(1)
    qkv = torch.randn(2, 33, 3, 4, 32, device=device, dtype=torch.bfloat16, requires_grad=True)
    q, kv = (torch.randn(2, 33, *axes, 32, device=device, dtype=torch.bfloat16) for axes in ((4,), (2, 2)))
    q.requires_grad_(), kv.requires_grad_()
    cu = torch.tensor([0, 33, 66], dtype=torch.int32, device=device)
    cases = [
        (flash().flash_attn_qkvpacked_func, (qkv,), lambda t: t[0].unbind(2), {}),
        (flash().flash_attn_kvpacked_func, (q, kv), lambda t: (t[0], *t[1].unbind(2)), {}),
        (flash_3().flash_attn_qkvpacked_func, (qkv,), lambda t: t[0].unbind(2), {}),
    ]
    for function, given, parts, named in cases:
        out = function(*given, causal=causal, **named)
        expected = flash().flash_attn_func(*parts(given), causal=causal)
        assert torch.equal(out, expected)
        d_out = torch.randn_like(out)
        for got, want in zip(torch.autograd.grad(out, given, d_out), torch.autograd.grad(expected, given, d_out)):
            assert torch.equal(got, want)
    out = flash().flash_attn_varlen_qkvpacked_func(qkv.flatten(0, 1), cu, 33, causal=causal)
    whole = flash().flash_attn_qkvpacked_func(qkv, causal=causal).flatten(0, 1)
    torch.testing.assert_close(out, whole, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(
        *(torch.autograd.grad(one.float().sum(), qkv)[0] for one in (out, whole)), rtol=1e-2, atol=2e-2
    )
    out = flash().flash_attn_varlen_kvpacked_func(q.flatten(0, 1), kv.flatten(0, 1), cu, cu, 33, 33, causal=causal)
    whole = flash().flash_attn_kvpacked_func(q, kv, causal=causal).flatten(0, 1)
    torch.testing.assert_close(out, whole, rtol=1e-2, atol=1e-2)


def test_packed_tensors_under_transforms(device):
    torch.manual_seed(1)
    qkv = torch.randn(2, 9, 3, 4, 16, device=device, requires_grad=True)

    def packed(qkv):
        return flash().flash_attn_qkvpacked_func(qkv, causal=True).sin().sum()

    def apart(qkv):
        return flash().flash_attn_func(*qkv.unbind(2), causal=True).sin().sum()

    want = torch.autograd.grad(apart(qkv), qkv)[0]
    torch.testing.assert_close(torch.autograd.grad(packed(qkv), qkv, create_graph=True)[0], want)
    torch.testing.assert_close(torch.func.grad(packed)(qkv.detach()), want)
    kv = torch.randn(2, 9, 2, 4, 16, device=device, requires_grad=True)
    q = torch.randn(2, 9, 4, 16, device=device, requires_grad=True)
    call = lambda: flash().flash_attn_kvpacked_func(q, kv).sin().sum()  # noqa: E731
    for got, want in zip(torch.autograd.grad(call(), (q, kv), create_graph=True), torch.autograd.grad(call(), (q, kv))):
        torch.testing.assert_close(got, want)


def test_compiles_once(device):
    q, k, v = (tensor.detach() for tensor in inputs(device, 20, 20))
    traced = []

    def backend(graph, example):
        traced.append(graph)
        return graph

    call = torch.compile(lambda q, k, v: flash().flash_attn_func(q, k, v, causal=True), fullgraph=True, backend=backend)
    for _ in range(12):
        call(q, k, v)
    assert len(traced) == 1


def test_what_they_refuse_is_refused(device):
    q, k, v = (tensor.detach() for tensor in inputs(device, 3, 20))
    cos = torch.ones(4, 8, device=device)
    for module in (flash(), flash_3()):
        with pytest.raises(tessella.Unsupported, match="rotary_cos is given without k"):
            module.flash_attn_with_kvcache(q, k, v, rotary_cos=cos, rotary_sin=cos, cache_seqlens=5)
    from flash_attn.layers.rotary import apply_rotary_emb

    with pytest.raises(tessella.InvalidArgument, match="^cos has 4 positions, expected at least 5 = seqlen"):
        apply_rotary_emb(q, cos, cos, seqlen_offsets=2)
    scale = torch.full((2, 2), 7.0, device=device)  # which is for float8
    same = flash_3().flash_attn_func(q, k, v, q_descale=scale, k_descale=scale, v_descale=scale)
    assert torch.equal(same, flash_3().flash_attn_func(q, k, v))


def test_a_window_of_all_keys_is_none(device):
    q, k, v = (tensor.detach() for tensor in inputs(device, 9, 20))
    slopes = torch.rand(4, device=device)
    named = {"causal": True, "alibi_slopes": slopes, "return_attn_probs": True}
    whole, wide = (flash().flash_attn_func(q, k, v, window_size=size, **named) for size in ((-1, -1), (20, 0)))
    torch.testing.assert_close(wide[1], whole[1])


def rotated(x, cos, sin, interleaved, at):
    """(batch, rows, heads, dim) at positions (batch, rows), in float32."""
    cos, sin = (angles[at].float()[:, :, None] for angles in (cos, sin))
    width = 2 * cos.shape[-1]
    turned, rest = x[..., :width].float(), x[..., width:].float()
    first, second = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    pair = (first * cos - second * sin, second * cos + first * sin)
    turned = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat((turned, rest), -1).to(x.dtype)


@pytest.mark.parametrize("new", [0, 1, 3], ids=lambda new: f"{new} new")
@pytest.mark.parametrize("rows", [1, 3, 8], ids=lambda rows: f"{rows} queries")
@pytest.mark.parametrize("causal, window", RULES[:3])
@pytest.mark.parametrize("cache", ["slots", "pages", "chosen slots", "left padding", "pages of chosen rows"])
@pytest.mark.parametrize("rotary", ["", "interleaved", "halves"])
def test_with_kvcache(cache, rows, new, causal, window, rotary, device):
    if rotary and not new:
        pytest.skip("rotation comes with new keys")
    torch.manual_seed(5)
    batch, size, page = 2, 48, 8
    dtype = torch.bfloat16
    q, k, v = (torch.randn(batch, n, h, 16, device=device, dtype=dtype) for n, h in ((rows, 4), (new, 2), (new, 2)))
    lengths = torch.tensor([11, 37], dtype=torch.int32, device=device)
    caches = [torch.randn(4, size, 2, 16, device=device, dtype=dtype) for _ in "kv"]
    slots = torch.tensor([2, 0] if "chosen" in cache else [0, 1], dtype=torch.int32, device=device)
    leftpad = torch.tensor([2, 5], dtype=torch.int32, device=device) if cache == "left padding" else None
    angles = torch.rand(64, 4, device=device) * 6
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    interleaved = rotary == "interleaved"
    # What it should be.
    whole = [tensor[slots.long()].clone() for tensor in caches]
    moves = causal or window != (-1, -1)
    at = lengths[:, None] + torch.arange(max(rows, new), device=device)
    turned_k = rotated(k, cos, sin, interleaved, at[:, :new]) if rotary else k
    at_q = at[:, :rows] if moves else lengths[:, None].expand(-1, rows)
    turned_q = rotated(q, cos, sin, interleaved, at_q) if rotary else q
    for one in range(batch):
        for tensor, rows_new in zip(whole, (turned_k, v)):
            tensor[one, lengths[one] : lengths[one] + new] = rows_new[one]
    after = lengths + new
    shown = visible(rows, size, causal, window, device, after, torch.full_like(after, rows))
    if leftpad is not None:
        shown = shown & (torch.arange(size, device=device) >= leftpad[:, None])[:, None, None]
    exact, lse = reference(turned_q, *whole, shown)
    plain, _ = reference(turned_q, *whole, shown, False)
    # What it is.
    named = {"cache_seqlens": lengths, "causal": causal, "window_size": window, "cache_leftpad": leftpad}
    if new:
        named.update(k=k, v=v)
    if rotary:
        named.update(rotary_cos=cos, rotary_sin=sin, rotary_interleaved=interleaved)
    table = torch.randperm(4 * size // page, device=device, dtype=torch.int32).view(4, -1)
    for module, pages in ((flash(), "block_table"), (flash_3(), "page_table")):
        own = [tensor.clone() for tensor in caches]
        if "pages" in cache:
            pools = [torch.empty(4 * size // page, page, 2, 16, device=device, dtype=dtype) for _ in own]
            for pool, tensor in zip(pools, own):
                pool[table.long().flatten()] = tensor.view(-1, page, 2, 16)
            chosen = {"cache_batch_idx": slots, pages: table} if "chosen" in cache else {pages: table[:2]}
            made = module.flash_attn_with_kvcache(q, *pools, **named, **chosen, return_softmax_lse=True)
            own = [pool[table.long()].flatten(1, 2) for pool in pools]
        else:
            chosen = {"cache_batch_idx": slots} if "chosen" in cache else {}
            given = own if chosen else [tensor[:2] for tensor in own]
            made = module.flash_attn_with_kvcache(q, *given, **named, **chosen, return_softmax_lse=True)
        close(made[0], exact, plain, 3 if rotary else 2)
        torch.testing.assert_close(made[1], lse, rtol=2e-2, atol=2e-2)
        for tensor, expected in zip(own, whole):
            torch.testing.assert_close(tensor[slots.long()], expected, rtol=2e-2, atol=2e-2)


def test_gradients_that_are_not_there_are_an_error_of_the_backward(device):
    pages = torch.randn(6, 8, 2, 16, device=device, requires_grad=True)
    q = torch.randn(3, 4, 16, device=device, requires_grad=True)
    cu_q, cu_k = (torch.tensor(lengths, dtype=torch.int32, device=device) for lengths in ([0, 1, 3], [0, 9, 20]))
    table = torch.tensor([[0, 1, 2], [3, 4, 5]], dtype=torch.int32, device=device)
    out = flash().flash_attn_varlen_func(q, pages, pages, cu_q, cu_k, 2, 11, causal=True, block_table=table)
    assert out.requires_grad
    with pytest.raises(tessella.Unsupported, match="^backward: keys in pages have no gradients"):
        out.sum().backward()
    q, k, v = (torch.randn(1, 5, 1, 320, device=device, requires_grad=True) for _ in range(3))
    out = flash().flash_attn_func(q, k, v)
    if device == "cpu":  # whose gradients go further
        want = torch.autograd.grad(tessella.torch.attention(q, k, v).sum(), (q, k, v))
        torch.testing.assert_close(torch.autograd.grad(out.sum(), (q, k, v)), want)
    else:
        with pytest.raises(tessella.Unsupported, match="^backward: head_dim 320 has no gradients on cuda"):
            out.sum().backward()


def test_combine(device):
    torch.manual_seed(2)
    q, k, v = (torch.randn(2, 9, 4, 16, device=device) for _ in range(3))
    halves = [tessella.torch.attention(q, k[:, rows], v[:, rows], return_lse=True) for rows in (slice(4), slice(4, 9))]
    outs, lses = torch.stack([out for out, _ in halves]), torch.stack([lse.transpose(1, 2) for _, lse in halves])
    expected, lse = tessella.torch.attention(q, k, v, return_lse=True)
    for dtype in (None, torch.bfloat16):
        out, combined = flash_3().flash_attn_combine(outs, lses, out_dtype=dtype)
        assert out.dtype == (dtype or torch.float32)
        torch.testing.assert_close(out.float(), expected, rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(combined, lse.transpose(1, 2))
    into = torch.empty_like(expected)
    assert torch.ops.flash_attn_3.fwd_combine(outs, lses, into)[0] is not None and torch.allclose(
        into, expected, atol=1e-5
    )


def test_latent_attention_reads_one_cache(device):
    torch.manual_seed(2)
    cache = torch.randn(2, 40, 1, 96, device=device, dtype=torch.bfloat16)
    q, qv = (torch.randn(2, 3, 4, dim, device=device, dtype=torch.bfloat16) for dim in (32, 64))
    v, k = cache[..., :64], cache[..., 64:]
    lengths = torch.tensor([17, 40], dtype=torch.int32, device=device)
    out = flash_3().flash_attn_with_kvcache(q, k, v, qv=qv, cache_seqlens=lengths, causal=True)
    shown = visible(3, 40, True, (-1, -1), device, lengths, torch.full_like(lengths, 3))
    whole = torch.cat((qv, q), -1)
    exact, plain = (reference(whole, cache, v, shown, upcast)[0] for upcast in (True, False))
    close(out, exact, plain)
    with pytest.raises(tessella.Unsupported, match="^qv is given, expected k and v side by side"):
        flash_3().flash_attn_with_kvcache(q, k.clone(), v, qv=qv, cache_seqlens=lengths)


def test_float8_with_descales(device):
    torch.manual_seed(2)
    scales = [torch.rand(2, 2, device=device) + 0.5 for _ in range(3)]
    q, k, v = (torch.randn(2, 40, heads, 64, device=device).to(torch.float8_e4m3fn) for heads in (4, 2, 2))
    out = flash_3().flash_attn_func(q, k, v, q_descale=scales[0], k_descale=scales[1], v_descale=scales[2], causal=True)
    wide = [
        tensor.float() * scale.repeat_interleave(tensor.shape[2] // 2, 1)[:, None, :, None]
        for tensor, scale in zip((q, k, v), scales)
    ]
    exact, _ = reference(*wide, visible(40, 40, True, (-1, -1), device))
    assert out.dtype is torch.bfloat16
    torch.testing.assert_close(out.float(), exact, rtol=0.1, atol=0.1)
    # Beside q of 16 bits, which FlashAttention-3 does not take.
    mixed = flash_3().flash_attn_func(q.bfloat16(), k, v, k_descale=scales[1], v_descale=scales[2], causal=True)
    exact, _ = reference(q.float(), *wide[1:], visible(40, 40, True, (-1, -1), device))
    torch.testing.assert_close(mixed.float(), exact, rtol=0.1, atol=0.1)
    lengths = torch.tensor([39, 39], dtype=torch.int32, device=device)
    with pytest.raises(tessella.Unsupported, match="^k_new is given beside a cache of torch.float8_e4m3fn, expected"):
        flash_3().flash_attn_with_kvcache(q.bfloat16(), k, v, k=q[:, :1, :2], v=q[:, :1, :2], cache_seqlens=lengths)


@pytest.mark.parametrize("causal", [False, True])
def test_packed_queries_and_new_keys(causal, device):
    """Of FlashAttention-3: packed q and k, and positions that are given, against sequences one by one."""
    torch.manual_seed(7)
    rows, new, before = [2, 5], [2, 3], [7, 20]
    cu_q, cu_new = (torch.tensor([0, *n], device=device).cumsum(0, dtype=torch.int32) for n in (rows, new))
    lengths, turned_from = (torch.tensor(n, dtype=torch.int32, device=device) for n in (before, [3, 30]))
    caches = [torch.randn(2, 40, 2, 16, device=device, dtype=torch.bfloat16) for _ in "kv"]
    q, k, v = (torch.randn(n, h, 16, device=device, dtype=torch.bfloat16) for n, h in ((7, 4), (5, 2), (5, 2)))
    angles = torch.rand(64, 8, device=device) * 6
    rule = {"rotary_cos": angles.cos().bfloat16(), "rotary_sin": angles.sin().bfloat16(), "causal": causal}
    own = [tensor.clone() for tensor in caches]
    out = flash_3().flash_attn_with_kvcache(
        q,
        *own,
        k,
        v,
        cache_seqlens=lengths,
        cu_seqlens_q=cu_q,
        cu_seqlens_k_new=cu_new,
        max_seqlen_q=5,
        rotary_seqlens=turned_from,
        **rule,
    )
    for one in range(2):
        single = [tensor[one : one + 1].clone() for tensor in caches]
        of_q, of_new = slice(cu_q[one], cu_q[one + 1]), slice(cu_new[one], cu_new[one + 1])
        expected = flash_3().flash_attn_with_kvcache(
            q[of_q][None],
            *single,
            k[of_new][None],
            v[of_new][None],
            cache_seqlens=before[one],
            rotary_seqlens=turned_from[one : one + 1],
            **rule,
        )
        torch.testing.assert_close(out[of_q], expected[0], rtol=2e-2, atol=2e-2)
        for tensor, want in zip(own, single):
            assert torch.equal(tensor[one], want[0])


def test_chunks(device):
    q, k, v = inputs(device, 40, 40)
    out = flash_3().flash_attn_func(q, k, v, causal=True, attention_chunk=16)
    row = torch.arange(40, device=device)
    shown = visible(40, 40, True, (-1, -1), device) & (row[:, None] // 16 == row // 16)
    exact, plain = (reference(q, k, v, shown, upcast)[0] for upcast in (True, False))
    close(out, exact, plain)


def test_padding(device):
    from flash_attn.bert_padding import pad_input, unpad_input, unpad_input_for_concatenated_sequences

    x = torch.randn(3, 6, 4, device=device, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[1, 1, 0, 0, 0, 0], [1] * 6, [0, 1, 1, 0, 0, 1]], device=device)
    rows, indices, cu_seqlens, longest, used = unpad_input(x, mask)
    assert torch.equal(rows, x[mask.bool()]) and cu_seqlens.tolist() == [0, 2, 8, 11] and longest == 6
    assert used.tolist() == [2, 6, 3] and cu_seqlens.dtype == used.dtype == torch.int32
    assert torch.equal(pad_input(rows, indices, 3, 6), x * mask[..., None])
    assert torch.autograd.gradcheck(lambda x: pad_input(unpad_input(x, mask)[0], indices, 3, 6), x)
    unused = torch.zeros_like(mask)
    unused[0, 2] = 1
    rows, _, cu_seqlens, _, used = unpad_input(x, mask, unused)
    assert rows.shape[0] == 12 and cu_seqlens.tolist() == [0, 3, 9, 12] and used.tolist() == [2, 6, 3]
    lengths = torch.tensor([[2, 3, 0, 0, 0, 0], [3, 2, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0]], device=device)
    rows, indices, cu_seqlens, longest = unpad_input_for_concatenated_sequences(x, lengths)
    assert cu_seqlens.tolist() == [0, 2, 5, 8, 10, 16] and longest == 6 and rows.shape[0] == 16


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary(interleaved, device):
    from flash_attn.layers.rotary import apply_rotary_emb

    torch.manual_seed(1)
    x = torch.randn(2, 5, 3, 16, device=device, requires_grad=True)
    angles = torch.rand(32, 6, device=device)
    cos, sin = angles.cos(), angles.sin()
    offsets = torch.tensor([3, 20], device=device)
    at = offsets[:, None] + torch.arange(5, device=device)
    expected = rotated(x, cos, sin, interleaved, at)
    out = apply_rotary_emb(x, cos, sin, interleaved=interleaved, seqlen_offsets=offsets)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(*(torch.autograd.grad(one.sin().sum(), x)[0] for one in (out, expected)))
    cu_seqlens = torch.tensor([0, 5, 10], dtype=torch.int32, device=device)
    flat = apply_rotary_emb(x.flatten(0, 1), cos, sin, interleaved, False, offsets, cu_seqlens, 5)
    torch.testing.assert_close(flat, expected.flatten(0, 1))
    own = x.detach().clone()
    assert apply_rotary_emb(own, cos, sin, interleaved, inplace=True, seqlen_offsets=offsets) is own
    torch.testing.assert_close(own, expected)


def test_compiled_operators(device):
    interface = flash().flash_attn_interface
    q, k, v = (tensor.detach() for tensor in inputs(device, 20, 20))
    forward = torch.compile(
        lambda *qkv: interface._wrapped_flash_attn_forward(*qkv, 0.0, 0.2, True, -1, -1, 0.0, None, False)[:2],
        fullgraph=True,
        backend="aot_eager",
    )
    for got, want in zip(
        forward(q, k, v), interface._flash_attn_forward(q, k, v, 0.0, 0.2, True, -1, -1, 0.0, None, False)
    ):
        torch.testing.assert_close(got, want)
