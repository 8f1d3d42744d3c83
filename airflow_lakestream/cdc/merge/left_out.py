"""Values left out by events: followed through a batch, from key to key, to the possible sources.

An earlier event of the batch may have a value. But that event may have been sent again, and the table may have a later
value: so the table's own row comes first, if the row's last event is between the two events.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import COMMIT, OF_EVENTS, OP, POSITION
from airflow_lakestream.cdc.events.apart import check_values
from airflow_lakestream.cdc.keys.identity import Key, find_keys, keys_of
from airflow_lakestream.cdc.merge.snapshots import Version, behind_one, versions
from airflow_lakestream.decode.connect.unavailable import Mask, left_out, may_be_left_out
from airflow_lakestream.tables.rising import Numbers

Place = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ValueOrigin:
    """A row outside of the batch that may have a value: the table's row of a key, or a deleted row in the memory.

    :param key: the key of the table's row.
    :param since: the table's row has the value if its last event is at or above this version; None for any version.
    :param until: and if its last event is at or below this version.
    :param moved: for a deleted row, the place of the deletion in the source, where the row's key was changed.
    """

    key: Key = ()
    since: Version | None = None
    until: Version = ()
    moved: Place | None = None

    def spans(self, row: Version, marks: Sequence[Version]) -> bool:
        """Return whether the row's last event is between `since` and `until`.

        :param marks: the marks of known snapshots, by which versions of rows were changed; see `behind`.
        """
        since = None if self.since is None else behind_one(self.since, marks)
        return (since is None or since[:2] <= row[:2]) and row[:2] <= behind_one(self.until, marks)[:2]


@dataclass(frozen=True, slots=True)
class ValueSource:
    """Source of a value: the first of `origins` that has the value, or else `value` from the batch."""

    origins: tuple[ValueOrigin, ...]
    value: pa.Scalar | None = None


@dataclass(frozen=True, slots=True)
class _ValueState:
    """State of a value of a key's row within a batch.

    :param since: the version from which on the row has this value; None from the beginning on.
    :param event: the index of the event with the value, or None if no event of the batch has it.
    :param earlier: sources under earlier keys of the row.
    """

    key: Key
    since: Version | None
    event: int | None = None
    earlier: tuple[ValueOrigin, ...] = ()

    def origins(self, until: Version) -> tuple[ValueOrigin, ...]:
        """Return the rows outside of the batch that may have the value, for an event with the version `until`."""
        return (ValueOrigin(self.key, self.since, until), *self.earlier)


# The state of each column's value.
_State = dict[str, _ValueState]


@dataclass(slots=True)
class _RowState:
    """A row after the last followed event of the key.

    :param state: the state of each column's value.
    :param gone: the version of the row's deletion, or None if the row exists.
    :param created: the place of the row's creation, if it is in the batch.
    """

    state: _State
    gone: Version | None = None
    created: Place | None = None


@dataclass
class LeftOutValues:
    """Rows of a batch's keys, followed through the batch and through earlier keys of the rows.

    :param events: all events of these keys, in the order of their versions.
    :param names: the columns to follow.
    """

    events: pa.Table
    key: Sequence[str]
    names: Sequence[str]
    _rows: dict[Key, _RowState] = field(default_factory=dict)
    # By the place of a deletion: the row's values, for the row that gets another key there.
    _moved: dict[Place, _State] = field(default_factory=dict)

    def __post_init__(self) -> None:
        nothing = np.zeros(len(self.events), np.bool_)
        present = self.events.column_names
        lacking = {name: left_out(self.events[name]) if name in present else nothing for name in self.names}
        events = zip(keys_of(self.events, self.key), versions(self.events), self.events[OP].to_pylist(), strict=True)
        # Follow each row through its events.
        for index, (key, version, op) in enumerate(events):
            row = self._rows.setdefault(key, _RowState(self._in_table(key, None)))
            if op in ("d", "t"):
                self._delete(row, key, version)
                continue
            before = self._before(row, key, version, op)
            row.state = {
                name: before[name] if mask[index] else _ValueState(key, version, index)
                for name, mask in lacking.items()
            }
            row.gone = None

    def source(self, row_key: Key, name: str, until: Version) -> ValueSource:
        """Return the source of a value that the last event of a row has left out.

        :param row_key: the row's key, and `name` the column of the value.
        :param until: the version of the row's last event.
        """
        return self._source(self._rows[row_key].state[name], name, until)

    def before(self, version: Version) -> dict[str, ValueSource]:
        """Return the sources of a deleted row's values before the deletion, by column.

        :param version: the version of the deletion.
        """
        return {name: self._source(state, name, version) for name, state in self._moved[version[:2]].items()}

    def _source(self, state: _ValueState, name: str, until: Version) -> ValueSource:
        return ValueSource(state.origins(until), None if state.event is None else self.events[name][state.event])

    def _in_table(self, row_key: Key, since: Version | None) -> _State:
        """Return the state of a row whose values are in the table, if its last event is at or above a version."""
        return {name: _ValueState(row_key, since) for name in self.names}

    def _delete(self, row: _RowState, row_key: Key, version: Version) -> None:
        """Note a deletion, and keep the row's values: a changed key creates the row again at the same place."""
        if row.gone is None or row.gone[:2] != version[:2]:
            # Before a second deletion, the row was created by an event that is not in the batch.
            self._moved[version[:2]] = row.state if row.gone is None else self._in_table(row_key, row.gone)
        row.gone = version

    def _before(self, row: _RowState, row_key: Key, version: Version, op: str) -> _State:
        """Return the state of a row before a creating or changing event."""
        place = version[:2]
        # If the creation is sent twice, the row exists already, made from the deleted row with the earlier key.
        if op == "c" and (row.gone is not None or row.created != place):
            row.created = place
            moved = self._moved.get(place, {})
            return {name: _created(row_key, version, moved.get(name)) for name in self.names}
        # After a deletion that was sent again, the row in the table was created since the deletion.
        return row.state if row.gone is None else self._in_table(row_key, row.gone)


