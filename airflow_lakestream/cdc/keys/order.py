"""Several rows of a key within a transaction: search for the row that remains in the end.

A key that is checked only at the end of the transaction (DEFERRABLE) may occur twice meanwhile: `set id = id + 1`
creates the new row 2 before the old one is deleted. The last event of key 2 is then a deletion, although the row
exists. With whole rows (REPLICA IDENTITY FULL, which such a key requires), a deletion's values show the deleted row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import COMMIT, OFFSET, OP, PARTITION, POSITION, TRANSACTION, VERSION
from airflow_lakestream.cdc.events.apart import is_staged
from airflow_lakestream.cdc.events.provenance import is_serial
from airflow_lakestream.cdc.keys.guards import DeletionGuard, GuardKind
from airflow_lakestream.cdc.keys.identity import by_place, keys_of
from airflow_lakestream.cdc.keys.images import (
    Image,
    PreviousEvents,
    has_sent_values,
    image_columns,
    images,
    is_placeholder,
)
from airflow_lakestream.cdc.merge.snapshots import versions

Places = npt.NDArray[np.int64]

# Columns of `_by_key`: an event's index, and its transaction.
_NUMBER, _GROUP = "_cdc_number", "_cdc_group"


@dataclass
class OrderedEvents:
    """Events of which each key's last event decides about the row.

    :param guards: conditions on the table's rows, by the index of an event in `rows`.
    """

    rows: pa.Table
    guards: dict[int, DeletionGuard] = field(default_factory=dict)


def settled(rows: pa.Table, key: Sequence[str], not_in: Sequence[str]) -> OrderedEvents:
    """Settle transactions with several rows of one key: then each key's last event decides about the row.

    Within a transaction, a row may be created under a key before the old row of the key is deleted. Then the events of
    the row that is deleted are left out, and the creation gets the version of the transaction's last event of the key.
    If only the table's row can decide, the event gets a guard. Events that were sent again are left out. Events of a
    log of sequential transactions are returned unchanged. Raises ValuesApart if a decision needs values that only files
    have.

    :param rows: in the order of their versions.
    :param key: the columns of the mirror's key.
    :param not_in: columns of the database's key: every deletion has these, so they do not identify a row.
    """
    if TRANSACTION not in rows.column_names or not len(rows) or is_serial(rows):
        return OrderedEvents(rows)
    # 1. Leave out events that were sent again.
    kept = indices_without_repeated(rows, key, _transactions(rows))
    if len(kept) < len(rows):
        rows = rows.take(kept).combine_chunks()
    # 2. Find the keys to decide about: with a row and a final deletion in one transaction, or with a new row in a
    # transaction that may go on in the next batch.
    groups = sorted(_suspects(rows, key), key=lambda group: int(group[0]))
    unfinished = sorted(_unfinished(rows, key), key=lambda group: int(group[0]))
    if not groups and not unfinished:
        return OrderedEvents(rows)
    # 3. Find the columns whose values show which row a deletion means.
    columns = [name for name in image_columns(rows, key) if name not in not_in]
    deleted_values = _DeletedValues(rows, columns)
    work = _KeySettlement(
        rows,
        key,
        columns,
        deleted_values,
        PreviousEvents(rows, key, [int(group[0]) for group in (*groups, *unfinished)]),
    )
    # 4. Decide about the keys with a final deletion, then guard the keys in a transaction that may go on.
    for group in groups:
        work.settle(group)
    for group in unfinished:
        work.watch(group)
    return work.done()


def _transactions(rows: pa.Table) -> pa.Array:
    """Return each event's transaction: its number, or without a number the commit before the transaction."""
    return pc.coalesce(rows[TRANSACTION], rows[COMMIT]).combine_chunks()


def _suspects(rows: pa.Table, key: Sequence[str]) -> Iterator[Places]:
    """Yield the indices of a key's events in a transaction with a created or updated row and a final deletion."""
    ops, transactions = rows[OP].combine_chunks(), _transactions(rows)
    deletes = pc.equal(ops, "d").fill_null(False)
    has_deletion = pc.is_in(transactions, value_set=pc.unique(transactions.filter(deletes)))
    places = np.flatnonzero(has_deletion.to_numpy(zero_copy_only=False))
    if len(places) < 2:
        return
    groups = _by_key(rows, key, places, transactions)
    ends = pc.take(deletes, groups[_NUMBER + "_max"]).combine_chunks()
    is_suspect = pc.and_(ends, groups[_NUMBER + "row_min"].combine_chunks().is_valid())
    for numbers in groups[_NUMBER + "_list"].filter(is_suspect).to_pylist():
        yield np.sort(np.array(numbers, np.int64))


