"""Offsets of a stream's landings by partition, with holes and losses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from airflow_lakestream.ui.page.landings import TaskLanding

# Nobody can distinguish more bars.
_MOST_PARTITIONS = 200


def offsets_of(landings: Iterable[TaskLanding]) -> list[dict[str, Any]]:
    """Return by topic and partition the landed and lost ranges, as [from, until], and the holes between.

    Only the given landings count. Earlier landings are unknown, so a bar begins with the first range.
    """
    landed: dict[tuple[str, int], list[tuple[int, int]]] = {}
    lost: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for landing in landings:
        for by_topic, into in ((landing.landed, landed), (landing.lost, lost)):
            for topic, ranges in by_topic.items():
                for partition, start, until in ranges:
                    into.setdefault((topic, partition), []).append((start, until))
    bars = []
    for topic, partition in sorted(landed.keys() | lost.keys())[:_MOST_PARTITIONS]:
        landed_ranges = _merged(landed.get((topic, partition), []))
        lost_ranges = _merged(lost.get((topic, partition), []))
        known = _merged([*landed_ranges, *lost_ranges])
        bars.append(
            {
                "topic": topic,
                "partition": partition,
                "landed": landed_ranges,
                "lost": lost_ranges,
                "holes": [[end, start] for (_, end), (start, _) in pairwise(known)],
            }
        )
    return bars


def _merged(ranges: Iterable[Sequence[int]]) -> list[list[int]]:
    merged: list[list[int]] = []
    for start, until in sorted(map(tuple, ranges)):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], until)
        else:
            merged.append([start, until])
    return merged
