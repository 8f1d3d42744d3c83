"""The columns that say which table each row goes to: the values of a template's placeholders, record by record."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.core.routing import (
    ROUTE_COLUMNS,
    SEPARATOR,
    Origin,
    Placeholder,
    TableTemplate,
    Unroutable,
)
from airflow_lakestream.decode.metadata import metadata_columns
from airflow_lakestream.decode.misfit import quoted
from airflow_lakestream.exceptions import BadRecord, InvalidArgument

_REMEDY = "Nothing of this batch was landed. Correct the producer, or route by another value."


@dataclass(frozen=True)
class Router:
    """Finds the route of each record: its values for the template's placeholders, which name its table."""

    template: TableTemplate

    @property
    def needs_keys(self) -> bool:
        """Whether records have to be read with their keys."""
        return any(p.origin is Origin.KEY for p in self.template.by_record)

    @property
    def needs_headers(self) -> bool:
        """Whether records have to be read with their headers."""
        return any(p.origin is Origin.HEADER for p in self.template.by_record)

    def check(self, schema: pa.Schema) -> None:
        """Refuse a payload without the fields to route by, or with types that name no table. Raises InvalidArgument."""
        for placeholder in self.template.by_record:
            if placeholder.origin is not Origin.FIELD:
                continue
            if placeholder.name not in schema.names:
                columns = ", ".join(schema.names)
                raise InvalidArgument(
                    "table",
                    f"{self.template.text!r}: the schema has no column {placeholder.name!r}; it has {columns}.",
                    "Route by one of those, or add the column to the schema.",
                )
            kind = schema.field(placeholder.name).type
            if not _names_tables(kind):
                raise InvalidArgument(
                    "table",
                    f"{self.template.text!r}: the column {placeholder.name!r} is {kind}, by which no table is named.",
                    "Route by a string, an integer, a boolean, a decimal or a date.",
                )

    def columns(self, batch: RawBatch, rows: pa.Table) -> list[tuple[str, pa.Array]]:
        """Return route, partition and offset of each row by name. Raises BadRecord for the first without a route."""
        parts = [self._values(placeholder, batch, rows) for placeholder in self.template.by_record]
        route = parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, SEPARATOR)
        encoded = pc.dictionary_encode(route)
        for number, text in enumerate(encoded.dictionary.to_pylist()):
            values = text.split(SEPARATOR)
            try:
                if len(values) != len(parts):
                    raise Unroutable("holds a control character")
                self.template.table(values)
            except Unroutable as e:
                index = pc.index(encoded.indices, pa.scalar(number, encoded.indices.type)).as_py()
                shown = " and ".join(f"{p} {quoted(v)}" for p, v in zip(self.template.by_record, values, strict=False))
                raise _bad(batch, index, f"its {shown} {e}") from None
        return list(zip(ROUTE_COLUMNS, [encoded, *metadata_columns(batch, ("partition", "offset"))], strict=True))

    def _values(self, placeholder: Placeholder, batch: RawBatch, rows: pa.Table) -> pa.Array:
        if placeholder.origin is Origin.FIELD:
            values = rows[placeholder.name].combine_chunks().cast(pa.string())
            # A column of text takes documents as their text.
            nested = pc.match_substring_regex(values, r"^\s*[\[{]")
            _refuse_first(batch, nested, values, f"its {placeholder} is %s, not a single value")
        else:
            raw = batch.keys if placeholder.origin is Origin.KEY else _headers(batch, placeholder.name)
            if raw is None:
                raise AssertionError(f"the records were read without what {placeholder} routes by")
            values = _text(batch, pa.array(raw, pa.binary()), placeholder)
        _refuse_first(batch, pc.is_null(values), values, f"it has no {placeholder} to route by")
        return values


def _names_tables(kind: pa.DataType) -> bool:
    checks = (pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_boolean)
    return any(check(kind) for check in (*checks, pa.types.is_decimal, pa.types.is_date))


def _headers(batch: RawBatch, name: str) -> list[bytes | None] | None:
    if batch.headers is None:
        return None
    # Of several headers of one name the last one counts, as Kafka's own lastHeader() has it.
    return [next((v for key, v in reversed(headers or ()) if key == name), None) for headers in batch.headers]


def _text(batch: RawBatch, raw: pa.Array, placeholder: Placeholder) -> pa.Array:
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        for index, value in enumerate(raw.to_pylist()):
            try:
                (value or b"").decode()
            except UnicodeDecodeError:
                raise _bad(batch, index, f"its {placeholder} {value[:80]!r} is not UTF-8 text") from None
        raise


def _refuse_first(batch: RawBatch, refused: pa.Array, values: pa.Array, reason: str) -> None:
    index = pc.index(refused, pa.scalar(True)).as_py()
    if index >= 0:
        value = values[index].as_py()
        raise _bad(batch, index, reason % quoted(value) if "%s" in reason else reason)


def _bad(batch: RawBatch, index: int, reason: str) -> BadRecord:
    return BadRecord(batch.topic, batch.partition, batch.offsets[index], f"{reason}. {_REMEDY}")
