"""kcat reading the whole topic to nowhere: the limit of reading on this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence

from dev.bench.lab import Lab
from dev.bench.process_tree import run_measured
from dev.bench.results import Sample
from dev.bench.rows import Row


def missing(row: Row, lab: Lab) -> str | None:
    """Return what is not here that it needs."""
    return None if shutil.which("kcat") else "kcat is not installed (Debian and Ubuntu: apt install kcat)"


def run(rows: Sequence[Row], lab: Lab, number: int) -> Mapping[str, Sample]:
    """Read the topic once. Always this command: half a second of it is kcat's own start and end."""
    (row,) = rows
    topic = lab.topic(row.topic)
    command = ["kcat", "-b", lab.kafka.bootstrap, "-t", topic.name, "-C", "-e", "-q", "-f", ""]
    done = run_measured(command, os.environ, watch=lab.watches)
    return {
        row.name: Sample(
            row=row.name,
            run=number,
            records=topic.records,
            value_bytes=topic.value_bytes,
            seconds=done.seconds,
            cpu_seconds=done.cpu_seconds,
            peak_rss=done.peak_rss,
            peak_pss=done.peak_pss,
            watched=done.watched,
        )
    }
