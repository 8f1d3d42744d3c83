"""The offsets of a stream's landings by partition, with the holes between them and what was lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from airflow_lakestream.ui.page.landings import Landing

# More bars than these nobody tells apart.
_MOST_PARTITIONS = 200


def offsets_of(landings: Iterable[Landing]) -> list[dict[str, Any]]:
    """Return for each topic and partition its landed and lost ranges, as [from, until], and the holes between them.

    They are those of the landings given. What was landed before them is unknown here, so a bar begins with the first.
    """
    landed: dict[tuple[str, int], list[tuple[int, int]]] = {}
    lost: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for landing in landings:
        for topic, report in _by_topic(landing.report):
            for name, into in (("ranges", landed), ("lost", lost)):
                for partition, start, until in _triples(report.get(name)):
                    into.setdefault((topic, partition), []).append((start, until))
    bars = []
    for topic, partition in sorted(landed.keys() | lost.keys())[:_MOST_PARTITIONS]:
        here, gone = _merged(landed.get((topic, partition), [])), _merged(lost.get((topic, partition), []))
        told = _merged([*here, *gone])
        bars.append(
            {
                "topic": topic,
                "partition": partition,
                "landed": here,
                "lost": gone,
                "holes": [[end, start] for (_, end), (start, _) in pairwise(told)],
            }
        )
    return bars


def _by_topic(report: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    topics = report.get("topics")
    if isinstance(topics, Mapping):
        yield from ((str(topic), one) for topic, one in topics.items() if isinstance(one, Mapping))
    else:
        yield str(report.get("topic") or ""), report


def _triples(value: Any) -> Iterator[tuple[int, int, int]]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        for one in value:
            partition, start, until = one
            yield int(partition), int(start), int(until)


def _merged(ranges: Iterable[Sequence[int]]) -> list[list[int]]:
    merged: list[list[int]] = []
    for start, until in sorted(map(tuple, ranges)):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], until)
        else:
            merged.append([start, until])
    return merged
