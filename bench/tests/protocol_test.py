"""Cells: their number, sizes and operations."""

import pytest
from contest.protocol import PROTOCOLS, Cell, random_lengths


def cells(protocol, **selection):
    return PROTOCOLS[protocol].cells(**({"dtypes": [], "head_dims": [], "lengths": []} | selection))


def test_family_has_16k_tokens_and_hidden_2048_in_every_cell():
    found = cells("family")
    assert len(found) == 3 * 2 * 6
    assert {(cell.batch * cell.seqlen, cell.heads_q * cell.head_dim) for cell in found} == {(16384, 2048)}


def test_operations_are_those_of_the_papers():
    full, causal = cells("family", head_dims=[128], lengths=[4096])
    assert full.flops == 4 * 4 * 16 * 4096**2 * 128
    assert causal.flops == full.flops / 2


def test_a_window_counts_what_is_visible():
    cell = Cell("bf16", 2, 10, 3, 3, 64, 32, causal=True, window=4)
    visible = sum(1 for i in range(10) for j in range(10) if 0 <= i - j <= 4)
    assert cell.flops == 2 * 2 * 3 * (64 + 32) * visible


def test_packed_lengths_are_the_same_each_time_and_count_each_sequence():
    lengths = random_lengths(16384)
    assert (len(lengths), sum(lengths), min(lengths) > 0) == (14, 16384, True)
    assert lengths == random_lengths(16384)
    cell = next(cell for cell in cells("features") if cell.lengths)
    assert cell.flops == 4 * 16 * 128 * sum(n * n for n in lengths)


def test_features_say_what_a_library_must_offer():
    features = {(cell.case, cell.causal): cell.features for cell in cells("features")}
    assert features["gqa 64/8", False] == ["grouped heads"]
    assert features["d 192/128", True] == ["head_dim_v of its own"]
    assert features["window 1024", True] == ["window"]
    assert features["ALiBi as text", False] == ["ALiBi", "caller's text"]


def test_cases_may_be_chosen_by_name():
    found = cells("features", cases=["softcap", "ALiBi as text"])
    assert [(cell.case, cell.causal) for cell in found] == [
        ("softcap", False),
        ("ALiBi as text", False),
        ("softcap", True),
    ]
    assert cells("features", cases=["sofcap"]) == []


@pytest.mark.parametrize("cell", cells("features"), ids=lambda cell: cell.label)
def test_a_plain_twin_has_none_of_what_costs_extra(cell):
    plain = cell.plain()
    if plain is None:
        assert cell.case in ("gqa 64/8", "d 192/128", "d 96")
    else:
        assert plain.features == []
        assert plain.causal == cell.causal
        assert plain.batch * plain.seqlen == cell.seqlen * (1 if cell.lengths else cell.batch)


def test_a_backward_counts_two_and_a_half_forwards():
    of_work = {work: cells("family", work=work)[0] for work in ("forward", "backward", "both")}
    assert {work: cell.flops / of_work["forward"].flops for work, cell in of_work.items()} == {
        "forward": 1,
        "backward": 2.5,
        "both": 3.5,
    }
    assert of_work["forward"].features == [] and of_work["both"].features == ["gradients"]