def _by_key(rows: pa.Table, key: Sequence[str], places: Places, transactions: pa.Array) -> pa.Table:
    """Return a row for each key and transaction: the indices of its events, the last event, the first event with a row.

    :param places: the indices of the events to group.
    :param transactions: the transaction of each event in `rows`.
    """
    keys, ops = by_place(rows, key), rows[OP].take(pa.array(places)).combine_chunks()
    part = keys.take(pa.array(places)).append_column(_GROUP, transactions.take(pa.array(places)))
    is_row = pc.is_in(ops, value_set=pa.array(["c", "u"])).to_numpy(zero_copy_only=False)
    part = part.append_column(_NUMBER, pa.array(places)).append_column(_NUMBER + "row", pa.array(places, mask=~is_row))
    return part.group_by([*keys.column_names, _GROUP]).aggregate(
        [(_NUMBER, "max"), (_NUMBER + "row", "min"), (_NUMBER, "list")]
    )


def _unfinished(rows: pa.Table, key: Sequence[str]) -> Iterator[Places]:
    """Yield the indices of each key's events in an unfinished transaction, if the events create a row.

    The transaction of a partition's last event may go on in the next batch. A single event counts only if deletions
    have values: otherwise the database's key never occurs twice.
    """
    transactions = _transactions(rows)
    partitions, offsets = rows[PARTITION].to_numpy(), rows[OFFSET].to_numpy()
    is_created = pc.equal(rows[OP], "c").fill_null(False).to_numpy()
    have_values: bool | None = None
    for partition in pc.unique(rows[PARTITION]).to_pylist():
        in_partition = np.flatnonzero(partitions == partition)
        # The transaction of the last event by version, and that of the last event by offset, if events are sent again.
        for last in {
            transactions[int(index)] for index in (in_partition[-1], in_partition[np.argmax(offsets[in_partition])])
        }:
            in_transaction = in_partition[pc.equal(transactions, last).to_numpy(zero_copy_only=False)[in_partition]]
            if not is_created[in_transaction].any():
                continue
            if have_values is None:
                # Otherwise a key never occurs twice.
                have_values = _deletions_have_values(rows, key)
            for numbers in _by_key(rows, key, in_transaction, transactions)[_NUMBER + "_list"].to_pylist():
                if (have_values or len(numbers) > 1) and is_created[numbers].any():
                    yield np.sort(np.array(numbers, np.int64))


def _deletions_have_values(rows: pa.Table, key: Sequence[str]) -> bool:
    """Return whether any deletion has a value next to the key that is surely not a placeholder."""
    deletes = rows.filter(pc.equal(rows[OP], "d").fill_null(False))
    return not is_staged(rows) and has_sent_values(deletes, image_columns(rows, key))


@dataclass
class _DeletedValues:
    """Values in a batch's deletions that are surely sent: a placeholder would be the same in all deletions.

    :param columns: the columns except the key.
    :param varying: those of `columns` with several values in the deletions.
    :param with_values: the transactions whose deletions have values; the replica identity may change between two
        transactions.
    """

    rows: pa.Table
    columns: Sequence[str]
    varying: list[str] = field(init=False)
    with_values: set[int] = field(init=False)

    def __post_init__(self) -> None:
        is_delete = pc.equal(self.rows[OP], "d").fill_null(False)
        deleted = images(self.rows.filter(is_delete), self.columns)
        values = {name: {repr(image[name]) for image in deleted if name in image} for name in self.columns}
        self.varying = [name for name in self.columns if len(values[name]) > 1]
        transactions = _transactions(self.rows).filter(is_delete.combine_chunks()).to_pylist()
        self.with_values = {
            transaction for transaction, image in zip(transactions, deleted, strict=True) if _has_sent_values(image)
        }


@dataclass
class _KeyState:
    """State after a key's events in a transaction: the rows that remain under the key.

    :param may_be_old: whether a row from before the transaction may remain.
    :param is_open: whether an update may have changed either the row from before, or a row of the transaction.
    :param live: the events of the transaction whose rows remain, as indices among the key's events.
    :param is_sure: false if a deletion did not show which row it means.
    :param have_values: false if such a deletion has no values except the key.
    """

    may_be_old: bool
    is_open: bool = False
    live: list[int] = field(default_factory=list)
    is_sure: bool = True
    have_values: bool = True


