"""Receipts for damaged batches: unreadable offsets are recorded as lost, and the stream goes on behind."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from airflow_lakestream.core.landing.plan import (
    DamagedBatch,
    Plan,
    check_identity,
    check_log,
    resume_plan,
)
from airflow_lakestream.core.ledger import Landing, TopicEntry
from airflow_lakestream.core.policies import OnDataLoss
from airflow_lakestream.core.ports import RecordReader, Sink, TableState, TopicSource
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.kafka.reader import KafkaReader
from airflow_lakestream.kafka.source import KafkaSource, StartAt
from airflow_lakestream.lakes import lake_of
from airflow_lakestream.tables.design import TableDesign


@dataclass(frozen=True)
class DamageReceipt:
    """Damaged batches of a topic, and the snapshot with the receipt."""

    ranges: RangeSet
    snapshot_id: int


@dataclass(frozen=True)
class ReceiptWriter:
    """Writer of a group's receipts.

    :param lake: the table's catalog, or for a Delta table its store.
    :param kafka: librdkafka configuration of the connection.
    :param where: name of the Kafka connection for errors.
    """

    lake: Any
    table: str
    group: str
    kafka: Mapping[str, Any]
    where: str
    poll_timeout: float = 30.0

    def forget(self, topics: Sequence[str] = ()) -> list[DamageReceipt]:
        """Record the group's missing offsets in damaged batches as lost, in a receipt for each topic.

        Raises InvalidArgument without damage to record or without a table, errors of planning and reading, and Conflict
        if another run came first. Receipts written before an error stay.

        :param topics: default: all topics of the group's ledger.
        """
        if not topics:
            _, table_state = self._load("a look")
            topics = sorted({identity.topic for identity in table_state.ledger.topics})
        if not topics:
            raise InvalidArgument("--topic", f"is needed: {self.group!r} has no ledger on {self.table}.")
        receipts = [receipt for receipt in map(self._forget, topics) if receipt is not None]
        if not receipts:
            raise InvalidArgument("--damaged", f"all that {self.group!r} lacks of {', '.join(topics)} can be read.")
        return receipts

    def _forget(self, topic: str) -> DamageReceipt | None:
        source = KafkaSource(self.kafka, topic, self.group, StartAt(), self.where)
        reader = KafkaReader(self.kafka, self.group, poll_timeout=self.poll_timeout, where=self.where)
        return self.write_receipt(source, reader)

    def write_receipt(self, source: TopicSource, reader: RecordReader) -> DamageReceipt | None:
        """Record the group's missing and unreadable offsets of a topic as lost; return None without damage.

        Reads all missing offsets to find the damage. The receipt is a landing without rows.
        """
        run_id = f"ledger forget {uuid.uuid4().hex}"
        sink, table_state = self._load(run_id)
        state = source.look()
        check_identity(table_state.ledger, state.identity, self.table)
        entry = table_state.ledger.entry(state.identity)
        check_log(entry, state, self.table)
        plan = resume_plan(entry, state, source.starts(state), OnDataLoss.RECORD, self.table)
        if not (damaged := find_damaged(plan, reader)):
            return None
        change = TopicEntry(lost=damaged)
        return DamageReceipt(damaged, sink.commit(Landing(run_id, run_id, {state.identity: change})))

    def _load(self, run_id: str) -> tuple[Sink, TableState]:
        design = TableDesign(pa.schema([]))
        sink = lake_of(self.table).part("sink")(self.lake, self.table, self.group, design, allow_group_overlap=True)
        table_state = sink.load(run_id)
        if not table_state.exists:
            problem = f"{self.table} does not exist yet, so there is no ledger to write a receipt into."
            raise InvalidArgument("--table", problem, 'Land what is before or behind the damage, by mode="ranges".')
        return sink, table_state


def find_damaged(plan: Plan, reader: RecordReader) -> RangeSet:
    """Read all of a plan, behind damaged batches, too; return the plan's offsets in damaged batches.

    Raises the errors of reading, and DamagedBatch for a batch without an offset of the plan to skip.
    """
    unread, damaged = plan.ranges, RangeSet()
    while unread:
        try:
            with closing(reader.read(replace(plan, ranges=unread), threading.Event())) as chunks:
                for chunk in chunks:
                    unread -= RangeSet([chunk.covers])
        except DamagedBatch as batch:
            if not (skipped := batch.ranges & unread):
                # Without an offset to skip, the next read would meet the same damage again.
                raise
            damaged |= skipped
            unread -= skipped
    return damaged
