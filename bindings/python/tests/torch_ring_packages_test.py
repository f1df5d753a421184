"""ring-flash-attn and yunchang on the flash_attn drop-in, unedited, on two and four processes of a CPU: values and
gradients beside float64 attention of the whole sequence. Ran with ring-flash-attn 0.1.8, yunchang 0.6.4, torch 2.15.0
and transformers 4.57.6, which ring-flash-attn imports.
"""

import importlib
import importlib.metadata
import importlib.util
import itertools
import pathlib
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")

import ring_packages  # noqa: E402
import tessella.dropin  # noqa: E402
from ring_packages import RINGS, Case  # noqa: E402

for name in ring_packages.PACKAGES:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed", allow_module_level=True)

OF_TRANSFORMERS = "is_flash_attn_greater_or_equal_2_10"
PAGE = pathlib.Path(__file__).parents[3] / "docs" / "from_flash_attn.md"
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
EVEN, RAGGED = (0, 16, 40, 48), (0, 7, 30, 48)
BOTH = (False, True)
PACKINGS = ("", "kvpacked_", "qkvpacked_")


def of_ring_flash_attn(dtype):
    """Rings, of which only plain chunks compute what is not causal, and llama3's gathered keys."""
    for layout, packing, varlen in itertools.product(RINGS, PACKINGS, ("", "varlen_")):
        if layout == "stripes" and varlen:
            continue
        name = f"{RINGS[layout][0]}_flash_attn_{varlen}{packing}func"
        for causal in BOTH if layout == "chunks" else (True,):
            yield Case("ring_flash_attn", name, layout, causal, dtype, EVEN if varlen else (0, 48))
    for packing, causal in itertools.product(PACKINGS, BOTH):
        for stride in (1, 2):
            name, options = f"llama3_flash_attn_varlen_{packing}func", (("heads_k_stride", stride),)
            yield Case("ring_flash_attn", name, "chunks", causal, dtype, RAGGED, options=options)
    options = (("heads_k_stride", 1), ("window_size", (9, 0)))
    yield Case("ring_flash_attn", "llama3_flash_attn_varlen_func", "chunks", True, dtype, RAGGED, options=options)


def of_yunchang(dtype):
    """Ulysses, rings, and both at once on four processes."""
    for causal, attn_type in itertools.product(BOTH, ("fa", "fa3")):
        more = (("window_size", (9, 5)),) if attn_type == "fa3" else (("window_size", (9, 5)), ("softcap", 5.0))
        for options in ((), more) if attn_type == "fa" else ((),):
            options = (("attn_type", attn_type), *options)
            yield Case("yunchang", "UlyssesAttention", "chunks", causal, dtype, ulysses=2, options=options)
    for layout in RINGS:
        for causal, (processes, ulysses) in itertools.product(BOTH, ((2, 1), (2, 2), (4, 2))):
            if not causal and layout != "chunks":
                continue
            # A ring of one process sends the gradients of its keys to itself, which gloo does not do.
            backward = processes > ulysses
            shares = {"processes": processes, "ulysses": ulysses, "backward": backward}
            yield Case("yunchang", "LongContextAttention", layout, causal, dtype, **shares)
            if layout != "chunks":  # the packed one of plain chunks lacks an argument of its own function
                yield Case("yunchang", "LongContextAttentionQKVPacked", layout, causal, dtype, **shares)


# Rings keep the sums of gradients in float32, and write over them where that is the dtype of the tensors themselves.
CASES = [
    case
    for dtype in DTYPES
    for case in (*of_ring_flash_attn(dtype), *of_yunchang(dtype))
    if dtype is not torch.float32 or not case.is_ring
]


@pytest.fixture(scope="module")
def packages():
    """They can be imported, beside flash_attn and, for ring-flash-attn, a transformers that has what it imports."""
    tessella.dropin.install()
    try:
        utils = pytest.importorskip("transformers.modeling_flash_attention_utils")
        if not hasattr(utils, OF_TRANSFORMERS):
            pytest.skip(f"this transformers has no {OF_TRANSFORMERS}, which ring-flash-attn imports")
        for name in ring_packages.PACKAGES:  # one that the drop-in lacks a name for fails
            importlib.import_module(name)
    finally:
        tessella.dropin.uninstall()


@pytest.fixture(scope="module")
def made(packages, tmp_path_factory):
    """What the processes made of each case: one start for all cases of as many."""
    results = {}
    for processes in (2, 4):
        cases = [case for case in CASES if case.processes == processes]
        folder = tmp_path_factory.mktemp("processes")
        torch.multiprocessing.spawn(ring_packages.compute, (folder, cases), processes)
        of_rank = [torch.load(folder / f"{rank}.pt") for rank in range(processes)]
        for _, served, refused in of_rank:
            assert not refused
            assert {"fwd", "bwd"} <= served.keys()
        for at, case in enumerate(cases):
            results[case] = [one[0][at] for one in of_rank]
    return results


def joined(case, of_ranks):
    """Tensors of the whole sequence out of those of the processes."""
    rows = torch.cat([case.rows(rank) for rank in range(case.processes)])
    axis = 0 if case.is_packed else 1
    return [torch.cat(tensors, axis).index_select(axis, rows.argsort()) for tensors in zip(*of_ranks)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_is_attention_of_the_whole_sequence(case, made, record_property):
    for name in ("ring-flash-attn", "yunchang", "torch", "transformers"):
        record_property(name, importlib.metadata.version(name))
    exact, plain = (ring_packages.whole(case, dtype) for dtype in (torch.float64, case.dtype))
    got = joined(case, made[case])
    assert len(got) == (4 if case.backward else 1)
    for name, one, expected, by_plain in zip(("out", "dq", "dk", "dv"), got, exact, plain):
        largest = expected.abs().max()
        # Twice the plain error, three times that of a gradient, and a step to either side of a tie.
        allowed = (2 if name == "out" else 3) * (by_plain - expected).abs().max() + 1e-5
        # Rings of plain chunks return dq in bfloat16 whatever its dtype.
        is_rounded = name == "dq" and case.is_ring and case.layout == "chunks"
        allowed += torch.finfo(torch.bfloat16 if is_rounded else case.dtype).eps * largest
        assert one.dtype is case.dtype and not one.isnan().any()
        assert (one - expected).abs().max() <= allowed, name


def test_the_program_of_the_page(packages, tmp_path):
    """As it stands, on two processes."""
    if not PAGE.is_file():
        pytest.skip(f"{PAGE.name} is not beside the tests")
    found = re.search(
        r"^```python\n((?:(?!```)[^\n]*\n)*?[^\n]*ring_flash_attn.*?)^```$", PAGE.read_text(), re.M | re.S
    )
    (tmp_path / "program.py").write_text(found[1])
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ran = subprocess.run([*launcher, tmp_path / "program.py"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert len(re.findall("{'fwd': 4, 'bwd': 4}", ran.stdout)) == 2, ran.stdout
