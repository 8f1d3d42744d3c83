"""Debezium's snapshots of the whole table: an older row missing from a snapshot no longer exists.

A recreated connector reads the table again, and deletions in between were never sent. So the end of a snapshot counts
as a truncation just before all rows that it read. These rows have one place in the source, and may come in any number
of batches: older rows are deleted with the last batch, when all rows are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import COMMIT, OFFSET, OP, PARTITION, POSITION, READ, READ_LAST, TIME, VERSION
from airflow_lakestream.cdc.events.provenance import is_serial
from airflow_lakestream.decode.connect.unavailable import Mask

# The values of `VERSION`: versions of events compare in the order of the source.
Version = tuple[int, ...]


def with_ends(events: pa.Table) -> tuple[pa.Table, tuple[Version, ...]]:
    """Return events with a truncation for each snapshot's end, and the marks of these snapshots.

    A mark is the start of a snapshot in a partition, as a version: its place in the source, the partition, and
    `-1 - offset`, which is negative, unlike the offset of an event.
    A log of sequential transactions needs no marks: a snapshot contains all older changes.
    """
    needs_marks = not is_serial(events)
    is_end = pc.fill_null(pc.equal(events[OP], READ_LAST), False)
    ends = events.select([COMMIT, POSITION, TIME if TIME in events.column_names else COMMIT]).filter(is_end)
    if not len(ends):
        return events, ()
    events = without_ends(events)
    reads = events.select(VERSION).filter(pc.fill_null(pc.equal(events[OP], READ), False))
    marks, cuts = list[Version](), []
    end_times = {end[:2]: end[2] for end in zip(*(column.to_pylist() for column in ends.columns), strict=True)}
    for (commit, position), time in sorted(end_times.items()):
        snapshot_rows = reads.filter(pc.and_(pc.equal(reads[COMMIT], commit), pc.equal(reads[POSITION], position)))
        first = snapshot_rows.group_by(PARTITION).aggregate([(OFFSET, "min")])
        if needs_marks:
            begins = zip(first[PARTITION].to_pylist(), first[f"{OFFSET}_min"].to_pylist(), strict=True)
            marks += [(commit, position, partition, -1 - offset) for partition, offset in begins]
        cuts.append({**dict(zip(VERSION, cut_of((commit, position)), strict=True)), OP: "t", TIME: time})
    # Arrow can't make UUID arrays from Python objects; these are all NULL.
    columns = [
        pa.array([cut[field.name] for cut in cuts], field.type)
        if field.name in cuts[0]
        else pa.nulls(len(cuts), field.type)
        for field in events.schema
    ]
    return pa.concat_tables([behind(events, marks), pa.Table.from_arrays(columns, events.schema.names)]), tuple(marks)


def without_ends(events: pa.Table) -> pa.Table:
    """Return events with the operation `READ` in place of `READ_LAST`, the mark of a snapshot's end."""
    ops = pc.if_else(pc.fill_null(pc.equal(events[OP], READ_LAST), False), READ, events[OP])
    return events.set_column(events.column_names.index(OP), events.schema.field(OP), ops)


def behind(rows: pa.Table, marks: Iterable[Version]) -> pa.Table:
    """Return rows with later places for events behind a snapshot in the topic, but before the snapshot in the source.

    A transaction that was open when the snapshot began has such events: the snapshot did not see its changes.
    """
    for commit, _, partition, offset in sorted(marks):
        is_behind = pc.and_(pc.equal(rows[PARTITION], partition), pc.greater(rows[OFFSET], -1 - offset))
        # Rows of another snapshot have place 0.
        is_older = pc.and_(pc.less(rows[COMMIT], commit), pc.greater(rows[POSITION], 0))
        commits = pc.if_else(pc.and_(is_behind, is_older), pa.scalar(commit, pa.int64()), rows[COMMIT])
        rows = rows.set_column(rows.column_names.index(COMMIT), rows.schema.field(COMMIT), commits)
    return rows


def behind_one(version: Version, marks: Iterable[Version]) -> Version:
    """Return the version of a single event after `behind`."""
    commit, position, partition, offset = version
    for seen, _, of_partition, mark in sorted(marks):
        if partition == of_partition and offset > -1 - mark and commit < seen and position > 0:
            commit = seen
    return commit, position, partition, offset


def versions(rows: pa.Table) -> list[Version]:
    """Return the versions of rows."""
    return list(zip(*(rows[name].to_pylist() for name in VERSION), strict=True))


def is_mark(version: Version) -> bool:
    """Return whether a version is a snapshot's mark, not an event's place."""
    return version[-1] < 0


def cut_of(mark: Sequence[int]) -> Version:
    """Return the truncation for a snapshot's mark: a version above all older events, and below the snapshot's rows."""
    return (*mark[:2], -1, -1)


def by_version(rows: pa.Table) -> pa.Table:
    """Return rows in the order of `VERSION`."""
    if not is_later(rows.slice(0, max(0, len(rows) - 1)), rows.slice(1)).any():
        return rows
    return rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in VERSION]))


def is_later(rows: pa.Table, than: pa.Table) -> Mask:
    """Return a mask of the rows with a version above the version of the same row in `than`."""
    later, same = np.zeros(len(rows), np.bool_), np.ones(len(rows), np.bool_)
    for name in VERSION:
        mine, other = (table[name].to_numpy().astype(np.int64, copy=False) for table in (rows, than))
        later |= same & (mine > other)
        same &= mine == other
    return later


def is_before(rows: pa.Table, version: Version) -> Mask:
    """Return a mask of the rows with a version below `version`."""
    before, same = np.zeros(len(rows), np.bool_), np.ones(len(rows), np.bool_)
    for name, bound in zip(VERSION, version, strict=True):
        numbers = rows[name].to_numpy().astype(np.int64, copy=False)
        before |= same & (numbers < bound)
        same &= numbers == bound
    return before


def is_gone(rows: pa.Table) -> Mask:
    """Return a mask of the deletions and truncations."""
    mask: Mask = is_op(rows, "d") | is_op(rows, "t")
    return mask


def is_op(rows: pa.Table, op: str) -> Mask:
    """Return a mask of the events with an operation."""
    mask: Mask = pc.fill_null(pc.equal(rows[OP], op), False).to_numpy()
    return mask
