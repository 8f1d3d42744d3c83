"""What a batch of change events comes to: for each key its last event, with the values that events leave out.

Pure: Arrow in, Arrow out. What the table had before is not known here; what has to be taken from it is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import COMMIT, OF_EVENTS, OFFSET, OP, PARTITION, POSITION, VERSION
from airflow_lakestream.cdc.events.unavailable import left_out, may_be_left_out
from airflow_lakestream.cdc.keys.guards import Guard, Guarded, Judge
from airflow_lakestream.cdc.keys.identity import Key, by_place, comparable, keys_of
from airflow_lakestream.cdc.keys.order import settled
from airflow_lakestream.cdc.keys.sent import sent_guards
from airflow_lakestream.cdc.merge.snapshots import Version, with_ends
from airflow_lakestream.cdc.stops import RESNAPSHOT, MirrorStopped, StopReason

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class KeyMissing(MirrorStopped):
    """A change event has no value in a column of the key."""

    def __init__(self, table: str, topic: str, key: Sequence[str], partition: int, offset: int) -> None:
        super().__init__(
            table,
            StopReason.KEY_NOT_SENT,
            f"{topic}[{partition}] offset {offset}: the change event has no value in {', '.join(key)}, so it can't be "
            "told which row it changes.",
            "Is the key right? The database's table needs a primary key, or REPLICA IDENTITY FULL and a key without "
            f"NULL. If it has changed: {RESNAPSHOT[0].lower()}{RESNAPSHOT[1:]}",
        )


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value is that an event leaves out: in the row of a key, as the table has it.

    With `moved` in the row whose deletion stands at that place in the source: the row's key was changed.
    """

    key: Key = ()
    moved: tuple[int, int] | None = None


@dataclass(frozen=True)
class Newest:
    """The last event of each key, in the order of their versions, and the last truncation before all of them.

    A row that is to be marked as deleted has the values of the event before its deletion, where the batch has one;
    `contents` says where the event stands whose values each row has. Its operation is `t` when a truncation took it.
    `origins` says, by the place of a row and the name of a column, where a value that is lacking is to be had.
    `befores` says, for a deletion that ends a partition's events, what the row had that the next event may leave out.
    `snapshots` are the marks of snapshots that end here, see `cdc.merge.snapshots`; each is a truncation, too.
    `guards` say, by the place of a row, what is to be held against the table's row of its key.
    """

    rows: pa.Table
    contents: pa.Table
    truncated: Version | None = None
    origins: Mapping[tuple[int, str], Origin] = field(default_factory=dict)
    befores: Mapping[int, Mapping[str, pa.Scalar | Origin]] = field(default_factory=dict)
    snapshots: Sequence[Version] = ()
    guards: Mapping[int, Sequence[Guard]] = field(default_factory=dict)
    topic: str = ""


def newest(
    events: pa.Table,
    key: Sequence[str],
    table: str = "the table",
    *,
    soft_delete: bool = False,
    topic: str = "",
    record_key: Sequence[str] = (),
) -> Newest:
    """Reduce events to what they come to. Raises MirrorStopped.

    :param events: the row's columns, `OP` and `VERSION`, in any order of rows.
    :param soft_delete: whether deleted rows stay.
    :param record_key: the columns of the records' keys.
    """
    events, snapshots = with_ends(events)
    rows = events.take(pc.sort_indices(events, sort_keys=[(name, "ascending") for name in VERSION])).combine_chunks()
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
    befores = {place: _before(rows, int(last[place]), key) for place in _last_deletes(rows, last)}
    others = [name for name in OF_EVENTS if name in found.column_names and name != OP]
    at = rows.select(VERSION).take(pa.array(contents))
    guards = _guards(found, last, key, sent, in_order.guards, judge)
    return Newest(found.drop_columns(others), at, truncated, origins, befores, snapshots, guards, topic)


def _guards(
    found: pa.Table,
    last: Numbers,
    key: Sequence[str],
    sent: Mapping[Key, Guard],
    in_order: Mapping[int, Guard],
    judge: Judge,
) -> dict[int, list[Guard]]:
    """Return the guards by the place of each key's last event. Raises MirrorStopped where no table helps."""
    guards: dict[int, list[Guard]] = {}
    places = {int(event): place for place, event in enumerate(last)} if in_order else {}
    # What comes later of a key says all of its row.
    for at, guard in in_order.items():
        if at in places:
            if guard.kind is Guarded.UNKNOWN:
                raise judge.unknown(guard)
            guards.setdefault(places[at], []).append(guard)
    for place, own in enumerate(keys_of(found, key) if sent else ()):
        if own in sent:
            guards.setdefault(place, []).append(sent[own])
    return guards


def is_gone(rows: pa.Table) -> Mask:
    """Tell which events take a row away."""
    mask: Mask = _is(rows, "d") | _is(rows, "t")
    return mask


def _with_truncated(rows: pa.Table, cuts: Sequence[int], key: Sequence[str]) -> pa.Table:
    """Return the events with a deletion of each row that they made for each truncation, in its place."""
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
    """Return the places of deletions that no other event of their partition follows."""
    ends = rows.select([PARTITION, OFFSET]).group_by(PARTITION).aggregate([(OFFSET, "max")])
    deletes = np.flatnonzero(_is(rows, "d")[last])
    partitions, offsets = (rows[name].to_numpy()[last[deletes]] for name in (PARTITION, OFFSET))
    is_end = np.zeros(len(deletes), np.bool_)
    for partition, end in zip(ends[PARTITION].to_pylist(), ends[f"{OFFSET}_max"].to_pylist(), strict=True):
        is_end |= (partitions == partition) & (offsets == end)
    found: list[int] = deletes[is_end].tolist()
    return found


