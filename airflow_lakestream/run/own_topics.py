"""Debezium's own topics in a regex's matches: recognized by content, and not landed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.formats import ValueEnvelope
from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.landing.plan import Plan, TopicState
from airflow_lakestream.core.ledger import union
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.decode.connect.debezium_own import own_record, own_schema
from airflow_lakestream.exceptions import LakestreamError, Terminal
from airflow_lakestream.registry.client import RegistryClient

log = logging.getLogger(__name__)

# Offsets looked at, at the beginning and at the end of each partition.
_LOOKED_AT = 20
_HEADER = 5


@dataclass(frozen=True)
class OwnTopics:
    """Check for topics with only Debezium's own records."""

    config: ExtractConfig

    def is_left_out(self, topic: str, job: LandingJob, error: LakestreamError | None = None) -> bool:
        """Return whether all records looked at are Debezium's own; if all are, log the topic as left out.

        :param error: the topic's failure. An error that a retry may fix is not a matter of the content.
        """
        if self.config.envelope != ValueEnvelope.DEBEZIUM or not isinstance(error, Terminal | None):
            return False
        try:
            kinds = self.find_kinds(job)
        except LakestreamError as e:
            log.warning("The topic's content can't be examined: %s", e)
            return False
        if kinds:
            log.info("%s is left out: it contains %s of Debezium's own, not a table's events.", topic, kinds)
        return bool(kinds)

    def find_kinds(self, job: LandingJob) -> str:
        """Return the kinds of the oldest and the newest records of the job's topic, as text.

        Empty if one of them may be a table's event, or without records. Raises the errors of reading.
        """
        values = list(self._values(job))
        kinds = [self._kind(value) for value in values]
        return "" if None in kinds else " and ".join(sorted({kind for kind in kinds if kind}))

    def _kind(self, value: bytes) -> str | None:
        registry = self.config.payload.registry
        if registry is None or value[:1] != b"\0" or len(value) < _HEADER:
            return own_record(value)
        schema = RegistryClient(registry).schema(int.from_bytes(value[1:_HEADER], "big"))
        return own_schema(schema.text)

    def _values(self, job: LandingJob) -> Iterator[bytes]:
        state = job.source.look()
        plan = Plan(state, _ends(state))
        if not plan.ranges:
            return
        with closing(job.reader.read(plan, job.stop)) as chunks:
            for chunk in chunks:
                yield from (value for value in chunk.batch.values.to_pylist() if value is not None)


def _ends(state: TopicState) -> RangeSet:
    topic = state.identity.topic
    parts = []
    for p, marks in state.marks.items():
        for low, end in ((marks.low, min(marks.low + _LOOKED_AT, marks.end)), (marks.end - _LOOKED_AT, marks.end)):
            if max(low, marks.low) < end:
                parts.append(RangeSet.of(topic, p, max(low, marks.low), end))
    return union(parts)
