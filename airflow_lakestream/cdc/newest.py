"""What a batch of change events comes to: for each key its last event, with the values that events leave out.

Pure: Arrow in, Arrow out. What the table had before is not known here; what has to be taken from it is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import COMMIT, OF_EVENTS, OFFSET, OP, PARTITION, POSITION, VERSION
from airflow_lakestream.cdc.unavailable import left_out, may_be_left_out
from airflow_lakestream.exceptions import LakestreamError, Terminal

Version = tuple[int, ...]
Key = tuple[Any, ...]
Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class KeyMissing(LakestreamError, Terminal):
    """A change event has no value in a column of the key."""

    def __init__(self, table: str, key: Sequence[str], partition: int, offset: int) -> None:
        super().__init__(
            f"{table}: the change event at partition {partition}, offset {offset} has no value in "
            f"{', '.join(key)}, so it can't be told which row it changes. Is the key right? The database's table needs "
            "a primary key, or REPLICA IDENTITY FULL."
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
    """

    rows: pa.Table
    contents: pa.Table
    truncated: Version | None = None
    origins: Mapping[tuple[int, str], Origin] = field(default_factory=dict)
    befores: Mapping[int, Mapping[str, pa.Scalar | Origin]] = field(default_factory=dict)


def newest(events: pa.Table, key: Sequence[str], table: str = "the table", *, soft_delete: bool = False) -> Newest:
    """Reduce events to what they come to. Raises KeyMissing.

    :param events: the row's columns, `OP` and `VERSION`, in any order of rows.
    :param soft_delete: whether deleted rows stay.
    """
    rows = events.take(pc.sort_indices(events, sort_keys=[(name, "ascending") for name in VERSION])).combine_chunks()
    truncated = None
    cuts = np.flatnonzero(_is(rows, "t")).tolist()
    if cuts:
        truncated = versions(rows.slice(cuts[-1], 1))[0]
        rows = _with_truncated(rows, cuts, key) if soft_delete else rows.slice(cuts[-1] + 1)
    _check_keys(rows, key, table)
    last, contents = _last_of_each(rows, key)
    if not soft_delete:
        contents = last
    found, origins = _filled(rows, last, contents, key)
    befores = {place: _before(rows, int(last[place]), key) for place in _last_deletes(rows, last)}
    others = [name for name in OF_EVENTS if name in found.column_names and name != OP]
    at = rows.select(VERSION).take(pa.array(contents))
    return Newest(found.drop_columns(others), at, truncated, origins, befores)


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
    own = tuple(rows[name][at] for name in key)
    same = np.ones(at, np.bool_)
    for name, value in zip(key, own, strict=True):
        same &= pc.equal(rows[name].slice(0, at), value).to_numpy()
    wanted = [column.name for column in rows.schema if _may_lack(column, key)]
    found: dict[str, pa.Scalar | Origin] = {}
    origin = Origin(tuple(value.as_py() for value in own))
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
    return {name: found.get(name, origin) for name in wanted}


def versions(rows: pa.Table) -> list[Version]:
    """Return the versions of rows."""
    return list(zip(*(rows[name].to_pylist() for name in VERSION), strict=True))


def keys_of(rows: pa.Table, key: Sequence[str]) -> list[Key]:
    """Return the keys of rows."""
    return list(zip(*(rows[name].to_pylist() for name in key), strict=True))


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


def _check_keys(rows: pa.Table, key: Sequence[str], table: str) -> None:
    for name in key:
        if rows[name].null_count:
            at = int(np.flatnonzero(rows[name].is_null().to_numpy())[0])
            raise KeyMissing(table, key, rows[PARTITION][at].as_py(), rows[OFFSET][at].as_py())


def _last_of_each(rows: pa.Table, key: Sequence[str]) -> tuple[Numbers, Numbers]:
    """Return for each key its last event, and the last one that has its row; the same where none has."""
    numbers = np.arange(len(rows))
    own = pa.array(numbers, mask=is_gone(rows))
    numbered = rows.select(list(key)).append_column("", pa.array(numbers)).append_column("own", own)
    found = numbered.group_by(list(key)).aggregate([("", "max"), ("own", "max")])
    last: Numbers = found["_max"].to_numpy()
    with_row: Numbers = pc.coalesce(found["own_max"], found["_max"]).to_numpy()
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