def _before(rows: pa.Table, at: int, key: Sequence[str]) -> dict[str, pa.Scalar | Origin]:
    """Return what the row that an event deletes had before, of all that an event may leave out."""
    wanted = [column.name for column in rows.schema if _may_lack(column, key)]
    found, origin = _before_under(rows, at, key, wanted)
    # Its key may have been changed more than once: what it had under an earlier one went along.
    while (came := _deletion_at(rows, at, origin)) is not None:
        at = came
        earlier, origin = _before_under(rows, at, key, wanted)
        found = earlier | found
    return {name: found.get(name, origin) for name in wanted}


def _before_under(
    rows: pa.Table, at: int, key: Sequence[str], wanted: Sequence[str]
) -> tuple[dict[str, pa.Scalar | Origin], Origin]:
    """Return what the events ahead of a deletion say of its row under its key, and where the rest is."""
    keys, same = comparable(rows.select(list(key)).slice(0, at + 1)), np.ones(at, np.bool_)
    for column in keys.columns:
        same &= pc.equal(column.slice(0, at), column[at]).to_numpy()
    found: dict[str, pa.Scalar | Origin] = {}
    origin = Origin(keys_of(rows.slice(at, 1), key)[0])
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
    """Return which event ahead of another deleted the row that was moved; None where no row was, or none is here."""
    if origin.moved is None:
        return None
    there = _is(rows, "d")[:at]
    for name, place in zip((COMMIT, POSITION), origin.moved, strict=True):
        there &= rows[name].to_numpy()[:at] == place
    return int(np.flatnonzero(there)[-1]) if there.any() else None


def versions(rows: pa.Table) -> list[Version]:
    """Return the versions of rows."""
    return list(zip(*(rows[name].to_pylist() for name in VERSION), strict=True))


def is_later(rows: pa.Table, than: pa.Table) -> Mask:
    """Tell for each row whether its version is above that of the other table's row at the same place."""
    later, same = np.zeros(len(rows), np.bool_), np.ones(len(rows), np.bool_)
    for name in VERSION:
        mine, other = (table[name].to_numpy().astype(np.int64) for table in (rows, than))
        later |= same & (mine > other)
        same &= mine == other
    return later


def is_before(rows: pa.Table, version: Version) -> Mask:
    """Tell for each row whether its version is below this one."""
    before, same = np.zeros(len(rows), np.bool_), np.ones(len(rows), np.bool_)
    for name, bound in zip(VERSION, version, strict=True):
        mine = rows[name].to_numpy().astype(np.int64)
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
    """Return for each key its last event, and the last one that has its row; the same where none has."""
    numbers = np.arange(len(rows))
    own = pa.array(numbers, mask=is_gone(rows))
    keys = by_place(rows, key)
    numbered = keys.append_column("last", pa.array(numbers)).append_column("own", own)
    found = numbered.group_by(keys.column_names).aggregate([("last", "max"), ("own", "max")])
    last: Numbers = found["last_max"].to_numpy()
    with_row: Numbers = pc.coalesce(found["own_max"], found["last_max"]).to_numpy()
    order = np.argsort(last)
    return last[order], with_row[order]


def _filled(
    rows: pa.Table, last: Numbers, contents: Numbers, key: Sequence[str]
) -> tuple[pa.Table, dict[tuple[int, str], Origin]]:
    """Return the last events with the values of `contents`, and with what earlier ones know of those left out."""
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
    """Yield the columns of which some event leaves the value out, and which events do."""
    for column in rows.schema:
        if not _may_lack(column, key):
            continue
        mask = left_out(rows[column.name])
        if mask.any():
            yield column.name, mask


def _may_lack(column: pa.Field, key: Sequence[str]) -> bool:
    """Tell whether PostgreSQL may keep a column's values apart, and Debezium say so."""
    beside = column.name in key or column.name in OF_EVENTS
    return not beside and may_be_left_out(column.type)


# By column: the place of the event that has the value, or where else it is.
_State = dict[str, "int | Origin"]


@dataclass(frozen=True, slots=True)
class _Past:
    """A row as one of its events left it: where the values of its columns are, or were until it was deleted."""

    partition: int
    offset: int
    state: _State
    is_dead: bool = False
    created: tuple[int, int] | None = None

    def may_precede(self, partition: int, offset: int) -> bool:
        """Tell whether an event at this place of the topic was written when this one was known.

        What is sent again stands behind what it precedes in the source. Between the two may be events that an earlier
        batch has brought, so it says nothing of what the row was like.
        """
        return partition != self.partition or offset > self.offset


def _follow(rows: pa.Table, lacking: Mapping[str, Mask], key: Sequence[str]) -> dict[Key, _State]:
    """Follow each row through its events; return where the values of its columns are in the end, or were until then."""
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
            # A key that is changed: the row is deleted, and at the same place in the source created under the other.
            # Sent twice, it is deleted already: what it had, is known from the first time.
            if not last.is_dead or places[at] not in moved:
                moved[places[at]] = in_table if last.is_dead else last.state
            past.append(_Past(partition, offset, last.state, True, last.created))
            continue
        before, created = last.state, last.created
        # Sent twice, it is created already, from the row that its deletion has taken along.
        if ops[at] == "c" and (last.is_dead or created != places[at]):
            created = places[at]
            before = moved.get(places[at]) or {name: Origin(moved=places[at]) for name in lacking}
        elif last.is_dead:
            # The deletion was sent twice: what created the row anew is in the table.
            before = in_table
        state = {name: before[name] if mask[at] else at for name, mask in lacking.items()}
        past.append(_Past(partition, offset, state, False, created))
    return {own: past[-1].state for own, past in pasts.items()}