@dataclass
class _KeySettlement:
    """Decisions about the keys of a batch, collected by events' indices.

    :param columns: the columns that show which row a deletion means.
    :param versions: for an event with another version, the index of the event that has the version.
    :param dropped: the events that are left out.
    :param guards: the conditions on the table's rows.
    """

    rows: pa.Table
    key: Sequence[str]
    columns: Sequence[str]
    deleted_values: _DeletedValues
    earlier: PreviousEvents
    versions: dict[int, int] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    guards: dict[int, DeletionGuard] = field(default_factory=dict)

    def settle(self, group: Places) -> None:
        """Decide about a key's rows in a transaction with a final deletion: a row may remain in spite of the deletion.

        :param group: the indices of the key's events in the transaction, rising.
        """
        state = self._follow(group)
        if state.live or state.may_be_old:
            # The deleted row may have been the one from before, and an update of it may hide the row that remains.
            is_sure = state.is_sure and (bool(state.live) or not state.is_open)
            self._conclude(group, state.live, _kind(is_sure=is_sure, have_values=state.have_values))

    def watch(self, group: Places) -> None:
        """Add a guard if an unfinished transaction may have two rows of a key: later events would be ambiguous.

        One of the rows may be the table's row.

        :param group: the indices of the key's events in the transaction, rising.
        """
        state = self._follow(group)
        first, last = int(group[0]), int(group[-1])
        if len(state.live) > 1:
            self._guard(last, first, GuardKind.UNKNOWN)
        elif state.live and state.may_be_old:
            is_settled = int(group[state.live[0]]) in self.versions
            self._guard(int(group[state.live[0]]) if is_settled else last, first, GuardKind.STOP)

    def _follow(self, group: Places) -> _KeyState:
        """Return the state after a key's events in a transaction, given the rising indices of these events."""
        part = self.rows.take(pa.array(group))
        ops, values, positions = part[OP].to_pylist(), images(part, self.columns), part[POSITION].to_pylist()
        # If deleted rows stay, a truncation is an event of each key with a row: no row from before it remains.
        start = len(ops) - ops[::-1].index("t") if "t" in ops else 0
        # An update or deletion that comes first is about the existing row.
        state = _KeyState(may_be_old=not start and ops[0] == "c")
        live, seen_events = state.live, set[tuple[int, str]]()
        has_old_values = _transactions(part)[0].as_py() in self.deleted_values.with_values
        for number, op in enumerate(ops[start:], start):
            # An event sent twice happened once.
            if positions[number] and (positions[number], op) in seen_events:
                continue
            seen_events.add((positions[number], op))
            if op != "d":
                if op == "u":
                    # If no row of the transaction itself matches, the row from before is updated.
                    state.may_be_old = state.may_be_old and bool(live)
                    state.is_open |= state.may_be_old and has_old_values
                    # An update replaces the only row. Of several rows, it is unknown which one is updated, so all
                    # stay.
                    del live[: 1 if len(live) < 2 else 0]
                live.append(number)
                continue
            exact = [row for row in live if _is_same(values[row], values[number])]
            if exact:
                live.remove(exact[0])
            elif live and self._is_of_old(state, has_old_values, live, values, number):
                state.may_be_old = False
            elif live:
                # No row has exactly the deleted values: the newest row is taken for deleted, but this is not sure.
                state.is_sure, state.have_values = False, state.have_values and _has_sent_values(values[number])
                live.pop()
            else:
                state.may_be_old = False
        return state

    def _is_of_old(
        self, state: _KeyState, has_old_values: bool, live: Sequence[int], values: Sequence[Image], number: int
    ) -> bool:
        """Return whether a deletion means the row from before, since all rows of the transaction have different values.

        :param live: the events whose rows remain, as indices in `values`.
        :param values: the image in each event of the key.
        :param number: the deletion, as an index in `values`.
        """
        return state.may_be_old and has_old_values and all(self._differs(values[row], values[number]) for row in live)

    def _conclude(self, group: Places, live: Sequence[int], kind: GuardKind | None) -> None:
        """Note the decision about a key with a final deletion.

        :param group: the indices of the key's events in the transaction.
        :param live: the events whose rows remain, as indices in `group`.
        :param kind: the guard for the table's row, if no row of the transaction remains; None for no guard.
        """
        first, last = int(group[0]), int(group[-1])
        # Several rows remain, or it is not sure which one: no row of the table can decide.
        if len(live) > 1 or (live and kind is not GuardKind.KEEP):
            self._guard(last, first, GuardKind.UNKNOWN)
        elif live:
            # The old row is deleted, the new row stays: its event gets the version of the last event.
            self.versions[int(group[live[0]])] = last
            self.dropped |= set(group.tolist()) - {int(group[live[0]])}
        elif kind is not None:
            self._guard(last, first, kind, group)

    def _differs(self, row: Image, image: Image) -> bool:
        """Return whether a row is surely not the row of a deletion's image."""
        return any(name in row and name in image and row[name] != image[name] for name in self.deleted_values.varying)

    def _guard(self, event: int, first: int, kind: GuardKind, group: Places | None = None) -> None:
        """Add a guard to an event, unless an earlier event of the batch makes the table's row irrelevant.

        :param event: the event's index, and `first` that of the key's first event in the transaction.
        :param group: the indices of the key's events in the transaction, to be dropped if the row from before stays.
        """
        before = self.earlier.of(first)
        # An event that was dropped from an earlier transaction has left its row in the table.
        leaves_row = before in self.dropped or (before is not None and self.rows[OP][before].as_py() not in ("d", "t"))
        # An earlier event of the batch has deleted the row from before: the table will have no row of the key.
        if before is not None and not leaves_row and kind is not GuardKind.UNKNOWN:
            return
        if before is not None and kind is GuardKind.KEEP and group is not None:
            # The row from before is in this batch, and stays as it is.
            self.dropped |= set(group.tolist())
            return
        since = (self.rows[COMMIT][first].as_py(), self.rows[POSITION][first].as_py())
        partition, offset = self.rows[PARTITION][event].as_py(), self.rows[OFFSET][event].as_py()
        version = None if before is None else versions(self.rows.slice(before, 1))[0]
        self.guards[event] = DeletionGuard(kind, since, partition, offset, before=version)

    def done(self) -> OrderedEvents:
        """Return the events with new versions, without dropped events, and the guards by the indices of the result."""
        rows = self.rows
        if self.versions:
            version_sources = np.arange(len(rows))
            version_sources[list(self.versions)] = list(self.versions.values())
            for name in VERSION:
                column = rows[name].take(pa.array(version_sources))
                rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), column)
        kept = np.setdiff1d(np.arange(len(rows)), np.array(sorted(self.dropped), np.int64))
        new_indices = {int(old_index): new_index for new_index, old_index in enumerate(kept)}
        guards = {new_indices[old_index]: guard for old_index, guard in self.guards.items()}
        return OrderedEvents(rows.take(pa.array(kept)).combine_chunks(), guards)


