"""Result of a batch of events or of plain records, by the design of the mirror."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import GIVEN, OFFSET, OP, PARTITION, SEQUENCE
from airflow_lakestream.cdc.events.apart import StagedEvents
from airflow_lakestream.cdc.events.documents import RULES
from airflow_lakestream.cdc.events.logs import DocumentOrder, order_by_log, place_documents
from airflow_lakestream.cdc.events.sequence import with_ranks
from airflow_lakestream.cdc.keys.ties import PartitionTies
from airflow_lakestream.cdc.merge.newest import (
    NewestEvents,
    every_event,
    every_record,
    first_records,
    newest,
    newest_records,
)
from airflow_lakestream.cdc.merge.partial import PartialRecords, without_late
from airflow_lakestream.cdc.merge.repeats import RepeatedRecords
from airflow_lakestream.cdc.merge.snapshots import by_version, without_ends
from airflow_lakestream.cdc.rows import HistoryRules
from airflow_lakestream.cdc.stops import MirrorStopped, StopReason, order_of_logs_unknown

if TYPE_CHECKING:
    from airflow_lakestream.cdc.design import MirrorDesign


def ordered_events(
    design: MirrorDesign, events: pa.Table, mirror: str, topic: str, partitions: int
) -> tuple[MirrorDesign, pa.Table]:
    """Return the design with the logs after a batch, and the events in the order of the logs, or of offsets.

    Raises MirrorStopped for an unknown order.

    :param partitions: the number of the topic's partitions.
    """

    def at_event(make: Callable[..., MirrorStopped]) -> Callable[[int, str], MirrorStopped]:
        return lambda index, problem: make(
            mirror, topic, events[PARTITION][index].as_py(), events[OFFSET][index].as_py(), problem
        )

    order = None
    if design.program is not None and len(events):
        remedy = RULES[design.program].of_order
        stop = at_event(partial(_without_order, remedy))
        events, order = place_documents(events, design.document_order, design.logs, stop)
        cuts = np.flatnonzero(pc.equal(events[OP], "t").to_numpy())
        if len(cuts) and partitions > 1:
            raise stop(int(cuts[0]), "the table was truncated, and the rows of other partitions have no order with it.")
        design = replace(design, document_order=order)
    if order is not DocumentOrder.OFFSET:
        stop = at_event(order_of_logs_unknown if design.program is None else _of_other_log)
        events, logs = order_by_log(events, design.logs, stop)
        design = replace(design, logs=logs)
    # With several source tables, the end of one table's snapshot must not delete rows of the other tables.
    return design, events if design.source_tables is None else without_ends(events)


def _without_order(remedy: str, mirror: str, topic: str, partition: int, offset: int, problem: str) -> MirrorStopped:
    """Return the error for a document without a known order, with the remedy of its program."""
    return MirrorStopped(mirror, StopReason.ORDER_UNKNOWN, f"{topic}[{partition}] offset {offset}: {problem}", remedy)


def _of_other_log(mirror: str, topic: str, partition: int, offset: int, problem: str) -> MirrorStopped:
    """Return the error for a document of another binary log in unknown order with earlier documents."""
    problem = f"{topic}[{partition}] offset {offset}: the event {problem}."
    remedy = "Land a new topic in a new table, from a bootstrap on."
    return MirrorStopped(mirror, StopReason.OTHER_LOG, problem, remedy)


def newest_of_events(
    design: MirrorDesign, events: pa.Table, mirror: str, topic: str, staged: StagedEvents | None
) -> NewestEvents:
    """Return the events of a batch that change rows, and perhaps their order. Raises MirrorStopped, and ValuesApart.

    :param events: in the order of `ordered_events`.
    :param staged: the files with the values of rows, if `events` lacks the values.
    """
    key, record_key = design.key or (), design.record_key or ()
    if design.rows.keeps_versions:
        batch = every_event(events, key, mirror, topic, record_key, design.history_columns)
    else:
        batch = newest(events, key, mirror, strategy=design.rows, topic=topic, record_key=record_key, staged=staged)
    if design.program is None:
        return batch
    # Documents may be at one place: without positions all are, with them the rows of one statement.
    ties = PartitionTies(mirror, topic, key, remedy=RULES[design.program].of_order)
    ties.check_batch(by_version(events.filter(pc.not_equal(events[OP], "t")).combine_chunks()))
    return replace(batch, ties=ties)


def plain_records(
    design: MirrorDesign, events: pa.Table, mirror: str, topic: str, staged: StagedEvents | None
) -> NewestEvents:
    """Return the records of a batch that begin, change or end rows. Raises MirrorStopped for an unknown order.

    :param events: the row's columns, `OP` and `VERSION`, in any order.
    :param staged: the files with the values of rows, if `events` lacks the values.
    """
    key = design.key or ()
    if GIVEN in events.column_names and not design.keeps_absent:
        events = events.drop_columns([GIVEN])
    if design.insert_only:
        return first_records(events, RepeatedRecords(key, design.within), topic, staged)
    if SEQUENCE in events.column_names:
        (events,) = with_ranks([events])
    ties = PartitionTies(mirror, topic, key, design.sequence_by or ())
    if design.rows.keeps_versions:
        return every_record(events, ties, HistoryRules(design.history_columns, of_log=design.is_flattened))
    batch = newest_records(events, ties, strategy=design.rows, staged=staged)
    if not design.keeps_absent:
        return batch
    return replace(batch, partial=PartialRecords(without_late(by_version(events.combine_chunks()), key), key))
