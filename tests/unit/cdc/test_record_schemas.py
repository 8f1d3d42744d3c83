"""The columns of all schemas of a mirror's records, found by several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from airflow_lakestream.cdc.events import schemas as found_schemas


class GivenSchemas(found_schemas.RecordSchemas):
    """Schemas of batches that are a type each."""

    def _of_batch(self, batch: Any) -> Iterator[tuple[found_schemas.Row, int]]:
        yield [pa.field("v", batch.type)], 0


class TypedBatch:
    """A batch of one record, whose schema has one column."""

    partition, offsets = 0, (0,)

    def __init__(self, *fields: str) -> None:
        self.type = pa.struct([pa.field(name, pa.int64()) for name in fields])


def test_a_type_that_another_thread_widens_meanwhile_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: Any = None
    schemas, join = GivenSchemas(nothing, nothing, "lake.t"), found_schemas.joined_type
    first, other = TypedBatch("a"), TypedBatch("a", "c")
    schemas.row(first)  # type: ignore[arg-type]
    thread = threading.Thread(target=schemas.row, args=(other,))

    def joined(there: pa.DataType, seen: pa.DataType) -> pa.DataType | None:
        # Between the look at the known type and the new one; a thread that waits for this one goes on afterwards.
        if threading.current_thread() is not thread and not thread.ident:
            thread.start()
            thread.join(0.5)
        return join(there, seen)

    monkeypatch.setattr(found_schemas, "joined_type", joined)
    schemas.row(TypedBatch("a", "b"))  # type: ignore[arg-type]
    thread.join()
    [column] = schemas.row(first)  # type: ignore[arg-type]
    assert {one.name for one in column.type} == {"a", "b", "c"}
