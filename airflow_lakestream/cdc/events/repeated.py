"""Events sent again by a restarted connector, at offsets behind later events of the same key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import OFFSET, PARTITION, POSITION
from airflow_lakestream.cdc.keys.identity import keys_of


def indices_without_repeated(rows: pa.Table, key: Sequence[str], transactions: pa.Array) -> pa.Array:
    """Return the indices of all events except repeated events.

    This batch or an earlier batch already has a repeated event. Events between the repeated event and the key's next
    event may be in an earlier batch only: then the key would seem to have had two rows at once.

    :param rows: in the order of their versions.
    :param transactions: the transaction of each event.
    """
    some = _above_a_later_event(rows)
    if not some.any():
        return pa.array(np.arange(len(rows)))
    first = int(np.flatnonzero(some)[0])
    part = rows.slice(first)
    names = (PARTITION, OFFSET, POSITION)
    places = zip(*(part[name].to_pylist() for name in names), transactions.slice(first).to_pylist(), strict=True)
    kept = np.ones(len(rows), np.bool_)
    lowest: dict[Any, int] = {}
    numbered = list(enumerate(zip(keys_of(part, key), places, strict=True), first))
    # Backwards: an event is repeated if a later event of its key and transaction has a smaller offset. Rows of a
    # snapshot, with position 0, are kept.
    for number, (own, (partition, offset, position, transaction)) in reversed(numbered):
        group = (own, partition, transaction)
        kept[number] = not position or offset < lowest.get(group, offset + 1)
        lowest[group] = min(offset, lowest.get(group, offset))
    return pa.array(np.flatnonzero(kept))


def _above_a_later_event(rows: pa.Table) -> np.ndarray:
    """Return a mask of the events at an offset above the offset of a later event, in the same partition.

    :param rows: in the order of their versions.
    """
    partitions, offsets = rows[PARTITION].to_numpy(), rows[OFFSET].to_numpy()
    found = np.zeros(len(rows), np.bool_)
    for partition in pc.unique(rows[PARTITION]).to_pylist():
        own = np.flatnonzero(partitions == partition)
        found[own] = offsets[own] > np.minimum.accumulate(offsets[own][::-1])[::-1]
    return found
