"""The result of a batch of change events: each key's last event, with the values that events leave out.

Pure: Arrow in, Arrow out. The table's earlier state is unknown here; the result says what to take from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import COMMIT, OF_EVENTS, OFFSET, OP, PARTITION, POSITION, VERSION
from airflow_lakestream.cdc.events.apart import Apart, check_values
from airflow_lakestream.cdc.events.unavailable import Mask, left_out, may_be_left_out
from airflow_lakestream.cdc.keys.guards import Guard, Guarded, Judge
from airflow_lakestream.cdc.keys.identity import Key, by_place, comparable, greatest_of_each, keys_of, those_with
from airflow_lakestream.cdc.keys.order import settled
from airflow_lakestream.cdc.keys.sent import sent_guards
from airflow_lakestream.cdc.merge.snapshots import Version, with_ends
from airflow_lakestream.cdc.stops import RESNAPSHOT, MirrorStopped, StopReason
from airflow_lakestream.tables.rising import Numbers


class KeyMissing(MirrorStopped):
    """A change event has no value in a column of the key."""

    def __init__(self, table: str, topic: str, key: Sequence[str], partition: int, offset: int) -> None:
        super().__init__(
            table,
            StopReason.KEY_NOT_SENT,
            f"{topic}[{partition}] offset {offset}: the change event has no value in {', '.join(key)}, so which row it "
            "changes is unknown.",
            "Is the key right? The database's table needs a primary key, or REPLICA IDENTITY FULL and a key without "
            f"NULL. If the key has changed: {RESNAPSHOT[0].lower()}{RESNAPSHOT[1:]}",
        )


@dataclass(frozen=True, slots=True)
class Origin:
    """Where to find a value that an event leaves out: in the table's row of this key.

    With `moved`, in the row whose deletion is at that place in the source: the row's key was changed.
    """

    key: Key = ()
    moved: tuple[int, int] | None = None


@dataclass(frozen=True)
class Newest:
    """Each key's last event, in the order of versions, and the last truncation before all of them.

    A row to be marked as deleted has the values of the event before its deletion, if the batch has one;
    `contents` gives the place of the event with each row's values. Its operation is `t` if a truncation deleted it.
    `origins` says, by a row's place and a column's name, where to find a missing value.
    `befores` has, for a deletion that ends a partition's events, the row's values that the next event may leave out.
    `snapshots` are the marks of snapshots that end here, see `cdc.merge.snapshots`; each counts as a truncation.
    `guards` are, by a row's place, what to check in the table's row of its key.
    With `apart`, executors read the values of rows: `rows` have key, operation, version and place.
    """

    rows: pa.Table
    contents: pa.Table
    truncated: Version | None = None
    origins: Mapping[tuple[int, str], Origin] = field(default_factory=dict)
    befores: Mapping[int, Mapping[str, pa.Scalar | Origin]] = field(default_factory=dict)
    snapshots: Sequence[Version] = ()
    guards: Mapping[int, Sequence[Guard]] = field(default_factory=dict)
    topic: str = ""
    apart: Apart | None = None


def newest(
    events: pa.Table,
    key: Sequence[str],
    table: str = "the table",
    *,
    soft_delete: bool = False,
    topic: str = "",
    record_key: Sequence[str] = (),
    apart: Apart | None = None,
) -> Newest:
    """Reduce events to their result. Raises MirrorStopped, and ValuesApart.

    :param events: the row's columns, `OP` and `VERSION`, in any order.
    :param soft_delete: whether deleted rows stay.
    :param record_key: the columns of the records' keys.
    """
    events, snapshots = with_ends(events)
    rows = by_version(events.combine_chunks())
    truncated = None
    cuts = np.flatnonzero(_is(rows, "t")).tolist()
    if cuts:
        truncated = versions(rows.slice(cuts[-1], 1))[0]
        rows = _with_truncated(rows, cuts, key) if soft_delete else rows.slice(cuts[-1] + 1)
    _check_keys(rows, key, table, topic)
    judge = Judge(table, topic, key)
    in_order = settled(rows, key, record_key)
    rows = in_order.rows
    sent = sent_guards(rows, key, judge)
    last, contents = _last_of_each(rows, key)
    if not soft_delete:
        contents = last
    found, origins = _filled(rows, last, contents, key)
    may_lack = [one.name for one in (rows.schema if apart is None else apart.columns) if _may_lack(one, key)]
    befores = {place: _before(rows, int(last[place]), key, may_lack) for place in _last_deletes(rows, last)}
    others = [name for name in OF_EVENTS if name in found.column_names and name != OP]
    at = rows.select(VERSION).take(pa.array(contents))
    guards = _guards(found, last, key, sent, in_order.guards, judge)
    return Newest(found.drop_columns(others), at, truncated, origins, befores, snapshots, guards, topic, apart)


def _guards(
    found: pa.Table,
    last: Numbers,
    key: Sequence[str],
    sent: Mapping[Key, Guard],
    in_order: Mapping[int, Guard],
    judge: Judge,
) -> dict[int, list[Guard]]:
    """Return the guards by the place of each key's last event. Raises MirrorStopped if no table can help."""
    guards: dict[int, list[Guard]] = {}
    places = {int(event): place for place, event in enumerate(last)} if in_order else {}
    # A later event of the key has its whole row.
    for at, guard in in_order.items():
        if at in places:
            if guard.kind is Guarded.UNKNOWN:
                raise judge.unknown(guard)
            guards.setdefault(places[at], []).append(guard)
    for place, own in those_with(found, key, sent):
        guards.setdefault(place, []).append(sent[own])
    return guards


