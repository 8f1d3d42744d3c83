"""Deletions without the key of a row: Debezium puts zeros in place of a key not sent by PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import COMMIT, OFFSET, OP, PARTITION, POSITION, TRANSACTION
from airflow_lakestream.cdc.events.apart import is_staged
from airflow_lakestream.cdc.events.provenance import is_serial
from airflow_lakestream.cdc.keys.guards import DeletionGuard, GuardCheck, GuardKind, fits
from airflow_lakestream.cdc.keys.identity import keys_of
from airflow_lakestream.cdc.keys.images import PreviousEvents, image_columns, images, is_placeholder, zero_keys

# The values of a key.
Keyed = tuple[object, ...]


def sent_guards(rows: pa.Table, key: Sequence[str], judge: GuardCheck) -> dict[Keyed, DeletionGuard]:
    """Return guards for deletions whose key may be wrong, by key, to check against the table's rows.

    Raises MirrorStopped if another event of the batch shows that the key is wrong.

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
    guards: dict[Keyed, DeletionGuard] = {}
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