def _kind(*, is_sure: bool, have_values: bool) -> GuardKind | None:
    """Return the guard for the table's row of a key with a final deletion, or None for no guard; see `_KeyState`."""
    if is_sure:
        return GuardKind.KEEP
    # If deletions have only the key, a key never occurs twice: the database prevents it.
    return GuardKind.STOP if have_values else None


def _is_same(row: Mapping[str, Any], image: Mapping[str, Any]) -> bool:
    """Return whether a row has all values of a deletion's image."""
    return all(name in row and row[name] == value for name, value in image.items())


def _has_sent_values(image: Image) -> bool:
    """Return whether any value of an image is surely not a placeholder."""
    return any(not is_placeholder(value) for value in image.values())


def indices_without_repeated(rows: pa.Table, key: Sequence[str], transactions: pa.Array) -> pa.Array:
    """Return the indices of all events except those that were sent again.

    The first copy of such an event is in this batch or an earlier batch. Events between the copy and the key's next
    event may be in an earlier batch only: then the key would seem to have had two rows at once.

    :param rows: in the order of their versions.
    :param transactions: the transaction of each event.
    """
    is_above_later = _above_a_later_event(rows)
    if not is_above_later.any():
        return pa.array(np.arange(len(rows)))
    first = int(np.flatnonzero(is_above_later)[0])
    part = rows.slice(first)
    names = (PARTITION, OFFSET, POSITION)
    places = zip(*(part[name].to_pylist() for name in names), transactions.slice(first).to_pylist(), strict=True)
    kept = np.ones(len(rows), np.bool_)
    lowest: dict[Any, int] = {}
    numbered = list(enumerate(zip(keys_of(part, key), places, strict=True), first))
    # Backwards: an event is repeated if a later event of its key and transaction has a smaller offset. Rows of a
    # snapshot, with position 0, are kept.
    for number, (key_values, (partition, offset, position, transaction)) in reversed(numbered):
        group = (key_values, partition, transaction)
        kept[number] = not position or offset < lowest.get(group, offset + 1)
        lowest[group] = min(offset, lowest.get(group, offset))
    return pa.array(np.flatnonzero(kept))


def _above_a_later_event(rows: pa.Table) -> np.ndarray:
    """Return a mask of the events that have a greater offset than an event behind them, in the same partition.

    :param rows: in the order of their versions.
    """
    partitions, offsets = rows[PARTITION].to_numpy(), rows[OFFSET].to_numpy()
    mask = np.zeros(len(rows), np.bool_)
    for partition in pc.unique(rows[PARTITION]).to_pylist():
        in_partition = np.flatnonzero(partitions == partition)
        mask[in_partition] = offsets[in_partition] > np.minimum.accumulate(offsets[in_partition][::-1])[::-1]
    return mask
