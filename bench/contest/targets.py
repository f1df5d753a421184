"""The speed that a configuration should reach: live cuDNN times the recorded ratio of the fastest library to cuDNN."""

from __future__ import annotations

import json
import pathlib
from typing import Any

BASELINE = "sdpa.cudnn"
FILE = pathlib.Path(__file__).with_name("h200_targets.json")


class Targets:
    """Ratios by configuration; of one kind of GPU."""

    def __init__(self, path: pathlib.Path = FILE) -> None:
        recorded = json.loads(path.read_text(encoding="utf-8"))
        self.gpu: str = recorded["gpu"]
        self._ratios = {self._key(row): row["ratio"] for row in recorded["rows"]}

    @staticmethod
    def _key(config: dict[str, Any]) -> tuple[Any, ...]:
        return config["case"], config["head_dim"], config["causal"], config["seqlen"]

    @staticmethod
    def _is_of_family(config: dict[str, Any]) -> bool:
        """Whether a configuration without a name has the size that the recorded ones have: 16k tokens, hidden 2048."""
        return bool(config["batch"] * config["seqlen"] == 16384 and config["heads_q"] * config["head_dim"] == 2048)

    def rate(self, entry: dict[str, Any], gpu: str) -> float | None:
        """FLOP/s that a measured configuration should reach.

        None where there is no target: another GPU or configuration, or no live cuDNN.
        """
        ratio = self._ratios.get(self._key(entry["configuration"]))
        live = entry["results"].get(BASELINE)
        config = entry["configuration"]
        if gpu != self.gpu or config["dtype"] != "bf16" or ratio is None or live is None:
            return None
        if config.get("work", "forward") != "forward":
            return None
        if not config["case"] and not self._is_of_family(config):
            return None
        return float(ratio * live["rate"])
