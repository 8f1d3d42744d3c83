"""Raw records: key and value, as bytes or as text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as t

from airflow_lakestream.core.policies import UnknownFields
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.lanes import leaves
from airflow_lakestream.decode.values.outcome import DecoderResult, SchemaDecoder
from airflow_lakestream.exceptions import InvalidArgument

_COLUMNS = ("key", "value")


def arrow_schema(kind: pa.DataType | None = None) -> pa.Schema:
    """Return the columns of raw records, all of type `kind`, by default binary."""
    return pa.schema([pa.field(name, kind or pa.binary()) for name in _COLUMNS])


class RawDecoder(SchemaDecoder):
    """Decoder of keys and values into the columns `key` and `value`, of a binary type or text.

    :param schema: one of the columns, or both; `nullable=False` makes a column required.
    :param unknown_fields: as for other formats; without effect, since raw records have no fields.
    """

    def __init__(self, schema: pa.Schema, unknown_fields: UnknownFields | str = UnknownFields.IGNORE) -> None:
        super().__init__(schema, unknown_fields)
        for field in schema:
            if field.name not in _COLUMNS:
                remedy = "Name the columns key and value."
                raise InvalidArgument("schema", f"raw records have no {field.name}.", remedy)
            if not any(
                is_kind(field.type) for is_kind in (t.is_binary, t.is_large_binary, t.is_string, t.is_large_string)
            ):
                raise InvalidArgument("schema", f"{field.name} can't be {field.type}.", "Make it binary or string.")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.schema, str(self.unknown_fields))

    def decode(self, batch: RawBatch) -> DecoderResult:
        """Return the rows and the bad records of a batch: invalid text, or a null in a required column.

        Raises InvalidArgument when the schema has keys and the records were read without them.
        """
        reasons: dict[int, str] = {}
        columns = [self._column(field, batch, reasons) for field in self.schema]
        return DecoderResult.without(reasons, columns, self.schema)

    def _column(self, field: pa.Field, batch: RawBatch, reasons: dict[int, str]) -> pa.Array:
        # The value of a row with a reason does not matter: the caller leaves the row out.
        values = batch.values if field.name == "value" else batch.keys
        if values is None:
            raise InvalidArgument("schema", "it has a column key, and the records were read without their keys.")
        if not field.nullable and values.null_count:
            for place in np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False)):
                reasons.setdefault(int(place), f"{field.name}: null, and the column is required")
        try:
            return values.cast(field.type)
        except pa.ArrowInvalid:
            texts = [None if leaves.not_utf8(value) else value for value in values.to_pylist()]
            for index, (text, value) in enumerate(zip(texts, values.to_pylist(), strict=True)):
                if text is None and value is not None:
                    reasons.setdefault(index, f"{field.name}: invalid UTF-8")
            return pa.array(texts, pa.binary()).cast(field.type)
