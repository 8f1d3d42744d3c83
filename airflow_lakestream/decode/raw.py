"""Raw records: key and value, as bytes or as text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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

        Raises InvalidArgument if the schema has keys and the records were read without keys.
        """
        reasons: dict[int, str] = {}
        columns = [self._column(field, batch, reasons) for field in self.schema]
        return DecoderResult.without(reasons, columns, self.schema)

    def _column(self, field: pa.Field, batch: RawBatch, reasons: dict[int, str]) -> pa.Array:
        """Return a column; add the reasons of bad records to `reasons`. The value of a bad record has no meaning."""
        values = batch.values if field.name == "value" else batch.keys
        if values is None:
            raise InvalidArgument("schema", "it has a column key, and the records were read without their keys.")
        if not field.nullable and values.null_count:
            for index in np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False)):
                reasons.setdefault(int(index), f"{field.name}: null, and the column is required")
        try:
            return values.cast(field.type)
        except pa.ArrowInvalid:
            is_invalid = [value is not None and leaves.not_utf8(value) for value in values.to_pylist()]
            for index in np.flatnonzero(is_invalid):
                reasons.setdefault(int(index), f"{field.name}: invalid UTF-8")
            return pc.if_else(pa.array(is_invalid), pa.scalar(None, values.type), values).cast(field.type)
