"""Result of a batch of change events: each key's last event, with sources for left-out values.

Pure: Arrow in, Arrow out. The table's earlier state is unknown here; the result has the values to take from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import (
    COMMIT,
    GIVEN,
    OF_EVENTS,
    OFFSET,
    OP,
    PARTITION,
    POSITION,
    TIME,
    TRANSACTION,
    VERSION,
    order_columns,
)
from airflow_lakestream.cdc.events.apart import StagedEvents, is_staged
from airflow_lakestream.cdc.events.provenance import is_serial
from airflow_lakestream.cdc.keys.guards import DeletionGuard, GuardCheck, GuardKind, fits
from airflow_lakestream.cdc.keys.identity import Key, by_place, find_keys, greatest_of_each, keys_of
from airflow_lakestream.cdc.keys.images import PreviousEvents, image_columns, images, is_placeholder, zero_keys
from airflow_lakestream.cdc.keys.order import settled
from airflow_lakestream.cdc.keys.ties import PartitionTies
from airflow_lakestream.cdc.merge.left_out import ValueSource, befores, sources
from airflow_lakestream.cdc.merge.partial import PartialRecords
from airflow_lakestream.cdc.merge.repeats import RepeatedRecords
from airflow_lakestream.cdc.merge.snapshots import Version, by_version, is_gone, is_op, versions, with_ends
from airflow_lakestream.cdc.rows import HistoryRules, RowStrategy, VersionCut
from airflow_lakestream.cdc.stops import RESNAPSHOT, MirrorStopped, StopReason
from airflow_lakestream.tables.rising import Numbers


class KeyMissing(MirrorStopped):
    """A change event without a value in a column of the key."""

    def __init__(self, table: str, topic: str, key: Sequence[str], partition: int, offset: int) -> None:
        super().__init__(
            table,
            StopReason.KEY_NOT_SENT,
            f"{topic}[{partition}] offset {offset}: the change event has no value in {', '.join(key)}, so which row it "
            "changes is unknown.",
            "Is the key right? The database's table needs a primary key, or REPLICA IDENTITY FULL and a key without "
            f"NULL. If the key has changed: {RESNAPSHOT[0].lower()}{RESNAPSHOT[1:]}",
        )


@dataclass(frozen=True)
class NewestEvents:
    """Each key's last event, in the order of versions, and the last truncation before these events.

    :param rows: the last events. A row to be marked as deleted has the values of the event before its deletion, if the
        batch has one. The operation is `t` if a truncation deleted the row.
    :param contents: for each row the version of the event that has the row's values.
    :param truncated: the last truncation in the batch, or None.
    :param sources: the source of a missing value, by a row's index and a column's name.
    :param befores: for a deletion that ends a partition's events, by the row's index, the sources of the values that
        the next event may leave out.
    :param snapshots: the marks of snapshots that end here, see `cdc.merge.snapshots`; each counts as a truncation.
    :param guards: by a row's index, the conditions on the table's row of the same key.
    :param staged: the staged events, if executors read the values: `rows` then have key, operation, version, `PLACE`.
    :param ties: for events of plain records, the check of their order; None for events of a database.
    :param partial: all records, if records may lack fields.
    :param repeats: finds the records that change nothing, if rows of the table stay as they are.
    :param history: the rules of a history of rows; then `rows` are all records, and `guards` are by their indices.
    """

    rows: pa.Table
    contents: pa.Table
    truncated: Version | None = None
    sources: Mapping[tuple[int, str], ValueSource] = field(default_factory=dict)
    befores: Mapping[int, Mapping[str, ValueSource]] = field(default_factory=dict)
    snapshots: Sequence[Version] = ()
    guards: Mapping[int, Sequence[DeletionGuard]] = field(default_factory=dict)
    topic: str = ""
    staged: StagedEvents | None = None
    ties: PartitionTies | None = None
    partial: PartialRecords | None = None
    repeats: RepeatedRecords | None = None
    history: HistoryRules | None = None


def newest(
    events: pa.Table,
    key: Sequence[str],
    table: str = "the table",
    *,
    strategy: RowStrategy = RowStrategy.CURRENT,
    topic: str = "",
    record_key: Sequence[str] = (),
    staged: StagedEvents | None = None,
) -> NewestEvents:
    """Reduce the events of a batch to the last event of each key. Raises MirrorStopped, and ValuesApart.

    ValuesApart is raised only with `staged`, if a decision needs the values of rows.

    :param events: the row's columns, `OP` and `VERSION`, in any order.
    :param key: the columns of the mirror's key.
    :param strategy: the rows of a key; if deleted rows stay, a deletion has the values of the row before.
    :param record_key: the columns of the records' keys, which every deletion has.
    :param staged: the files with the values of rows, if `events` lacks the values.
    """
    # 1. Sort by version, with a truncation for each snapshot's end.
    events, snapshots = with_ends(events)
    rows = by_version(events.combine_chunks())
    # 2. Only the events after the last truncation count. If deleted rows stay, a truncation deletes each row before.
    truncated = None
    cuts = np.flatnonzero(is_op(rows, "t")).tolist()
    if cuts:
        truncated = versions(rows.slice(cuts[-1], 1))[0]
        rows = _with_truncated(rows, cuts, key) if strategy.keeps_deleted else rows.slice(cuts[-1] + 1)
    _check_keys(rows, key, table, topic)
    # 3. Put transactions with several rows of one key in order, and guard deletions without a key.
    judge = GuardCheck(table, topic, key)
    in_order = settled(rows, key, record_key)
    rows = in_order.rows
    sent = _sent_guards(rows, key, judge)
    # 4. Take each key's last event, and the event with the row's values.
    last, contents = _last_of_each(rows, key)
    if not strategy.keeps_deleted:
        contents = last
    newest_rows = _with_contents(rows, last, contents)
    # 5. Find sources for left-out values, and for values that the next event after the batch may leave out.
    value_sources = sources(rows, newest_rows, contents, key)
    deletes = {index: int(last[index]) for index in _last_deletes(rows, last)}
    old_values = befores(rows, deletes, key, rows.schema if staged is None else staged.columns)
    # 6. Collect the guards, and drop the columns that only the steps above need.
    unneeded = [name for name in OF_EVENTS if name in newest_rows.column_names and name != OP]
    content_versions = rows.select(VERSION).take(pa.array(contents))
    guards = _guards(newest_rows, last, key, sent, in_order.guards, judge)
    return NewestEvents(
        rows=newest_rows.drop_columns(unneeded),
        contents=content_versions,
        truncated=truncated,
        sources=value_sources,
        befores=old_values,
        snapshots=snapshots,
        guards=guards,
        topic=topic,
        staged=staged,
    )


def newest_records(
    events: pa.Table,
    ties: PartitionTies,
    *,
    strategy: RowStrategy = RowStrategy.CURRENT,
    staged: StagedEvents | None = None,
) -> NewestEvents:
    """Reduce plain records of a batch to the last record of each key. Raises MirrorStopped for an unknown order.

    A record has the whole row, and belongs to no transaction: nothing has to be settled, guarded or completed.

    :param events: the row's columns, `OP` and `VERSION`, in any order.
    :param ties: checks the order, and has the columns of the key.
    :param strategy: the rows of a key; if deleted rows stay, a deletion has the values of the record before.
    :param staged: the files with the values of rows, if `events` lacks the values.
    """
    rows = by_version(events.combine_chunks())
    _check_keys(rows, ties.key, ties.table, ties.topic)
    ties.check_batch(rows)
    last, contents = _last_of_each(rows, ties.key)
    if not strategy.keeps_deleted:
        contents = last
    newest_rows = _with_contents(rows, last, contents)
    content_versions = rows.select(order_columns(rows.column_names)).take(pa.array(contents))
    newest_rows = newest_rows.drop_columns([GIVEN] if GIVEN in newest_rows.column_names else [])
    return NewestEvents(newest_rows, content_versions, topic=ties.topic, staged=staged, ties=ties)


def every_record(events: pa.Table, ties: PartitionTies, history: HistoryRules) -> NewestEvents:
    """Return all plain records of a batch in order, for the history of rows. Raises MirrorStopped.

    :param events: the row's columns, `OP` and `VERSION`, in any order.
    :param ties: has the columns of the key, and checks the order.
    """
    rows = by_version(events.combine_chunks())
    _check_keys(rows, ties.key, ties.table, ties.topic)
    return NewestEvents(rows, rows.select(VERSION), topic=ties.topic, ties=ties, history=history)


def every_event(
    events: pa.Table, key: Sequence[str], table: str, topic: str, record_key: Sequence[str], columns: tuple[str, ...]
) -> NewestEvents:
    """Return all events of a batch in the order of the database's log, for the history of rows. Raises MirrorStopped.

    :param events: the row's columns, `OP`, `TIME` and `VERSION`, in any order.
    :param key: the columns of the mirror's key.
    :param record_key: the columns of the records' keys, which every deletion has.
    :param columns: the columns whose changes begin versions; empty for all events.
    """
    events, snapshots = with_ends(events)
    rows = by_version(events.combine_chunks())
    truncations = np.flatnonzero(is_op(rows, "t"))
    cut_rows = rows.select([*VERSION, TIME]).take(pa.array(truncations))
    cuts = tuple(map(VersionCut, versions(cut_rows), cut_rows[TIME].to_pylist()))
    rows = _with_truncated(rows, truncations.tolist(), key) if cuts else rows
    _check_keys(rows, key, table, topic)
    judge = GuardCheck(table, topic, key)
    in_order = settled(rows, key, record_key)
    rows = in_order.rows
    guards = {index: [guard] for index, guard in in_order.guards.items()}
    for index, key_ in find_keys(rows, key, sent := _sent_guards(rows, key, judge)):
        if rows[OP][index].as_py() == "d" and versions(rows.slice(index, 1))[0][:2] == sent[key_].since:
            guards.setdefault(index, []).append(sent[key_])
    moved = tuple(_last_deletes(rows, np.arange(len(rows))))
    kept = (OP, TIME)
    rows = rows.drop_columns([name for name in OF_EVENTS if name in rows.column_names and name not in kept])
    truncated = cuts[-1].version if cuts else None
    rules = HistoryRules(columns, of_log=True, cuts=cuts, moved=moved)
    return NewestEvents(
        rows, rows.select(VERSION), truncated, snapshots=snapshots, guards=guards, topic=topic, history=rules
    )


def first_records(events: pa.Table, repeats: RepeatedRecords, topic: str, staged: StagedEvents | None) -> NewestEvents:
    """Reduce plain records of a batch to the first record of each key, which stays.

    Records of several partitions have no order: those of the batch's lowest partition count as the first. With
    `repeats.within`, the table's rows decide which records are first ones: then all records are returned.

    :param events: the row's columns, `OP` and `VERSION`, in any order.
    :param staged: the files with the values of rows, if `events` lacks the values.
    """
    rows = events.combine_chunks()
    first = rows.take(pc.sort_indices(rows, sort_keys=[(PARTITION, "ascending"), (OFFSET, "ascending")]))
    if repeats.within is None:
        (negated,) = greatest_of_each(by_place(first, repeats.key), -np.arange(len(first)))
        first = first.take(pa.array(np.sort(-negated)))
    return NewestEvents(first, first.select(VERSION), topic=topic, staged=staged, repeats=repeats)


def _guards(
    newest_rows: pa.Table,
    last: Numbers,
    key: Sequence[str],
    sent: Mapping[Key, DeletionGuard],
    in_order: Mapping[int, DeletionGuard],
    judge: GuardCheck,
) -> dict[int, list[DeletionGuard]]:
    """Return the guards by the index of each key's last event. Raises MirrorStopped if no row of the table can decide.

    :param last: the index of each key's last event among the events.
    :param sent: from `_sent_guards`.
    :param in_order: from `settled`, by the index of an event.
    """
    guards: dict[int, list[DeletionGuard]] = {}
    index_of = {int(event): index for index, event in enumerate(last)} if in_order else {}
    # A guard of an earlier event is not needed: a later event of the key has the whole row.
    for event, guard in in_order.items():
        if event in index_of:
            if guard.kind is GuardKind.UNKNOWN:
                raise judge.unknown(guard)
            guards.setdefault(index_of[event], []).append(guard)
    for index, key_ in find_keys(newest_rows, key, sent):
        guards.setdefault(index, []).append(sent[key_])
    return guards


def _with_truncated(rows: pa.Table, cuts: Sequence[int], key: Sequence[str]) -> pa.Table:
    """Return the events with each truncation replaced by deletions of the rows created before, with the operation `t`.

    :param cuts: the indices of the truncations.
    """
    parts, start = [], 0
    for cut in cuts:
        part = rows.slice(start, cut - start)
        deleted = part.take(pa.array(_last_of_each(part, key)[0]))
        deleted = deleted.filter(pa.array(~is_gone(deleted)))
        for name in (OP, *VERSION, *({TIME} & {*deleted.column_names})):
            of_truncation = pa.repeat(rows[name][cut], len(deleted))
            deleted = deleted.set_column(deleted.column_names.index(name), rows.schema.field(name), of_truncation)
        parts += [part, deleted]
        start = cut + 1
    return pa.concat_tables([*parts, rows.slice(start)]).combine_chunks()


def _last_deletes(rows: pa.Table, last: Numbers) -> list[int]:
    """Return the indices in `last` of deletions that are the last event of a partition in this batch."""
    ends = rows.select([PARTITION, OFFSET]).group_by(PARTITION).aggregate([(OFFSET, "max")])
    deletes = np.flatnonzero(is_op(rows, "d")[last])
    partitions, offsets = (rows[name].to_numpy()[last[deletes]] for name in (PARTITION, OFFSET))
    is_end = np.zeros(len(deletes), np.bool_)
    for partition, end in zip(ends[PARTITION].to_pylist(), ends[f"{OFFSET}_max"].to_pylist(), strict=True):
        is_end |= (partitions == partition) & (offsets == end)
    indices: list[int] = deletes[is_end].tolist()
    return indices


def _check_keys(rows: pa.Table, key: Sequence[str], table: str, topic: str) -> None:
    """Refuse events without a value in a column of the key. Raises KeyMissing."""
    for name in key:
        if rows[name].null_count:
            first = int(np.flatnonzero(rows[name].is_null().to_numpy())[0])
            raise KeyMissing(table, topic, key, rows[PARTITION][first].as_py(), rows[OFFSET][first].as_py())


def _last_of_each(rows: pa.Table, key: Sequence[str]) -> tuple[Numbers, Numbers]:
    """Return the index of each key's last event, and of each key's last event with a row.

    Both are in the order of the last events. A key that only has deletions gets the last event twice.
    """
    numbers = np.arange(len(rows))
    last, last_with_row = greatest_of_each(by_place(rows, key), numbers, np.where(is_gone(rows), -1, numbers))
    with_row = np.where(last_with_row < 0, last, last_with_row)
    order = np.argsort(last)
    return last[order], with_row[order]


def _with_contents(rows: pa.Table, last: Numbers, contents: Numbers) -> pa.Table:
    """Return the last events with the values of the events at `contents`.

    Operation and version are the last events' own.

    :param last: the index of each key's last event, and `contents` the index of the event with the values.
    """
    newest_rows = rows.take(pa.array(contents))
    if (contents != last).any():
        for name in (OP, *order_columns(rows.column_names)):
            column = rows[name].take(pa.array(last))
            newest_rows = newest_rows.set_column(newest_rows.column_names.index(name), rows.schema.field(name), column)
    return newest_rows


def _sent_guards(rows: pa.Table, key: Sequence[str], judge: GuardCheck) -> dict[Key, DeletionGuard]:
    """Return guards for deletions whose key may be wrong, by key, to check against the table's rows.

    Debezium puts zeros in place of a key not sent by PostgreSQL. Raises MirrorStopped if another event of the batch
    shows that the key is wrong.

    With REPLICA IDENTITY USING INDEX on other columns, a deletion's key has zeros, and the index's columns have the
    deleted row's values. But the deletion may really mean a row whose key is zero: then that row has these values.

    :param rows: in the order of their versions.
    :param key: the columns of the mirror's key.
    :param judge: makes the error.
    """
    if is_serial(rows) or is_staged(rows):
        # A log of sequential transactions has whole rows. Staged deletions have only a key, as with the default replica
        # identity.
        return {}
    deletes = pc.equal(rows[OP], "d").fill_null(False).combine_chunks().to_numpy(zero_copy_only=False)
    doubtful = np.flatnonzero(deletes)
    is_zero = zero_keys(rows.select(list(key)).take(pa.array(doubtful)), key)
    if not is_zero.any():
        return {}
    guards: dict[Key, DeletionGuard] = {}
    columns = image_columns(rows, key)
    # Each deletion is checked by itself: the replica identity may change between transactions.
    wanted: list[int] = doubtful[is_zero].tolist()
    events = PreviousEvents(rows, key, wanted)
    for index in wanted:
        row = rows.slice(index, 1)
        image = images(row, columns)[0]
        if all(is_placeholder(value) for value in image.values()):
            # The default replica identity sends the key and no other value.
            continue
        since = (row[COMMIT][0].as_py(), row[POSITION][0].as_py())
        guard = DeletionGuard(GuardKind.SENT, since, row[PARTITION][0].as_py(), row[OFFSET][0].as_py(), image)
        own_key = keys_of(row, key)[0]
        earlier = events.of(index)
        if earlier is None:
            guards.setdefault(own_key, guard)
            continue
        before = rows.slice(earlier, 1)
        if _transaction(before) == _transaction(row):
            # `order` decides about a transaction's own rows.
            continue
        is_repeated = (before[COMMIT][0].as_py(), before[POSITION][0].as_py()) == since
        is_gone = before[OP][0].as_py() in ("d", "t")
        if not is_repeated and (is_gone or not fits(images(before, columns)[0], image)):
            raise judge.not_sent(guard)
    return guards


def _transaction(row: pa.Table) -> object:
    """Return the transaction of a single event: its number, or without a number the commit before the transaction."""
    number = row[TRANSACTION][0].as_py() if TRANSACTION in row.column_names else None
    return row[COMMIT][0].as_py() if number is None else number
