"""The chart of the table; drawn in the environment of the peers, which has matplotlib: `python -m dev.bench.chart`.

Reads the results as plain JSON, since none of the project's own packages are there.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dev.bench.rows import ROWS, Row

OURS, LIMIT, PEERS = "#1f77b4", "#9a9a9a", "#d08a2e"
_COLOURS = {"extract": OURS, "landing_app": OURS, "kcat": LIMIT}


@dataclass(frozen=True)
class Bar:
    """One row of the table: its median rate, and how far its runs lie apart."""

    row: Row
    rates: Sequence[float]
    bytes_each: float

    @property
    def median(self) -> float:
        """Records a second."""
        return statistics.median(self.rates)


def main() -> None:
    """Draw."""
    source, target = map(Path, sys.argv[1:3])
    bars = read(json.loads(source.read_text())["samples"])
    small = [bar for bar in bars if bar.row.topic in ("json", "avro", "protobuf", "json-bad") and bar.row.most != 1_000]
    large = [bar for bar in bars if bar.row.topic.endswith(("-1k", "mib"))]
    panels = [(small, "200 B records: thousand records per second", 1 / 1000)] if small else []
    panels += [(large, "larger records: MB per second", None)] if large else []
    heights = [len(bars) for bars, *_ in panels]
    figure = Figure(figsize=(10, 1.2 + 0.34 * sum(heights)), layout="constrained")
    axes = figure.subplots(len(panels), 1, height_ratios=heights, squeeze=False)
    for axis, (chosen, title, unit) in zip(axes[:, 0], panels, strict=True):
        draw(axis, chosen, title, unit)
    figure.savefig(target, dpi=110)


def read(samples: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """Return a bar for each row that was measured, in the table's order."""
    bars = []
    for row in ROWS:
        runs = [sample for sample in samples if sample["row"] == row.name]
        # As in `bounds.undisturbed`.
        runs = [sample for sample in runs if not sample["watched"]] or runs
        if runs:
            rates = [sample["records"] / sample["seconds"] for sample in runs]
            bars.append(Bar(row, rates, runs[0]["value_bytes"] / runs[0]["records"]))
    return bars


def draw(axis: Axes, bars: Sequence[Bar], title: str, unit: float | None) -> None:
    """Draw one panel: a bar for the median, a line from the slowest run to the fastest, and the number beside it.

    :param unit: what a record counts; None for the megabytes of its value.
    """
    for place, bar in enumerate(bars):
        each = bar.bytes_each / 1e6 if unit is None else unit
        value, low, high = (rate * each for rate in (bar.median, min(bar.rates), max(bar.rates)))
        axis.barh(place, value, color=_COLOURS.get(bar.row.peer, PEERS), height=0.7)
        axis.plot([low, high], [place, place], color="black", linewidth=1.4, solid_capstyle="butt")
        axis.annotate(
            f"{value:,.0f}", (high, place), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9
        )
    axis.set_yticks(range(len(bars)), [bar.row.title for bar in bars], fontsize=9)
    axis.invert_yaxis()
    axis.margins(x=0.1, y=0.01)
    axis.set_title(title, loc="left", fontsize=11)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(axis="x", labelsize=9)


if __name__ == "__main__":
    main()
