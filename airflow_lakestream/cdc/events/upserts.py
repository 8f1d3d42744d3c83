"""Decoder of plain records for a mirror: the newest record of a key is the row, and a tombstone deletes the row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import COMMIT, GIVEN, MARK, OP, POSITION, SEQUENCE, TIME
from airflow_lakestream.cdc.events.flattened import TIME_FIELD, FlattenedRecords, place_columns
from airflow_lakestream.cdc.events.kafka_keys import KafkaKeyReader, type_at
from airflow_lakestream.cdc.events.notes import with_notes_of_records
from airflow_lakestream.cdc.events.presence import given_fields
from airflow_lakestream.cdc.events.sequence import check_type, has_numbers, place_bytes, place_numbers
from airflow_lakestream.cdc.events.statement import RecordRows
from airflow_lakestream.cdc.events.widening import grown, joined_type
from airflow_lakestream.cdc.stops import MirrorStopped, StopReason, forms_mixed
from airflow_lakestream.core.policies import ValueFormat
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.connect.debezium_own import RecordForm
from airflow_lakestream.decode.connect.unavailable import Mask, ValuePlaceholder, left_out, may_be_left_out
from airflow_lakestream.decode.json.decoder import WithoutColumn
from airflow_lakestream.decode.values.outcome import BadRow, DecoderResult, Indices, all_but, pick
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.row_buffer import one_array
from airflow_lakestream.tables.schema.required import cast_to

if TYPE_CHECKING:
    from airflow_lakestream.cdc.events.records import RecordPayload
    from airflow_lakestream.transform import SqlTransform

_LEFT_OUT = (
    "is Debezium's mark of a value that it left out, and a plain record does not show which value: let "
    'the connector send whole events, and use envelope="debezium"'
)
_REWRITE = "set delete.tombstone.handling.mode=rewrite in the connector"


class UpsertDecoder:
    """Decoder of plain records into upserts and deletions. New fields become columns while decoding.

    Each thread and process decodes with its own columns. Columns and rows of all are joined for the commit.
    """

    def __init__(self, payload: RecordPayload, schema: pa.Schema) -> None:
        self._payload, self._schema = payload, schema
        self._schemas = payload.record_schemas()
        # Decoder, reader and condition for the last batch's columns: the next batch mostly has the same columns.
        self._decoder = payload.of_columns(schema if payload.statement is None else payload.statement.decoded or schema)
        self._keys: KafkaKeyReader | None = None
        self._condition: DeletionCondition | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._payload, self._schema)

    @property
    def schema(self) -> pa.Schema:
        """The columns before the next batch."""
        return self._schema

    def decode(self, batch: RawBatch) -> DecoderResult:
        """Return the rows and the bad records of a batch.

        A field that the mirror lacks becomes a column of the rows. Raises MirrorStopped for columns that the
        mirror can't have, InvalidArgument for columns unfit for key, sequence or condition, SqlFailed, SchemaRefused,
        and the registry's errors.
        """
        decoded = self._with_values(batch)
        if self._payload.keeps_absent:
            self._note_given(batch, decoded)
        self._complete_keys(batch, decoded)
        self._find_deleted(decoded)
        flattened = FlattenedRecords(decoded.rows) if self._payload.is_flattened else None
        self._check_forms(batch, decoded, flattened)
        if flattened is not None:
            decoded.is_deleted |= flattened.deleted()
        self._place(decoded)
        if flattened is not None:
            self._place_by_log(batch, decoded, flattened)
            if self._payload.names.rows.keeps_versions:
                self._add_times(decoded, flattened)
        for name in self._payload.own_columns(decoded.rows.column_names):
            if may_be_left_out(decoded.rows.schema.field(name).type):
                mask = left_out(decoded.rows[name], ValuePlaceholder(self._payload.placeholder))
                decoded.refuse(mask, f"{name}: {self._payload.placeholder} {_LEFT_OUT}")
        return decoded.result()

    def _with_values(self, batch: RawBatch) -> _BatchRows:
        """Return a row for each good value, and a row of nulls for each tombstone."""
        there = batch.values.is_valid().to_numpy(zero_copy_only=False)
        places = np.flatnonzero(there)
        made = self._rows_of(batch if there.all() else pick(batch, places))
        found = self._payload.with_nested(made.rows)
        self._check_types(found.schema)
        schema = grown(self._schema, found.schema)
        lacking = [name for name in self._payload.key if name not in schema.names]
        # A column keeps its first type: the rows of one process go into one file.
        self._schema = schema = grown(schema, self._payload.key_columns(batch, lacking))
        bad = {int(places[row.index]): replace(row, index=int(places[row.index])) for row in made.bad}
        at = np.full(len(batch), -1)
        at[places[made.kept]] = np.arange(len(made.kept))
        kept = np.flatnonzero((at >= 0) | ~there)
        rows = _with_columns(found, schema)
        if len(kept) > len(made.kept):
            rows = rows.take(pa.array(at[kept], mask=at[kept] < 0))
        return _BatchRows(rows, kept, ~there[kept], bad, places[made.filtered].tolist())

    def _rows_of(self, values: RawBatch) -> RecordRows:
        """Return the rows of values, decoded or made by the statement, with further columns for new fields."""
        if self._payload.statement is not None:
            return self._payload.statement.rows(values, self._decoder)
        if self._schemas is not None:
            columns = self._payload.of_schemas(self._schemas.row(values), self._schema.names)
            self._schema = grown(self._schema, columns)
        while True:
            if self._decoder.schema != self._payload.of_fields(self._schema):
                self._decoder = self._payload.of_columns(self._schema)
            try:
                decoded = self._decoder.decode(values)
                break
            except WithoutColumn as found:
                self._schema = self._payload.with_fields(self._schema, list(found.leftovers.values()))
        kept = all_but(len(values), [row.index for row in decoded.bad])
        return RecordRows(decoded.rows, kept, kept[:0], decoded.bad)

    def _note_given(self, batch: RawBatch, decoded: _BatchRows) -> None:
        """Add the column `GIVEN`: the columns whose fields each record has, as a list in JSON."""
        kept, columns = pick(batch, decoded.places), self._payload.own_columns(decoded.rows.column_names)
        fields = {self._payload.field_of(name): name for name in columns if name not in self._payload.nested}
        is_avro = self._payload.format == ValueFormat.AVRO and self._schemas is not None
        by_schema = self._schemas.fields_of(kept) if is_avro and self._schemas is not None else ()
        given = given_fields(decoded.rows, fields, kept.values, self._payload.format, by_schema)
        decoded.rows = decoded.rows.append_column(GIVEN, given)

    def _check_types(self, found: pa.Schema) -> None:
        """Refuse a nested field, or a column of the statement, whose type has no common type with the mirror's column.

        Raises InvalidArgument.
        """
        statement, nested = self._payload.statement, self._payload.nested
        for name in found.names:
            if (statement is None and name not in nested) or name not in self._schema.names:
                continue
            own, kind = self._schema.field(name).type, found.field(name).type
            if joined_type(own, kind) is not None:
                continue
            if name in nested:
                problem = f"{self._payload.label(name)} is {kind} in the records, and the column {name} is {own}."
                raise InvalidArgument("key", problem, "Give the nested field and the column the same type in schema.")
            problem = f"it makes {kind} of the column {name}, which is {own}."
            raise InvalidArgument("sql", problem, "Cast it to the column's type, or name another column: AS.")

    def _check_forms(self, batch: RawBatch, decoded: _BatchRows, flattened: FlattenedRecords | None) -> None:
        """Stop at a record of another form than the others of the batch. Raises MirrorStopped."""
        if flattened is not None:
            self._check_flattened(batch, decoded, flattened.whole_events(), "it is a whole event of Debezium")
        if self._payload.statement is not None:
            return
        for form, mask in (flattened or FlattenedRecords(decoded.rows)).forms():
            # A topic of such documents alone is one of plain records, if its user wants it.
            if mask.any() and (flattened is not None or (~mask & ~decoded.is_tombstone).any()):
                place = decoded.places[np.flatnonzero(mask)[0]]
                where = f"{batch.topic}[{batch.partition}] offset {batch.offsets[place]}"
                wanted = RecordForm.PLAIN if flattened is None else RecordForm.FLATTENED
                raise forms_mixed(self._payload.names.table, where, form, wanted)

    def _check_flattened(self, batch: RawBatch, decoded: _BatchRows, mask: Mask, problem: str) -> None:
        """Raise MirrorStopped for the first good record of a mask, since it has no order with flattened events."""
        bad = np.isin(decoded.places, np.array(list(decoded.bad), np.int64))
        for place in decoded.places[mask & ~bad][:1].tolist():
            where = f"{batch.topic}[{batch.partition}] offset {batch.offsets[place]}"
            remedy = "Let one connector with one setting of ExtractNewRecordState write a new topic, for a new table."
            raise MirrorStopped(
                self._payload.names.table, StopReason.ORDER_UNKNOWN, f"{where}: {problem} among flattened ones.", remedy
            )

    def _place_by_log(self, batch: RawBatch, decoded: _BatchRows, flattened: FlattenedRecords) -> None:
        """Set the place of each record in the database's log, if records have one. Raises MirrorStopped."""
        found = flattened.log_positions()
        if found is None:
            return
        commit, position = found
        lacks = commit.is_null().to_numpy(zero_copy_only=False)
        columns = place_columns(decoded.rows.column_names)
        self._check_flattened(batch, decoded, lacks & ~decoded.is_tombstone, f"it has no {columns}, unlike others")
        if flattened.has_deletions:
            # The deletion itself came as a record.
            decoded.leave_out(decoded.is_tombstone)
        else:
            reason = f"a tombstone has no {columns}: {_REWRITE}"
            decoded.refuse(decoded.is_tombstone, reason)
        for name, column in ((COMMIT, commit), (POSITION, position)):
            decoded.set(name, pc.coalesce(column, pa.scalar(0, pa.int64())))

    def _add_times(self, decoded: _BatchRows, flattened: FlattenedRecords) -> None:
        """Add the time of each event, in microseconds; an event without a time is bad."""
        times = flattened.times()
        if flattened.has_deletions:
            # The deletion itself came as a record.
            decoded.leave_out(decoded.is_tombstone)
        else:
            decoded.refuse(decoded.is_tombstone, f"a tombstone has no {TIME_FIELD}: {_REWRITE}")
        lacks = times.is_null().to_numpy(zero_copy_only=False) & ~decoded.is_tombstone
        decoded.refuse(lacks, f"no {TIME_FIELD}, the time from which a version is valid: set add.fields=source.ts_ms")
        decoded.rows = decoded.rows.append_column(TIME, times.fill_null(0))

    def _complete_keys(self, batch: RawBatch, decoded: _BatchRows) -> None:
        """Fill key columns without a value from the Kafka keys; a record without any value of the key is bad."""
        key = self._payload.key
        if missing := [name for name in key if name not in decoded.rows.column_names]:
            decoded.refuse(np.ones(len(decoded.rows), np.bool_), _no_value(self._payload.label(missing[0])))
            return
        lacking = np.zeros(len(decoded.rows), np.bool_)
        for name in key:
            lacking |= decoded.rows[name].is_null().to_numpy()
        at = np.flatnonzero(lacking)
        if not len(at):
            return
        found = self._key_reader().read(pick(batch, decoded.places[at]))
        scattered = np.full(len(decoded.rows), -1)
        scattered[at] = np.arange(len(at))
        taken = pa.array(scattered, mask=scattered < 0)
        for name, values in zip(key, found.columns.columns, strict=True):
            decoded.set(name, pc.coalesce(one_array(decoded.rows[name]), one_array(values).take(taken)))
        for number, reason in found.reasons.items():
            decoded.refuse_one(int(at[number]), reason)
        for name in key:
            decoded.refuse(decoded.rows[name].is_null().to_numpy(), _no_value(self._payload.label(name)))

    def _find_deleted(self, decoded: _BatchRows) -> None:
        """Note in `is_deleted` the rows for which `delete_when` is true; a record is bad if the condition fails."""
        sql, at = self._payload.delete_when, np.flatnonzero(~decoded.is_tombstone)
        if not sql or not len(at):
            return
        rows = decoded.rows.take(pa.array(at)) if decoded.is_tombstone.any() else decoded.rows
        if self._condition is None or not self._condition.fits(rows.schema):
            self._condition = DeletionCondition(sql, rows.schema)
        decoded.is_deleted[at], reasons = self._condition.mask(rows)
        for number, reason in reasons.items():
            decoded.refuse_one(int(at[number]), reason)

    def _key_reader(self) -> KafkaKeyReader:
        columns = pa.schema([self._schema.field(name) for name in self._payload.key])
        if self._keys is None or self._keys.columns.types != columns.types:
            self._keys = self._payload.key_reader(columns)
        return self._keys

    def _place(self, decoded: _BatchRows) -> None:
        """Add the operation and the place of each record; a record without a place is bad."""
        names, count = self._payload.sequence_by, len(decoded.rows)
        rows, zero = decoded.rows, pa.scalar(0, pa.int64())
        if names:
            reason = f'a tombstone has no {names[0]}: tombstones="skip" leaves tombstones out'
            decoded.refuse(decoded.is_tombstone, reason)
        numbers, every = [pa.repeat(zero, count), pa.repeat(zero, count)], list[pa.Array]()
        keeps_versions = self._payload.names.rows.keeps_versions
        for number, name in enumerate(names):
            column = _column_at(rows, name)
            if column is None:
                decoded.refuse(~decoded.is_tombstone, _no_order(name))
                continue
            field = pa.field(name, column.type)
            check_type(field, needs_timestamp=self._payload.needs_timestamp and not number, is_number=keeps_versions)
            every.append(column)
            decoded.refuse(column.is_null().to_numpy(zero_copy_only=False), _no_order(name))
            if has_numbers(column.type):
                values, beyond = place_numbers(column)
                decoded.refuse(beyond, f"{name}: it is outside of the range that orders records, or no number")
                numbers[number] = pc.coalesce(values, zero)
        if len(every) == len(names) and not all(has_numbers(one.type) for one in every):
            numbers = [pa.repeat(zero, count), pa.repeat(zero, count)]
            sequence = pc.coalesce(place_bytes(every), pa.scalar(b""))
            decoded.rows = decoded.rows.append_column(SEQUENCE, sequence)
        by_values = pc.if_else(
            pa.array(decoded.is_deleted), MARK if self._payload.names.rows.keeps_deleted else "d", "u"
        )
        ops = pc.if_else(pa.array(decoded.is_tombstone), "d", by_values)
        for name, column in ((OP, ops), (COMMIT, numbers[0]), (POSITION, numbers[1])):
            decoded.rows = decoded.rows.append_column(name, column)


