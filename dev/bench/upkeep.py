"""Compaction of small files: by the worker, by Spark's `rewrite_data_files` in a warm JVM, and by `deltalake`.

Each has the same files, and makes files of the same size. By itself: `make bench ONLY=upkeep GB=10`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dev.bench.figures import Figure
from dev.bench.lake import NAMESPACE, Lake
from dev.bench.peers.spark import JARS, missing
from dev.bench.rows import ROWS
from dev.stack import HOME

if TYPE_CHECKING:
    from dev.bench.lab import Lab

# As landings each minute leave them.
FILE_BYTES = 2**20
# Tables that are compacted before the measured one, and their share of its bytes.
WARM, SHARE = 3, 0.2
# Of what Spark takes.
MOST_CPU, MOST_MEMORY = 1.2, 0.5
MIB = 2**20


@dataclass(frozen=True)
class CompactedTable:
    """Result of a compaction.

    :param peak: greatest memory of the process tree, pages that are shared counted once.
    """

    seconds: float
    cpu: float
    peak: int
    rows: int
    offsets: int
    files: int


def measure(lab: Lab, gigabytes: float) -> Iterator[Figure]:
    """Make the tables, and compact one after the other; yield the figures. Raises AssertionError for wrong rows."""
    if (lacking := missing(ROWS[0], lab)) is not None:
        raise AssertionError(lacking)
    with lab.lake("upkeep") as lake:
        delta = str(lake.folder / "delta")
        warm = [f"{NAMESPACE}.warm{number}" for number in range(WARM)]
        worker, pool, spark = (f"{NAMESPACE}.{name}" for name in ("worker", "pool", "spark"))
        _seed(lab, lake, warm, gigabytes * SHARE)
        made = _seed(lab, lake, [worker, pool, spark], gigabytes, delta)
        ways: Mapping[str, tuple[str, Sequence[str]]] = {
            "worker": ("worker", [worker]),
            "worker, 2 processes": ("pool", [pool]),
            "Spark, warm": ("spark", [*warm, spark]),
            "deltalake": ("delta", [delta]),
        }
        found = dict[str, CompactedTable]()
        for name, (by, tables) in ways.items():
            lab.say(f"{made['files']:,} files of {gigabytes:g} GB, compacted by {name}")
            found[name] = done = _compact(lab, lake, by, tables)
            if (done.rows, done.offsets) != (made["rows"], made["rows"] * (made["rows"] - 1) // 2):
                raise AssertionError(f"{name}: {done}, of {made}")
            yield from _figures(f"{name}, {gigabytes:g} GB", done, made["bytes"])
    ours = found.pop("worker")
    for name, other in found.items():
        is_bound = name.startswith("Spark")
        case = f"worker / {name}, {gigabytes:g} GB"
        for what, ratio, most in (
            ("CPU", ours.cpu / other.cpu, MOST_CPU),
            ("peak PSS", ours.peak / other.peak, MOST_MEMORY),
        ):
            yield Figure(case, what, ratio, "ratio", *((f"<= {most:g}", ratio <= most) if is_bound else (None, None)))


def _seed(lab: Lab, lake: Lake, tables: Sequence[str], gigabytes: float, delta: str = "") -> dict[str, Any]:
    arguments = {"folder": lake.folder, "table": tables[0], "twins": ",".join(tables[1:])}
    arguments |= {"bytes": int(gigabytes * 1e9), "file-bytes": FILE_BYTES}
    arguments |= {"delta": delta} if delta else {}
    return lab.run_program("small_files", arguments, os.environ, timeout=_patience(gigabytes))[0]


def _compact(lab: Lab, lake: Lake, by: str, tables: Sequence[str]) -> CompactedTable:
    jars = HOME / "jars" / JARS.name
    arguments = {"folder": lake.folder, "by": by, "tables": ",".join(tables), "jars": jars}
    figures, done = lab.run_program("compacting", arguments, os.environ, timeout=3600)
    return CompactedTable(
        seconds=figures["seconds"],
        cpu=figures["cpu_seconds"],
        peak=done.peak_pss,
        rows=figures["rows"],
        offsets=figures["offsets"],
        files=figures["files"],
    )


def _patience(gigabytes: float) -> float:
    return 600 + 600 * gigabytes


def _figures(case: str, done: CompactedTable, size: int) -> Iterator[Figure]:
    yield Figure(case, "MB/s", size / 1e6 / done.seconds, "MB/s")
    yield Figure(case, "CPU for a GB", 1e9 * done.cpu / size, "s")
    yield Figure(case, "peak PSS", done.peak / MIB, "MiB")
    yield Figure(case, "files", done.files, "files")