def is_gone(rows: pa.Table) -> Mask:
    """Tell which events remove a row."""
    mask: Mask = _is(rows, "d") | _is(rows, "t")
    return mask


def _with_truncated(rows: pa.Table, cuts: Sequence[int], key: Sequence[str]) -> pa.Table:
    """Return the events where each truncation is replaced by deletions of the rows that they created."""
    parts, start = [], 0
    for cut in cuts:
        part = rows.slice(start, cut - start)
        gone = part.take(pa.array(_last_of_each(part, key)[0]))
        gone = gone.filter(pa.array(~is_gone(gone)))
        for name in (OP, *VERSION):
            same = pa.repeat(rows[name][cut], len(gone))
            gone = gone.set_column(gone.column_names.index(name), rows.schema.field(name), same)
        parts += [part, gone]
        start = cut + 1
    return pa.concat_tables([*parts, rows.slice(start)]).combine_chunks()


def _last_deletes(rows: pa.Table, last: Numbers) -> list[int]:
    """Return the places of deletions that are the last events of their partitions."""
    ends = rows.select([PARTITION, OFFSET]).group_by(PARTITION).aggregate([(OFFSET, "max")])
    deletes = np.flatnonzero(_is(rows, "d")[last])
    partitions, offsets = (rows[name].to_numpy()[last[deletes]] for name in (PARTITION, OFFSET))
    is_end = np.zeros(len(deletes), np.bool_)
    for partition, end in zip(ends[PARTITION].to_pylist(), ends[f"{OFFSET}_max"].to_pylist(), strict=True):
        is_end |= (partitions == partition) & (offsets == end)
    found: list[int] = deletes[is_end].tolist()
    return found


def _before(rows: pa.Table, at: int, key: Sequence[str], wanted: Sequence[str]) -> dict[str, pa.Scalar | Origin]:
    """Return the values before a deletion, in the columns that an event may leave out. Raises ValuesApart."""
    found, origin = _before_under(rows, at, key, wanted)
    # The key may have changed more than once: values under an earlier key were carried along.
    while (came := _deletion_at(rows, at, origin)) is not None:
        at = came
        earlier, origin = _before_under(rows, at, key, wanted)
        found = earlier | found
    return {name: found.get(name, origin) for name in wanted}


