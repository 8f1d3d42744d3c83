"""What a mirror costs: changes merged into a table of five million rows, phase by phase.

As executors and the driver do it, without Kafka and Spark, whose part is what it is for other topics. By itself:
`make bench ONLY=cdc`, or `python -m dev.bench.mirror` with a share of the rows for a quick look.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from dev.bench.figures import Figure
from dev.bench.lake import NAMESPACE, new_lake
from dev.bench.process_tree import run_measured
from dev.bench.programs.measured import BATCH
from dev.service import CHECKOUT

ROWS = 5_000_000
# What 20,000 changes a second are in a minute, and in ten seconds.
CHANGES = (1_200_000, 200_000)
# The first one is not counted.
BATCHES = 3
WANTED = 20_000
CORES = 2


def measure(folder: Path, say: Callable[[str], None], scale: float = 1) -> Iterator[Figure]:
    """Merge changes of any row, and such of new rows mostly; yield the figures."""
    rows = max(1_000, int(ROWS * scale))
    for recent in (False, True):
        for changes in CHANGES:
            case = f"{'new rows mostly' if recent else 'any row'}, {int(changes * scale):,}"
            say(f"mirror of {rows:,} rows: {case}")
            yield from _measure(folder, case, rows, max(100, int(changes * scale)), recent=recent)


def _measure(folder: Path, case: str, rows: int, changes: int, *, recent: bool) -> Iterator[Figure]:
    with new_lake(folder / f"mirror-{changes}-{recent}") as lake:
        result = lake.folder / "result.json"
        options = {"result": result, "table": f"{NAMESPACE}.orders", "folder": lake.folder, "rows": rows}
        words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
        words += ["--changes", str(changes), "--batches", str(BATCHES), *(["--recent"] if recent else [])]
        command = [sys.executable, "-m", "dev.bench.programs.mirroring", *words]
        done = run_measured(command, {**os.environ, "PYTHONPATH": str(CHECKOUT)}, timeout=3600)
        measured = json.loads(result.read_text())
    batches = measured["batches"][1:]
    rate = CORES * changes / statistics.median(batch[BATCH][1] for batch in batches)
    yield Figure(case, "changes/s by CPU of 2 cores", rate, "changes/s", f">= {WANTED:,}", rate >= WANTED)
    for phase in batches[-1]:
        wall, cpu = (statistics.median(batch.get(phase, (0, 0))[side] for batch in batches) for side in (0, 1))
        yield Figure(case, phase, wall, "s")
        yield Figure(case, f"{phase}: CPU", 1e6 * cpu / changes, "us")
    yield Figure(case, "rows", measured["rows"], "rows")
    yield Figure(case, "files", measured["files"], "files")
    yield Figure(case, "peak PSS", done.peak_pss / 2**20, "MiB")


def main() -> int:
    """Measure and print; 1 when a bound does not hold."""
    scale = float(sys.argv[1]) if len(sys.argv) > 1 else 1
    with tempfile.TemporaryDirectory() as folder:
        figures = []
        for figure in measure(Path(folder), lambda text: print(text, flush=True), scale):
            print(figure, flush=True)
            figures.append(figure)
    return 1 if any(f.holds is False for f in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
