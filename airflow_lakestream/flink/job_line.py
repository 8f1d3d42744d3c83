"""The noted line of a landing's jobs since a job without a state, for the proof of a publication."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from airflow_lakestream.core.codec import decode_ranges, encode_ranges
from airflow_lakestream.core.ledger import union
from airflow_lakestream.core.publishing.branch import EngineJobLine
from airflow_lakestream.core.ranges import RangeSet


@dataclass(frozen=True)
class JobLine:
    """A line of jobs: the first began without a state, each later job with the state of the job before.

    :param since: the sequence number of the table's newest snapshot when the first job began.
    :param jobs: the jobs' ids.
    :param passed: offsets that a checkpoint had behind it while Kafka still had them, as text.
    """

    since: int = 0
    jobs: tuple[str, ...] = ()
    passed: str = ""

    @classmethod
    def parse(cls, text: str, job: str) -> JobLine:
        """Return the line written by `str`; for a job noted before lines existed, a line of this job alone."""
        if not text:
            return cls(jobs=(job,))
        since, jobs, passed = json.loads(text)
        return cls(since, tuple(jobs), passed)

    def __str__(self) -> str:
        return json.dumps([self.since, list(self.jobs), self.passed])

    def line(self, topic: str, begins: Mapping[int, int]) -> EngineJobLine:
        """Return the line for a publication.

        :param begins: by partition, the first job's start.
        """
        return EngineJobLine(self.since, begins, decode_ranges(self.passed, topic))

    def restored(self, job: str, topic: str, ends: Mapping[int, int]) -> JobLine:
        """Return the line with a further job, beginning at these offsets; the offsets behind are read again."""
        below_ends = union(RangeSet.of(topic, p, 0, end) for p, end in ends.items())
        return replace(self._passed(topic, decode_ranges(self.passed, topic) & below_ends), jobs=(*self.jobs, job))

    def with_passed(self, topic: str, ends: Mapping[int, int], lows: Mapping[int, int]) -> JobLine:
        """Return the line after a checkpoint.

        :param ends: by partition, the checkpoint's next offset.
        :param lows: by partition, the log's start, looked up after the checkpoint was complete.
        """
        passed = union(RangeSet.of(topic, p, lows[p], end) for p, end in ends.items() if lows.get(p, end) < end)
        return self._passed(topic, decode_ranges(self.passed, topic) | passed)

    def _passed(self, topic: str, ranges: RangeSet) -> JobLine:
        return replace(self, passed=encode_ranges(ranges, topic))