def _before_under(
    rows: pa.Table, at: int, key: Sequence[str], wanted: Sequence[str]
) -> tuple[dict[str, pa.Scalar | Origin], Origin]:
    """Return what the events before a deletion tell of its row, and where to find the rest."""
    keys, same = comparable(rows.select(list(key)).slice(0, at + 1)), np.ones(at, np.bool_)
    for column in keys.columns:
        same &= pc.equal(column.slice(0, at), column[at]).to_numpy()
    found: dict[str, pa.Scalar | Origin] = {}
    origin = Origin(keys_of(rows.slice(at, 1), key)[0])
    if not same.any():
        return found, origin
    check_values(rows, "the batch ends with a deletion, and has an earlier event of the row")
    earlier = rows.take(pa.array(np.flatnonzero(same)[::-1]))
    lacking = {name: left_out(earlier[name]) for name in wanted}
    for number, op in enumerate(earlier[OP].to_pylist()):
        if op in ("d", "t"):
            break
        for name in wanted:
            if name not in found and not lacking[name][number]:
                found[name] = earlier[name][number]
        if op == "c":
            origin = Origin(moved=(earlier[COMMIT][number].as_py(), earlier[POSITION][number].as_py()))
            break
    return found, origin


def _deletion_at(rows: pa.Table, at: int, origin: Origin) -> int | None:
    """Return the earlier event that deleted the moved row; None if no row was moved, or the event is not here."""
    if origin.moved is None:
        return None
    there = _is(rows, "d")[:at]
    for name, place in zip((COMMIT, POSITION), origin.moved, strict=True):
        there &= rows[name].to_numpy()[:at] == place
    return int(np.flatnonzero(there)[-1]) if there.any() else None


def versions(rows: pa.Table) -> list[Version]:
    """Return the versions of rows."""
    return list(zip(*(rows[name].to_pylist() for name in VERSION), strict=True))


def by_version(rows: pa.Table) -> pa.Table:
    """Return rows in the order of their versions."""
    if not is_later(rows.slice(0, max(0, len(rows) - 1)), rows.slice(1)).any():
        return rows
    return rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in VERSION]))


def is_later(rows: pa.Table, than: pa.Table) -> Mask:
    """Tell for each row whether its version is above that of the other table's row in the same place."""
    later, same = np.zeros(len(rows), np.bool_), np.ones(len(rows), np.bool_)
    for name in VERSION:
        mine, other = (table[name].to_numpy().astype(np.int64, copy=False) for table in (rows, than))
        later |= same & (mine > other)
        same &= mine == other
    return later


def is_before(rows: pa.Table, version: Version) -> Mask:
    """Tell for each row whether its version is below this one."""
    before, same = np.zeros(len(rows), np.bool_), np.ones(len(rows), np.bool_)
    for name, bound in zip(VERSION, version, strict=True):
        mine = rows[name].to_numpy().astype(np.int64, copy=False)
        before |= same & (mine < bound)
        same &= mine == bound
    return before


def _is(rows: pa.Table, op: str) -> Mask:
    mask: Mask = pc.fill_null(pc.equal(rows[OP], op), False).to_numpy()
    return mask


def _check_keys(rows: pa.Table, key: Sequence[str], table: str, topic: str) -> None:
    for name in key:
        if rows[name].null_count:
            at = int(np.flatnonzero(rows[name].is_null().to_numpy())[0])
            raise KeyMissing(table, topic, key, rows[PARTITION][at].as_py(), rows[OFFSET][at].as_py())


def _last_of_each(rows: pa.Table, key: Sequence[str]) -> tuple[Numbers, Numbers]:
    """Return for each key its last event, and the last one with its row; the same one if none has."""
    numbers = np.arange(len(rows))
    last, own = greatest_of_each(by_place(rows, key), numbers, np.where(is_gone(rows), -1, numbers))
    with_row = np.where(own < 0, last, own)
    order = np.argsort(last)
    return last[order], with_row[order]


