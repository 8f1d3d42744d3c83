"""JSON messages in the wire format of Confluent's serializer for JSON Schema."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from airflow_lakestream.core.policies import UnknownFields, choose
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.lanes import confluent
from airflow_lakestream.decode.lanes.confluent import HEADER
from airflow_lakestream.decode.lanes.lanes import ByteLanes, Integers, cut
from airflow_lakestream.decode.values.outcome import BadRow, DecoderResult


class _DocumentDecoder(Protocol):
    def decode(self, batch: RawBatch) -> DecoderResult: ...


class JsonSchemaDecoder:
    """Decoder of framed JSON: removes the frames, and passes the documents to the decoder of plain JSON.

    Records are not validated against their schemas: the decoder checks them against the columns.

    :param documents: returns a decoder of plain JSON, given a schema and a policy for unknown fields.
    """

    def __init__(
        self,
        schema: pa.Schema,
        unknown_fields: UnknownFields | str,
        documents: Callable[[pa.Schema, UnknownFields], _DocumentDecoder],
    ) -> None:
        self.schema = schema
        self.unknown_fields = choose(UnknownFields, "unknown_fields", unknown_fields)
        self._make = documents
        self._documents = documents(schema, self.unknown_fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.schema, str(self.unknown_fields), self._make)

    def decode(self, batch: RawBatch) -> DecoderResult:
        """Return the rows and the bad records of a batch."""
        framed = unframe(batch.values)
        count = len(framed.places)
        inner = RawBatch(batch.topic, batch.partition, range(count), [-1] * count, framed.values)
        decoded = self._documents.decode(inner)
        bad = [BadRow(int(framed.places[row.index]), row.reason, framed.schema_id(row.index)) for row in decoded.bad]
        bad += [BadRow(index, _NO_FRAME) for index in framed.unframed]
        return DecoderResult(decoded.rows, sorted(bad, key=lambda row: row.index))


_NO_FRAME = "the value does not begin as Confluent's wire format does: a zero and a schema id"


@dataclass(frozen=True)
class FramedValues:
    """Values without their frames, and the positions of values that lack a frame, in `unframed`.

    For each of `values`, `places` has the position in the batch, and `ids` the schema id, or -1 for a null. A null
    needs no frame, and stays null.
    """

    values: pa.Array
    places: Integers
    ids: Integers
    unframed: list[int]

    def schema_id(self, row: int) -> int | None:
        """Return the schema id of a value, or None for a null."""
        return int(self.ids[row]) if self.ids[row] >= 0 else None


def unframe(values: pa.Array) -> FramedValues:
    """Return the values without their frames, and the positions of values that lack a frame."""
    lanes = ByteLanes.over(values)
    null = values.is_null().to_numpy(zero_copy_only=False)
    framed = confluent.is_framed(lanes) & (lanes.end - lanes.pos >= HEADER)
    kept = framed | null
    ids = np.where(null, -1, confluent.schema_ids(lanes, framed))
    inner = values if kept.all() else values.filter(pa.array(kept))
    return FramedValues(cut(inner, HEADER), np.flatnonzero(kept), ids[kept], np.flatnonzero(~kept).tolist())
