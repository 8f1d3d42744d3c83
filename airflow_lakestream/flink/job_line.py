"""The jobs of a landing since one began without a state, as they are noted: what a publication proves its branch by."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from airflow_lakestream.core.codec import decode_ranges, encode_ranges
from airflow_lakestream.core.ledger import union
from airflow_lakestream.core.publishing.branch import Line
from airflow_lakestream.core.ranges import RangeSet


@dataclass(frozen=True)
class JobLine:
    """Jobs, of which the first began without a state and each other one with that of the one before.

    :param since: the sequence number of the table's newest snapshot when the first one began.
    :param jobs: their ids.
    :param passed: offsets that a checkpoint had behind it while Kafka still had them, as text.
    """

    since: int = 0
    jobs: tuple[str, ...] = ()
    passed: str = ""

    @classmethod
    def parse(cls, text: str, job: str) -> JobLine:
        """Return what was written down by `str`; of a job that was noted before lines were, this job alone."""
        if not text:
            return cls(jobs=(job,))
        since, jobs, passed = json.loads(text)
        return cls(since, tuple(jobs), passed)

    def __str__(self) -> str:
        return json.dumps([self.since, list(self.jobs), self.passed])

    def line(self, topic: str, begins: Mapping[int, int]) -> Line:
        """Return what a publication is told.

        :param begins: by partition, where the first one began.
        """
        return Line(self.since, begins, decode_ranges(self.passed, topic))

    def restored(self, job: str, topic: str, ends: Mapping[int, int]) -> JobLine:
        """Return the line with a job more, which begins at these offsets: what is behind them is read once more."""
        there = union(RangeSet.of(topic, p, 0, end) for p, end in ends.items())
        return replace(self._passed(topic, decode_ranges(self.passed, topic) & there), jobs=(*self.jobs, job))

    def with_passed(self, topic: str, ends: Mapping[int, int], lows: Mapping[int, int]) -> JobLine:
        """Return the line after a checkpoint.

        :param ends: by partition, the checkpoint's next offset.
        :param lows: by partition, the log's start, looked up after the checkpoint was complete.
        """
        seen = union(RangeSet.of(topic, p, lows[p], end) for p, end in ends.items() if lows.get(p, end) < end)
        return self._passed(topic, decode_ranges(self.passed, topic) | seen)

    def _passed(self, topic: str, ranges: RangeSet) -> JobLine:
        return replace(self, passed=encode_ranges(ranges, topic))
