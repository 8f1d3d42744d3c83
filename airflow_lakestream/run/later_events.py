"""Events of a topic that a mirror has not landed: their keys, and whether all events of earlier changes are there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.audit.keyed import KeyedTable
from airflow_lakestream.audit.log import AuditStopped
from airflow_lakestream.audit.run import Audit
from airflow_lakestream.cdc.columns import OLD, OP, READ, READ_LAST, TIME
from airflow_lakestream.cdc.events.decoder import EventPayload
from airflow_lakestream.cdc.events.provenance import OldKeyState, expanded
from airflow_lakestream.cdc.merge.repair import is_among
from airflow_lakestream.cdc.rows import RowStrategy
from airflow_lakestream.cdc.stops import MirrorStopped
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.landing.plan import DamagedBatch, Plan, TopicState
from airflow_lakestream.core.ledger import TopicIdentity, union
from airflow_lakestream.core.ports import OffsetsGone
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.decode.connect.debezium_own import own_record
from airflow_lakestream.decode.values.outcome import pick
from airflow_lakestream.kafka.reader import KafkaReader
from airflow_lakestream.kafka.source import KafkaSource, StartAt
from airflow_lakestream.tables.row_hashes import Hashes

if TYPE_CHECKING:
    from airflow_lakestream.audit.source_comparison import RowDigests

_POLL_S = 1.0
_SEVERAL = (pa.array(["t", READ_LAST]), pa.array([READ, READ_LAST]))


@dataclass
class LaterKeys:
    """The wanted keys with a later event, as hashes; `reason` is why there may be more events, or None."""

    keys: set[int] = field(default_factory=set)
    reason: str | None = None


class LaterEvents:
    """Reader of the events that a mirror has not landed.

    :param config: the mirror's configuration, for decoding.
    :param table: the mirror, for its columns and its key.
    :param patience: seconds to wait for an event.
    """

    def __init__(
        self,
        audit: Audit,
        config: MirrorConfig,
        table: KeyedTable,
        identity: TopicIdentity,
        digests: RowDigests,
        patience: float,
    ) -> None:
        payload = config.payload
        assert isinstance(payload, EventPayload), "it is a mirror of events"
        # With the rows of a history, events have their times.
        names = replace(payload.names, rows=RowStrategy.HISTORY)
        own = set(config.mirror.rows.columns.names)
        columns = pa.schema([one for one in table.columns if one.name not in own])
        self._decoder = replace(payload, key=table.key, names=names, stops=False).decoder(columns)
        self._stop, self._identity, self._digests, self._patience = audit.stop, identity, digests, patience
        kafka, group, where = audit.kafka, audit.consumer_group, audit.where
        self._source = KafkaSource(kafka, identity.topic, group, StartAt(), where, notes_refusals=False)
        self._reader = KafkaReader(kafka, group, poll_timeout=audit.poll_timeout, where=where, parts=payload.parts)

    def read(self, landed: RangeSet, wanted: Hashes, at: int) -> LaterKeys:
        """Return the wanted keys with an event that is not landed.

        Until each partition has an event of a change after the time `at`, an earlier change may come into the topic
        later: the topic is read again, as long as the patience lasts.

        :param wanted: hashes of keys, which rise.
        :param at: a time of the database, in milliseconds.
        """
        topic, found, done = self._identity.topic, LaterKeys(), landed
        newest: dict[int, int] = {}
        deadline = time.monotonic() + self._patience
        while True:
            state = self._source.look()
            found.reason = self._problem(state, landed)
            if found.reason is not None:
                return found
            begins = self._begins(state, landed)
            there = union(RangeSet.of(topic, p, begins[p], one.end) for p, one in state.marks.items())
            try:
                for partition, covered, rows in self._events(Plan(state, there - done)):
                    done |= covered
                    found.keys |= self._keys_of(rows, wanted)
                    newest[partition] = max(newest.get(partition, 0), _newest(rows))
            except (MirrorStopped, DamagedBatch, OffsetsGone, UnreadableEvent) as e:
                found.reason = f"later events can't be read ({e})."
                return found
            # Times of events are in microseconds.
            if all(newest.get(p, 0) > at * 1000 for p in state.marks) or len(found.keys) == len(wanted):
                return found
            if time.monotonic() > deadline:
                found.reason = (
                    f"no event of a later change in each partition of {topic} shows that theirs are not on the way. "
                    "Audit again after a further change; if no event of it comes, the connector does not run."
                )
                return found
            if self._stop.wait(_POLL_S):
                raise AuditStopped

    def _problem(self, state: TopicState, landed: RangeSet) -> str | None:
        """Return why the events after the landed ones can't be read, or None."""
        topic = self._identity.topic
        if state.identity != self._identity:
            return f"{topic} was created again."
        begins = self._begins(state, landed)
        gone = union(RangeSet.of(topic, p, begins[p], one.low) for p, one in state.marks.items()) - landed
        return f"Kafka has no longer the events of {gone}, which were not landed." if gone else None

    def _begins(self, state: TopicState, landed: RangeSet) -> dict[int, int]:
        """Return the first landed offset of each partition: a mirror may have begun after older events."""
        topic = self._identity.topic
        firsts = {p: [one.from_offset for one in landed.of_partition(topic, p)] for p in state.marks}
        return {p: min(firsts[p], default=marks.low) for p, marks in state.marks.items()}

    def _events(self, plan: Plan) -> Iterator[tuple[int, RangeSet, pa.Table]]:
        """Yield the events of a plan, with their partition and offsets. Raises UnreadableEvent."""
        if not plan.ranges:
            return
        with closing(self._reader.read(plan, self._stop)) as chunks:
            for chunk in chunks:
                # A tombstone comes after the deletion of its row.
                events = pick(chunk.batch, np.flatnonzero(chunk.batch.values.is_valid().to_numpy(zero_copy_only=False)))
                decoded = self._decoder.decode(events)
                bad = [one for one in decoded.bad if own_record(events.values[one.index].as_py()) is None]
                if bad:
                    place = f"partition {chunk.covers.partition}, offset {events.offsets[bad[0].index]}"
                    raise UnreadableEvent(f"{place}: {bad[0].reason}")
                yield chunk.covers.partition, RangeSet([chunk.covers]), expanded(decoded.rows)

    def _keys_of(self, rows: pa.Table, wanted: Hashes) -> set[int]:
        """Return the wanted keys of events; all of them for an event of many rows, or of an unknown one."""
        is_unknown = OLD in rows.column_names and pc.any(pc.equal(rows[OLD], str(OldKeyState.UNKNOWN))).as_py()
        if is_unknown or pc.any(pc.is_in(rows[OP], _SEVERAL[0])).as_py():
            return set(wanted.tolist())
        hashes = self._digests.of_keys(rows)
        return set(hashes[is_among(hashes, wanted)].tolist())


class UnreadableEvent(Exception):
    """An event that can't be decoded."""


def _newest(rows: pa.Table) -> int:
    """Return the time of the newest event of the log, in microseconds; 0 without one."""
    streamed = rows.filter(pc.invert(pc.fill_null(pc.is_in(rows[OP], _SEVERAL[1]), False)))
    return int(pc.max(streamed[TIME]).as_py() or 0)
