"""The bar of a cell: live cuDNN times what the fastest library reached beside cuDNN when all were measured."""

from __future__ import annotations

import json
import pathlib
from typing import Any

RIVAL = "sdpa.cudnn"
FILE = pathlib.Path(__file__).with_name("h200_bars.json")


class Bars:
    """Ratios by cell; of one kind of GPU."""

    def __init__(self, path: pathlib.Path = FILE) -> None:
        recorded = json.loads(path.read_text(encoding="utf-8"))
        self.gpu: str = recorded["gpu"]
        self._ratios = {self._key(row): row["ratio"] for row in recorded["rows"]}

    @staticmethod
    def _key(cell: dict[str, Any]) -> tuple[Any, ...]:
        return cell["case"], cell["head_dim"], cell["causal"], cell["seqlen"]

    @staticmethod
    def _is_of_family(cell: dict[str, Any]) -> bool:
        """Whether a cell without a name has the size that the recorded ones have: 16k tokens, hidden 2048."""
        return bool(cell["batch"] * cell["seqlen"] == 16384 and cell["heads_q"] * cell["head_dim"] == 2048)

    def rate(self, entry: dict[str, Any], gpu: str) -> float | None:
        """FLOP/s that a measured cell is held to; None where there is no bar: another GPU or cell, or no live cuDNN."""
        ratio = self._ratios.get(self._key(entry["cell"]))
        live = entry["results"].get(RIVAL)
        cell = entry["cell"]
        if gpu != self.gpu or cell["dtype"] != "bf16" or ratio is None or live is None:
            return None
        if cell.get("work", "forward") != "forward":
            return None
        if not cell["case"] and not self._is_of_family(cell):
            return None
        return float(ratio * live["rate"])