def _created(row_key: Key, version: Version, moved: _ValueState | None) -> _ValueState:
    """Return the state of a value of a row created under a key, from the state under the earlier key.

    :param version: the version of the creation.
    :param moved: the state under the earlier key; None if the batch has no deletion at this place.
    """
    remembered = ValueOrigin(moved=version[:2])
    if moved is None:
        return _ValueState(row_key, version, None, (remembered,))
    return _ValueState(row_key, version, moved.event, (remembered, *moved.origins(version)))


def related(rows: pa.Table, key: Sequence[str], wanted: Collection[Key]) -> Numbers:
    """Return the indices of the events of these keys, and of earlier keys of the same rows.

    :param rows: in the order of their versions.
    """
    deletes = np.flatnonzero(pc.equal(rows[OP], "d").fill_null(False).to_numpy())
    positions, commits = (rows[name].to_numpy() for name in (POSITION, COMMIT))
    keys: dict[int, Key] = {}
    # A row created under a key may be the row that was deleted under another key at the same place. Go on with these
    # earlier keys, until no key is new.
    while True:
        new_keys = {index: row_key for index, row_key in find_keys(rows, key, wanted) if index not in keys}
        keys |= new_keys
        created = [index for index in new_keys if rows[OP][index].as_py() == "c"]
        places = {(commits[index], positions[index]) for index in created}
        old_deletes = deletes[np.isin(positions[deletes], positions[created])]
        old_deletes = np.array(
            [index for index in old_deletes.tolist() if (commits[index], positions[index]) in places], np.int64
        )
        wanted = set(keys_of(rows.take(pa.array(old_deletes)), key)) - set(keys.values())
        if not wanted:
            return np.array(sorted(keys), np.int64)


def sources(
    rows: pa.Table, newest: pa.Table, contents: Numbers, key: Sequence[str]
) -> dict[tuple[int, str], ValueSource]:
    """Return the sources of left-out values, by a row's index and a column's name.

    :param rows: all events, in the order of their versions.
    :param newest: the newest event of each key, with the values of the events at `contents`.
    :param contents: indices in `rows`.
    """
    lacking = dict(_lacking(newest, key))
    if not lacking:
        return {}
    indices = np.flatnonzero(np.logical_or.reduce(list(lacking.values())))
    keys = dict(zip(indices.tolist(), keys_of(newest.take(pa.array(indices)), key), strict=True))
    ends = dict(zip(indices.tolist(), versions(rows.take(pa.array(contents[indices]))), strict=True))
    events = related(rows, key, set(keys.values()))
    values = LeftOutValues(rows.take(pa.array(events)), key, list(lacking))
    places = ((index, name) for name, mask in lacking.items() for index in np.flatnonzero(mask).tolist())
    return {(index, name): values.source(keys[index], name, ends[index]) for index, name in places}


def befores(
    rows: pa.Table, deletes: Mapping[int, int], key: Sequence[str], columns: Iterable[pa.Field]
) -> dict[int, Mapping[str, ValueSource]]:
    """Return for each deletion the sources of the row's values before the deletion, by column.

    The next event after the batch may create the row again under another key, and leave values out. Raises ValuesApart
    if the values must be followed through the batch, and only files have the values.

    :param deletes: the index of each deletion in `rows`, by any number; the result has the same numbers.
    :param columns: the columns of the events.
    """
    if not deletes:
        return {}
    names = [column.name for column in columns if may_lack(column, key)]
    indices = pa.array(deletes.values(), pa.int64())
    events = related(rows, key, set(keys_of(rows.take(indices), key)))
    if len(events) > len(deletes):
        check_values(rows, "the batch ends with a deletion, and has an earlier event of the row")
    values = LeftOutValues(rows.take(pa.array(events)), key, names)
    return {
        number: values.before(version) for number, version in zip(deletes, versions(rows.take(indices)), strict=True)
    }


def _lacking(rows: pa.Table, key: Sequence[str]) -> Iterator[tuple[str, Mask]]:
    """Yield the columns with left-out values, each with a mask of the rows."""
    for column in rows.schema:
        if may_lack(column, key):
            mask = left_out(rows[column.name])
            if mask.any():
                yield column.name, mask


def may_lack(column: pa.Field, key: Sequence[str]) -> bool:
    """Return whether PostgreSQL may store a column's values separately, and Debezium may leave the values out."""
    is_event_column = column.name in key or column.name in OF_EVENTS
    return not is_event_column and may_be_left_out(column.type)
