"""Plots from made-up numbers."""

import fake
import pytest
from contest.plot import colours, draw, panels

pytest.importorskip("matplotlib")


@pytest.mark.parametrize("protocol", ["family", "features", "layer", "long"])
def test_two_pictures_a_dtype(tmp_path, protocol):
    configs = fake.entries({"tessella": 600, "sdpa.cudnn": 500, "another": 1}, protocol)
    del configs[0]["results"]["another"]  # not in every configuration
    configs[0]["results"]["tessella"]["memory_bytes"] = None
    paths = draw(fake.record(configs, protocol=protocol), tmp_path)
    assert len(paths) == 2 * len({entry["configuration"]["dtype"] for entry in configs})
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_panels_are_head_dims_and_masks_and_named_cases_share_one_a_mask():
    assert len(panels(fake.entries({"tessella": 1}))) == 6
    assert list(panels(fake.entries({"tessella": 1}, "features"))) == ["full", "causal"]


def test_every_backend_has_a_colour_of_its_own():
    names = ["tessella", "sdpa.cudnn", "cpu.forward_amx", "cpu.forward_avx2", "flashinfer"]
    assert len(set(colours(names).values())) == len(names)
