"""Configurations: their number, sizes and operations."""

import pytest
from contest.protocol import PROTOCOLS, Configuration, random_lengths


def configs(protocol, **selection):
    return PROTOCOLS[protocol].configs(**({"dtypes": [], "head_dims": [], "lengths": []} | selection))


def test_family_has_16k_tokens_and_hidden_2048_in_every_configuration():
    found = configs("family")
    assert len(found) == 3 * 2 * 6
    assert {(config.batch * config.seqlen, config.heads_q * config.head_dim) for config in found} == {(16384, 2048)}


def test_operations_are_those_of_the_papers():
    full, causal = configs("family", head_dims=[128], lengths=[4096])
    assert full.flops == 4 * 4 * 16 * 4096**2 * 128
    assert causal.flops == full.flops / 2


def test_a_window_counts_what_is_visible():
    config = Configuration("bf16", 2, 10, 3, 3, 64, 32, causal=True, window=4)
    visible = sum(1 for i in range(10) for j in range(10) if 0 <= i - j <= 4)
    assert config.flops == 2 * 2 * 3 * (64 + 32) * visible


def test_packed_lengths_are_the_same_each_time_and_count_each_sequence():
    lengths = random_lengths(16384)
    assert (len(lengths), sum(lengths), min(lengths) > 0) == (14, 16384, True)
    assert lengths == random_lengths(16384)
    config = next(config for config in configs("features") if config.lengths)
    assert config.flops == 4 * 16 * 128 * sum(n * n for n in lengths)


def test_features_say_what_a_library_must_offer():
    features = {(config.case, config.causal): config.features for config in configs("features")}
    assert features["gqa 64/8", False] == ["grouped heads"]
    assert features["d 192/128", True] == ["head_dim_v of its own"]
    assert features["window 1024", True] == ["window"]
    assert features["ALiBi as score_mod", False] == ["ALiBi", "score_mod and mask_mod"]


def test_cases_may_be_chosen_by_name():
    found = configs("features", cases=["softcap", "ALiBi as score_mod"])
    assert [(config.case, config.causal) for config in found] == [
        ("softcap", False),
        ("ALiBi as score_mod", False),
        ("softcap", True),
    ]
    assert configs("features", cases=["sofcap"]) == []


@pytest.mark.parametrize("config", configs("features"), ids=lambda config: config.label)
def test_a_plain_twin_has_none_of_what_costs_extra(config):
    plain = config.plain()
    if plain is None:
        assert config.case in ("gqa 64/8", "d 192/128", "d 96")
    else:
        assert plain.features == []
        assert plain.causal == config.causal
        assert plain.batch * plain.seqlen == config.seqlen * (1 if config.lengths else config.batch)


def test_a_backward_counts_two_and_a_half_forwards():
    of_work = {work: configs("family", work=work)[0] for work in ("forward", "backward", "both")}
    assert {work: config.flops / of_work["forward"].flops for work, config in of_work.items()} == {
        "forward": 1,
        "backward": 2.5,
        "both": 3.5,
    }
    assert of_work["forward"].features == [] and of_work["both"].features == ["gradients"]
