"""Notes of the decoder on a batch of events, by which a driver knows whether it has to read the values of rows."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import (
    BEFORE,
    DELETES_HAVE_VALUES,
    KEY_NAMES,
    LEAVES_OUT,
    OF_EVENTS,
    OP,
    ROW_BYTES,
    VERSION,
)
from airflow_lakestream.cdc.events.record_keys import as_list
from airflow_lakestream.cdc.keys.images import has_sent_values
from airflow_lakestream.decode.connect.unavailable import left_out


def note_columns() -> pa.Schema:
    """Return the columns of the notes."""
    return pa.schema([(LEAVES_OUT, pa.bool_()), (DELETES_HAVE_VALUES, pa.bool_()), (ROW_BYTES, pa.int64())])


def with_notes(events: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return events with the same notes in each row: `LEAVES_OUT`, `DELETES_HAVE_VALUES` and `ROW_BYTES`.

    A flag is true if it is true for any of the events. `ROW_BYTES` is the average.

    :param key: the columns of the mirror's key, if the user names them.
    """
    other_columns = (*VERSION, *OF_EVENTS)
    row_columns = [name for name in events.column_names if name not in other_columns and not name.startswith(BEFORE)]
    deletes = events.filter(pc.equal(events[OP], "d").fill_null(False))
    keys = set(key) or _keys_of_records(events)
    notes = (
        any(left_out(events[name]).any() for name in row_columns),
        has_sent_values(deletes, [name for name in row_columns if name not in keys]),
        events.select(row_columns).nbytes // max(1, len(events)),
    )
    return _noted(events, notes)


def with_notes_of_records(rows: pa.Table) -> pa.Table:
    """Return rows of plain records with the notes of `with_notes`: no value is left out, a deletion has only a key."""
    row_columns = [name for name in rows.column_names if name not in (*VERSION, *OF_EVENTS)]
    notes = (False, False, rows.select(row_columns).nbytes // max(1, len(rows)))
    return _noted(rows, notes)


def _noted(events: pa.Table, notes: Sequence[object]) -> pa.Table:
    for column, note in zip(note_columns(), notes, strict=True):
        events = events.append_column(column, pa.repeat(pa.scalar(note, column.type), len(events)))
    return events


def _keys_of_records(events: pa.Table) -> set[str]:
    """Return the columns common to the keys of all records."""
    names = [set(as_list(text) or ()) for text in pc.unique(events[KEY_NAMES]).to_pylist() if text is not None]
    return set.intersection(*names) if names else set()
