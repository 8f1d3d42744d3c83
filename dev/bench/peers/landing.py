"""What runs that land in a table have in common: the sample made of what was seen of them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from dev.bench.lake import Landed
from dev.bench.process_tree import Finished
from dev.bench.results import Sample
from dev.bench.rows import Row
from dev.bench.topics import Filled


def sample_of(
    row: Row, number: int, topic: Filled, records: int, told: Mapping[str, Any], done: Finished, landed: Landed
) -> Sample:
    """Put together what the program saw of itself, what was seen of its process tree, and what is in the table."""
    commits = told["commits"]
    return Sample(
        row=row.name,
        run=number,
        records=records,
        value_bytes=topic.bytes_of(records),
        seconds=told["seconds"],
        cpu_seconds=told["cpu_seconds"],
        peak_rss=done.peak_rss,
        peak_pss=done.peak_pss,
        watched=done.watched,
        files=landed.files,
        commits=landed.commits,
        commit_seconds=statistics.median(commits) if commits else None,
        first_commit_seconds=landed.first_commit_at - told["began_at"],
    )
