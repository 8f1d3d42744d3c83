"""What reading a mirror costs whose rows are deleted in place, compared with one whose files are rewritten.

Twins, the same batches, in one run. By itself: `make bench ONLY=reads`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

from dev.bench.figures import Figure

if TYPE_CHECKING:
    from dev.bench.lab import Lab

COPY, IN_PLACE = "copy-on-write", "merge-on-read"
ROWS, CHANGES = 2_000_000, 2_000
BATCHES, EVERY = 50, 25
# Of what a read of rewritten files takes.
MOST = 2.0


def measure(lab: Lab, scale: float) -> Iterator[Figure]:
    """Merge and maintain; yield what each reader took, before a maintenance and after it."""
    rows, count = int(ROWS * scale), max(100, int(CHANGES * scale))
    lab.say(f"twins of {rows:,} rows, {BATCHES} batches of {count:,} changes")
    with lab.lake("reads") as lake:
        arguments = {"folder": lake.folder, "rows": rows, "changes": count, "batches": BATCHES, "every": EVERY}
        told, _ = lab.run_program("reading", arguments, os.environ)
    for look in told["looks"]:
        case = f"{look['batch']} batches, {'maintained' if look['maintained'] else 'not yet maintained'}"
        for reader, cpu in look["cpu"].items():
            ours, theirs = (median(cpu[mode]) for mode in (IN_PLACE, COPY))
            bound = (f"<= {MOST:g}", ours <= MOST * theirs) if look["maintained"] else (None, None)
            yield Figure(case, f"{reader}: in place", ours, "s")
            yield Figure(case, f"{reader}: in place / rewritten", ours / theirs, "ratio", *bound)
        for name in ("data_files", "delete_files"):
            yield Figure(case, f"{name.replace('_', ' ')} read", look["files"][IN_PLACE][name], "files")
        if look["maintained"]:
            yield Figure(case, "CPU of the maintenance", look["maintenance"]["cpu_seconds"], "s")