@dataclass
class _BatchRows:
    """Rows of a batch, while the decoder completes and checks the rows.

    :param places: for each row the index of its record in the batch.
    :param is_tombstone: a mask of the rows of tombstones.
    :param bad: the bad records, by index in the batch.
    :param filtered: the indices of the records that are left out.
    :ivar is_deleted: a mask of the rows whose values delete their key.
    """

    rows: pa.Table
    places: Indices
    is_tombstone: Mask
    bad: dict[int, BadRow]
    filtered: Sequence[int] = ()

    def __post_init__(self) -> None:
        self.is_deleted: Mask = np.zeros(len(self.rows), np.bool_)

    def set(self, name: str, column: pa.Array) -> None:
        """Replace a column."""
        self.rows = self.rows.set_column(self.rows.column_names.index(name), self.rows.schema.field(name), column)

    def refuse(self, mask: Mask, reason: str) -> None:
        """Note the records of the rows of a mask as bad, except records that are bad already."""
        for at in np.flatnonzero(mask).tolist():
            self.refuse_one(at, reason)

    def refuse_one(self, at: int, reason: str) -> None:
        """Note the record of a row as bad, unless it is bad already."""
        place = int(self.places[at])
        self.bad.setdefault(place, BadRow(place, reason))

    def leave_out(self, mask: Mask) -> None:
        """Note the records of the rows of a mask as filtered, except bad records."""
        self.filtered = sorted({*self.filtered, *self.places[mask].tolist()} - self.bad.keys())

    def result(self) -> DecoderResult:
        """Return the rows of good records, with notes, and the bad records."""
        is_bad = np.isin(self.places, np.array([*self.bad, *self.filtered], np.int64))
        rows = self.rows.filter(pa.array(~is_bad)) if is_bad.any() else self.rows
        return DecoderResult(
            with_notes_of_records(rows), [self.bad[place] for place in sorted(self.bad)], self.filtered
        )


