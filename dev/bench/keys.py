"""Costs of merges into tables by key: plain records and histories, next to events of a database, dlt and PyIceberg.

As executors and the driver do it, without Kafka and Spark. By itself: `make bench ONLY=keys`.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dev.bench.figures import Figure
from dev.bench.lab import Installation
from dev.bench.lake import NAMESPACE
from dev.bench.peers.dlt import INSTALLED, environment
from dev.bench.programs.measured import BATCH

if TYPE_CHECKING:
    from dev.bench.lab import Lab

ROWS = 25_000_000
CHANGES = (10_000, 200_000)
# Of the CPU that a merge of the same changes as events of a database takes, by the kind of table.
MOST: Mapping[str, float] = {"records": 1.1, "history": 1.5, "columns": 1.5}
# Rows and changes of the peers, and the least multiple of our CPU that they take.
PEER_ROWS, PEER_CHANGES = 1_000_000, 10_000
LEAST: Mapping[str, float] = {"dlt": 20, "pyiceberg": 10}
# The first one is not counted.
BATCHES, PEER_BATCHES = 6, 2
OURS = Installation(Path(sys.executable))


def measure(lab: Lab, scale: float = 1) -> Iterator[Figure]:
    """Merge changes into a table of each kind; yield the figures. Raises AssertionError for a wrong number of rows."""
    rows = max(1_000, int(ROWS * scale))
    for changes in (max(100, int(count * scale)) for count in CHANGES):
        events = _cpu(lab, "mirroring", {"kind": "events"}, rows, changes, BATCHES)
        yield Figure(f"events, {changes:,}", "CPU of a merge", events, "s")
        for kind, most in MOST.items():
            took = _cpu(lab, "mirroring", {"kind": kind}, rows, changes, BATCHES)
            yield Figure(f"{kind}, {changes:,}", "CPU of a merge", took, "s")
            ratio = took / events
            yield Figure(f"{kind} / events, {changes:,}", "CPU", ratio, "ratio", f"<= {most:g}", ratio <= most)
    yield from _beside_peers(lab, max(1_000, int(PEER_ROWS * scale)), max(100, int(PEER_CHANGES * scale)), scale)


def _beside_peers(lab: Lab, rows: int, changes: int, scale: float) -> Iterator[Figure]:
    ours = _cpu(lab, "mirroring", {"kind": "records"}, rows, changes, BATCHES)
    yield Figure(f"records, {rows:,} rows", "CPU of a merge", ours, "s")
    if (lacking := INSTALLED.missing()) is not None:
        lab.say(f"dlt and PyIceberg are left out: {lacking}")
        return
    for peer, least in LEAST.items():
        took = _cpu(lab, "upserting", {"by": peer}, rows, changes, PEER_BATCHES, INSTALLED)
        yield Figure(f"{peer}, {rows:,} rows", "CPU of a merge", took, "s")
        ratio = took / ours
        # Of a small table, the start of a merge is most of it.
        verdict = (f">= {least:g}", ratio >= least) if scale >= 1 else (None, None)
        yield Figure(f"{peer} / records, {rows:,} rows", "CPU", ratio, "ratio", *verdict)


def _cpu(
    lab: Lab,
    program: str,
    options: Mapping[str, Any],
    rows: int,
    changes: int,
    batches: int,
    where: Installation = OURS,
) -> float:
    """Return the median CPU seconds of a merge by a program."""
    lab.say(f"{', '.join(options.values())}: {changes:,} changes of {rows:,} rows")
    with lab.lake("keys") as lake:
        arguments = {"folder": lake.folder, "table": f"{NAMESPACE}.orders", "rows": rows}
        arguments |= {"changes": changes, "batches": batches, **options}
        measured, _ = lab.run_program(program, arguments, environment(lake), where, timeout=3600)
    if measured["rows"] < rows:
        raise AssertionError(f"{options}: {measured['rows']:,} rows of {rows:,} are left")
    return statistics.median(batch[BATCH][1] for batch in measured["batches"][1:])