def _filled(
    rows: pa.Table, last: Numbers, contents: Numbers, key: Sequence[str]
) -> tuple[pa.Table, dict[tuple[int, str], Origin]]:
    """Return the last events with the values of `contents`, left-out ones filled in from earlier events."""
    lacking = dict(_lacking(rows, key))
    found = rows.take(pa.array(contents))
    if (contents != last).any():
        for name in (OP, *VERSION):
            column = rows[name].take(pa.array(last))
            found = found.set_column(found.column_names.index(name), rows.schema.field(name), column)
    if not any(mask[contents].any() for mask in lacking.values()):
        return found, {}
    states, origins = _follow(rows, lacking, key), {}
    of_last = keys_of(found, key)
    for name, mask in lacking.items():
        takes = contents.copy()
        for place in np.flatnonzero(mask[contents]).tolist():
            known = states[of_last[place]][name]
            if isinstance(known, int):
                takes[place] = known
            else:
                origins[place, name] = known
        found = found.set_column(
            found.column_names.index(name), rows.schema.field(name), rows[name].take(pa.array(takes))
        )
    return found, origins


def _lacking(rows: pa.Table, key: Sequence[str]) -> Iterator[tuple[str, Mask]]:
    """Yield the columns that some event leaves out, each with those events."""
    for column in rows.schema:
        if not _may_lack(column, key):
            continue
        mask = left_out(rows[column.name])
        if mask.any():
            yield column.name, mask


def _may_lack(column: pa.Field, key: Sequence[str]) -> bool:
    """Tell whether PostgreSQL may keep a column's values apart, and Debezium may leave them out."""
    beside = column.name in key or column.name in OF_EVENTS
    return not beside and may_be_left_out(column.type)


# By column: the place of the event that has the value, or where else to find it.
_State = dict[str, "int | Origin"]


@dataclass(frozen=True, slots=True)
class _Past:
    """A row after one of its events: where its values are, or were until it was deleted."""

    partition: int
    offset: int
    state: _State
    is_dead: bool = False
    created: tuple[int, int] | None = None

    def may_precede(self, partition: int, offset: int) -> bool:
        """Tell whether an event at this place of the topic was written when this one was known.

        An event that is sent again stands behind events that follow it in the source. An earlier batch may have had
        others between the two, so it does not tell what the row was like.
        """
        return partition != self.partition or offset > self.offset


def _follow(rows: pa.Table, lacking: Mapping[str, Mask], key: Sequence[str]) -> dict[Key, _State]:
    """Follow each row through its events; return where the final values of its columns are, or were until then."""
    pasts: dict[Key, list[_Past]] = {}
    moved: dict[tuple[int, int], _State] = {}
    ops, places = rows[OP].to_pylist(), list(zip(rows[COMMIT].to_pylist(), rows[POSITION].to_pylist(), strict=True))
    topic = zip(rows[PARTITION].to_pylist(), rows[OFFSET].to_pylist(), strict=True)
    for at, (own, (partition, offset)) in enumerate(zip(keys_of(rows, key), topic, strict=True)):
        in_table: _State = {name: Origin(own) for name in lacking}
        past = pasts.setdefault(own, [])
        unknown = _Past(partition, -1, in_table)
        last = next((one for one in reversed(past) if one.may_precede(partition, offset)), unknown)
        if ops[at] in ("d", "t"):
            # A changed key: the row is deleted and, at the same place in the source, created with the other key.
            # If it is sent twice, the row is deleted already: the first time has told its values.
            if not last.is_dead or places[at] not in moved:
                moved[places[at]] = in_table if last.is_dead else last.state
            past.append(_Past(partition, offset, last.state, True, last.created))
            continue
        before, created = last.state, last.created
        # If it is sent twice, the row exists already, made from the one that its deletion has carried along.
        if ops[at] == "c" and (last.is_dead or created != places[at]):
            created = places[at]
            before = moved.get(places[at]) or {name: Origin(moved=places[at]) for name in lacking}
        elif last.is_dead:
            # The deletion was sent twice: the row that was created again is in the table.
            before = in_table
        state = {name: before[name] if mask[at] else at for name, mask in lacking.items()}
        past.append(_Past(partition, offset, state, False, created))
    return {own: past[-1].state for own, past in pasts.items()}