def _with_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with these columns, nullable since a deletion has only a key; a missing column is null."""
    fields = [one.with_nullable(True) for one in schema]
    columns = [
        cast_to(rows[one.name], one) if one.name in rows.column_names else pa.nulls(len(rows), one.type)
        for one in fields
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _no_value(name: str) -> str:
    return f"{name}: null in value and key; the mirror's key needs a value"


def _column_at(rows: pa.Table, name: str) -> pa.Array | None:
    """Return the column of a name, or the nested field of a path with dots; None if the rows have neither."""
    first, *rest = (name,) if name in rows.column_names else name.split(".")
    if first not in rows.column_names:
        return None
    column = one_array(rows[first])
    if rest and type_at(column.type, tuple(rest)) is None:
        return None
    return pc.struct_field(column, rest) if rest else column


def _no_order(name: str) -> str:
    return f"{name}: null, and sequence_by orders the records by it"


_ARGUMENT, _RESULT = "delete_when", "is_deleted"
# The beginning of a reason: the place of a failure in the statement.
_PLACE = re.compile(f"^(column {_RESULT}|sql): ")
_LATER = 'A column that only some records have needs its type from schema="...", such as "is_deleted boolean".'


class DeletionCondition:
    """A condition over rows of plain records, checked and bound. Raises InvalidArgument, and SqlFailed.

    :param sql: the condition, such as "op = 'D'".
    :param columns: the rows' columns.
    """

    def __init__(self, sql: str, columns: pa.Schema) -> None:
        self._transform = _transform(sql, columns)
        self._read = pa.schema([columns.field(name) for name in columns.names if name in self._transform.input_columns])

    def fits(self, columns: pa.Schema) -> bool:
        """Return whether the columns that the condition reads have the same types in `columns`."""
        return all(one.name in columns.names and columns.field(one.name).type == one.type for one in self._read)

    def mask(self, rows: pa.Table) -> tuple[Mask, dict[int, str]]:
        """Return a mask of the deleted rows, and the reasons of rows for which the condition fails, by position.

        NULL is not deleted. Raises SqlFailed.
        """
        found = self._transform.apply(rows)
        mask = np.zeros(len(rows), np.bool_)
        mask[found.kept] = pc.fill_null(found.rows[_RESULT], False).to_numpy()
        return mask, {one.index: f"{_ARGUMENT}: {_PLACE.sub('', one.reason)}" for one in found.bad}


# Decoders of all partitions and threads share the processes of a condition, which take a tenth of a second to start.
@lru_cache(maxsize=4)
def _transform(sql: str, columns: pa.Schema) -> SqlTransform:
    # Imported here: DuckDB takes a tenth of a second to import, also in a task without a condition.
    from airflow_lakestream.transform import SqlTransform

    try:
        # A line of its own: a comment at the condition's end must not hide the bracket.
        statement = "\n".join(["SELECT (", sql, f") AS {_RESULT} FROM {{{{ input }}}}"])
        found = SqlTransform(statement, input_schema=columns)
    except InvalidArgument as refused:
        problem = str(refused).removeprefix(f"{refused.argument}: ").rstrip(".")
        raise InvalidArgument(_ARGUMENT, f"{sql!r}: {problem}.", _LATER if "bind" in problem else "") from None
    kinds = {one.name: one.type for one in found.schema}
    if kinds != {_RESULT: pa.bool_()}:
        made = ", ".join(map(str, kinds.values()))
        remedy = "Compare it with a value: \"op = 'D'\"."
        raise InvalidArgument(_ARGUMENT, f"{sql!r} is {made}, and a condition is true or false.", remedy)
    return found
