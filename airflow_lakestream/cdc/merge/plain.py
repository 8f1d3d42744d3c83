"""Result of a batch of plain records, by the design of the mirror."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_lakestream.cdc.columns import GIVEN, SEQUENCE
from airflow_lakestream.cdc.events.apart import StagedEvents
from airflow_lakestream.cdc.events.sequence import with_ranks
from airflow_lakestream.cdc.keys.ties import PartitionTies
from airflow_lakestream.cdc.merge.newest import NewestEvents, every_record, first_records, newest_records
from airflow_lakestream.cdc.merge.partial import PartialRecords, without_late
from airflow_lakestream.cdc.merge.repeats import RepeatedRecords
from airflow_lakestream.cdc.merge.snapshots import by_version
from airflow_lakestream.cdc.rows import HistoryRules

if TYPE_CHECKING:
    from airflow_lakestream.cdc.design import MirrorDesign


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
    newest = newest_records(events, ties, strategy=design.rows, staged=staged)
    if not design.keeps_absent:
        return newest
    return replace(newest, partial=PartialRecords(without_late(by_version(events.combine_chunks()), key), key))
