"""tessella.dropin as programs find it: signatures, schemas, distributions, the report, and a real one beside it."""

import importlib.metadata
import importlib.util
import inspect
import subprocess
import sys

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


def test_signatures_are_theirs():
    """Names, order and defaults of FlashAttention 2.8's and 3's arguments, as callers give them by position."""

    def said(function):
        return ", ".join(
            name if one.default is inspect.Parameter.empty else f"{name}={one.default!r}"
            for name, one in inspect.signature(function).parameters.items()
        )

    rule = (
        "dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, "
        "deterministic=False, return_attn_probs=False"
    )
    assert said(flash().flash_attn_func) == f"q, k, v, {rule}"
    assert said(flash().flash_attn_varlen_func) == (
        f"q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, {rule}, block_table=None"
    )
    assert said(flash_3().flash_attn_func) == (
        "q, k, v, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None, "
        "window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, "
        "sm_margin=0, return_attn_probs=False"
    )
    assert said(flash_3()._flash_attn_forward) == (
        "q, k, v, k_new=None, v_new=None, qv=None, out_=None, cu_seqlens_q=None, cu_seqlens_k=None, "
        "cu_seqlens_k_new=None, seqused_q=None, seqused_k=None, max_seqlen_q=None, max_seqlen_k=None, page_table=None, "
        "kv_batch_idx=None, leftpad_k=None, rotary_cos=None, rotary_sin=None, seqlens_rotary=None, q_descale=None, "
        "k_descale=None, v_descale=None, softmax_scale=None, causal=False, window_size_left=-1, window_size_right=-1, "
        "attention_chunk=0, softcap=0.0, rotary_interleaved=True, scheduler_metadata=None, num_splits=1, "
        "pack_gqa=None, sm_margin=0"
    )
    assert said(flash_3()._flash_attn_backward) == (
        "dout, q, k, v, out, softmax_lse, cu_seqlens_q=None, cu_seqlens_k=None, sequed_q=None, sequed_k=None, "
        "max_seqlen_q=None, max_seqlen_k=None, dq=None, dk=None, dv=None, softmax_scale=None, is_causal=False, "
        "window_size_left=-1, window_size_right=-1, softcap=0.0, deterministic=False, sm_margin=0"
    )


# Of flash-attention's hopper/flash_api.cpp.
SCHEMAS = {
    "fwd_combine": "(Tensor out_partial, Tensor lse_partial, Tensor(out!)? out=None, ScalarType? out_dtype=None) -> "
    "(Tensor(out!), Tensor)",
}


def test_the_operators_schemas():
    for name, schema in SCHEMAS.items():
        theirs = torch._C.parse_schema(f"flash_attn_3::{name}{schema}")
        assert getattr(torch.ops.flash_attn_3, name).default._schema.is_backward_compatible_with(theirs)
    assert len(torch.ops.flash_attn_3.fwd.default._schema.arguments) == 34


def test_who_looks_for_a_distribution_finds_it():
    assert importlib.metadata.version("flash-attn") == "2.8.3+tessella"
    assert importlib.metadata.version("flash_attn_3") == "3.0.0+tessella"
    assert importlib.metadata.packages_distributions()["flash_attn"] == ["flash_attn"]
    assert importlib.util.find_spec("flash_attn") is not None
    tessella.dropin.uninstall()
    try:
        assert importlib.util.find_spec("flash_attn") is None
        with pytest.raises(importlib.metadata.PackageNotFoundError):
            importlib.metadata.version("flash-attn")
    finally:
        tessella.dropin.install()
    with pytest.raises(tessella.InvalidArgument, match="^install: 'x' is no drop-in, expected some of flash_attn, "):
        tessella.dropin.install("x")


REAL = """
import sys, pathlib
folder = pathlib.Path(sys.argv[1])
(folder / "flash_attn").mkdir()
(folder / "flash_attn" / "__init__.py").write_text("")
dist = folder / "flash_attn-2.8.4.dist-info"
dist.mkdir()
(dist / "METADATA").write_text("Metadata-Version: 2.1\\nName: flash-attn\\nVersion: 2.8.4\\n")
sys.path.insert(0, str(folder))
import tessella, tessella.dropin
try:
    tessella.dropin.install("flash_attn")
except tessella.Unsupported as error:
    print(error)
import flash_attn
print(hasattr(flash_attn, "flash_attn_func"))
"""


def test_a_real_one_is_never_replaced(tmp_path):
    ran = subprocess.run([sys.executable, "-c", REAL, str(tmp_path)], capture_output=True, text=True)
    assert ran.stdout == ("install: flash_attn 2.8.4 is installed, expected none beside the drop-in\nFalse\n"), (
        ran.stderr
    )


WITHOUT_METADATA = """
import sys, pathlib
folder = pathlib.Path(sys.argv[1])
(folder / "flash_attn").mkdir()
(folder / "flash_attn" / "__init__.py").write_text("")
sys.path.insert(0, str(folder))
import tessella, tessella.dropin
try:
    tessella.dropin.install("flash_attn")
except tessella.Unsupported as error:
    print(str(error).split(" at ")[0])
"""


def test_a_copy_without_a_distribution_is_not_replaced(tmp_path):
    ran = subprocess.run([sys.executable, "-c", WITHOUT_METADATA, str(tmp_path)], capture_output=True, text=True)
    assert ran.stdout == "install: flash_attn is found\n", ran.stderr


def test_report_counts():
    before = tessella.dropin.report()
    q = torch.ones(1, 3, 2, 8)
    flash().flash_attn_func(q, q, q)
    with pytest.raises(tessella.InvalidArgument):
        flash().flash_attn_func(q, q[..., :4], q)
    after = tessella.dropin.report()
    assert after.served["flash_attn_func"] == before.served.get("flash_attn_func", 0) + 1
    reason = next(reason for reason in after.refused if reason.startswith("flash_attn_func: forward: k.shape"))
    assert after.refused[reason] == before.refused.get(reason, 0) + 1
