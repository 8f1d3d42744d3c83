"""CSV, with a row in each record: the fields are the columns in order, split by Arrow's reader.

Arrow reads many records at once, so each record has first to match the grammar of RFC 4180 as a whole; a record that
does not match is bad. A field's text has the same meaning for its column as in JSON.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.types as t

from airflow_lakestream.core.policies import TimestampsFiner, UnknownFields
from airflow_lakestream.core.policies import check_delimiter as check_delimiter
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.json.bulk import NotInBulk
from airflow_lakestream.decode.json.document import Json, parse_document
from airflow_lakestream.decode.json.scalars import OddRows, from_literals, from_texts, mask_of, without
from airflow_lakestream.decode.json.values import field_coercer, scalars_for
from airflow_lakestream.decode.lanes import leaves
from airflow_lakestream.decode.lanes.framed import chunks
from airflow_lakestream.decode.lanes.lanes import Mask
from airflow_lakestream.decode.values.outcome import BadRow, DecoderResult, Misfit, SchemaDecoder, good_mask, quoted
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.row_buffer import no_rows

_QUOTED = '"(?:[^"]|"")*"'
# The most attempts to convert a column in bulk: each removes the texts that prevented the attempt before.
_MOST_ATTEMPTS = 3

# Reasons of bad records, by position.
Reasons = dict[int, str]


class CsvDecoder(SchemaDecoder):
    """Decoder of CSV into tables of an Arrow schema; `nullable=False` makes a field required.

    A record has one field for each column. An empty field without quotes is null, `""` is the empty text. A field of
    structs, lists or maps is JSON. One line end at the end of a record is not part of its last field.

    :param schema: columns and their types.
    :param unknown_fields: without effect, since no field has a name.
    :param order: the columns of a record's fields, by default all columns of the schema; other columns are null.
    :param delimiter: text between fields, one ASCII character; see `check_delimiter`.
    :param finer: treatment of times finer than microseconds.
    """

    def __init__(
        self,
        schema: pa.Schema,
        unknown_fields: UnknownFields | str = UnknownFields.IGNORE,
        order: Sequence[str] = (),
        delimiter: str = ",",
        finer: TimestampsFiner = TimestampsFiner.REJECT,
    ) -> None:
        super().__init__(schema, unknown_fields)
        check_delimiter(delimiter)
        self._order, self._delimiter, self._finer = tuple(order) or tuple(schema.names), delimiter, finer
        if missing := [name for name in self._order if name not in schema.names]:
            raise InvalidArgument("schema", f"it has a column {missing[0]}, and the table has none.")
        scalars = scalars_for(finer)
        self._coercers = {field.name: field_coercer(field, fail_unknown=False, scalars=scalars) for field in schema}
        between, bare = re.escape(delimiter), rf'[^"\r\n{re.escape(delimiter)}]'
        self._grammar = rf"\A(?:{_QUOTED}|{bare}*)(?:{between}(?:{_QUOTED}|{bare}*))*\z"
        # The valid beginning of a record. The pattern never backtracks, so that a bad record takes no longer.
        one_field = f'(?:"(?:[^"]++|"")*+"|{bare}*+)'
        self._good_part = re.compile(f"(?:{one_field}{between})*+{one_field}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.schema, str(self.unknown_fields), self._order, self._delimiter, self._finer)

    def decode(self, batch: RawBatch) -> DecoderResult:
        """Return the rows and the bad records of a batch."""
        tables: list[pa.Table] = [no_rows(self.schema)]
        bad: list[BadRow] = []
        for first, last in chunks(batch.values):
            part = self._rows(batch.values.slice(first, last - first))
            tables.append(part.rows)
            bad += [BadRow(first + row.index, row.reason) for row in part.bad]
        return DecoderResult(pa.concat_tables(tables), bad)

    def _rows(self, values: pa.Array) -> DecoderResult:
        """Return the rows of the good values, and the bad values by position in `values`, with reasons."""
        reasons: Reasons = {}
        required = [field.name for field in self.schema if not field.nullable]
        if required and values.null_count:
            reason = f"{required[0]}: the value is null (a tombstone), and the column is required"
            reasons.update(dict.fromkeys(np.flatnonzero(mask_of(values.is_null())).tolist(), reason))
        lines = self._lines(values, reasons)
        has_line = mask_of(lines.is_valid())
        # A tombstone has no line, and null in each column.
        places = pa.array(np.cumsum(has_line) - 1, mask=~has_line)
        texts = {name: text.take(places) for name, text in self._split(lines.drop_null()).items()}
        nulls = pa.nulls(len(values), pa.string())
        columns = [self._column(field, texts.get(field.name, nulls), reasons) for field in self.schema]
        return DecoderResult.without(reasons, columns, self.schema)

    def _lines(self, values: pa.Array, reasons: Reasons) -> pa.Array:
        """Return the values as text without a line end; null for null and for bad values.

        Each text is a row with the right number of fields. The reasons of bad values are added to `reasons`.
        """
        try:
            lines = values.cast(pa.string())
        except pa.ArrowInvalid:
            is_invalid = np.array([leaves.not_utf8(value) for value in values.to_pylist()])
            reasons.update(dict.fromkeys(np.flatnonzero(is_invalid).tolist(), "invalid UTF-8"))
            lines = without(values, is_invalid).cast(pa.string())
        if pc.any(pc.ends_with(lines, "\n")).as_py():
            lines = pc.replace_substring_regex(lines, r"\r?\n\z", "")
        good = mask_of(pc.match_substring_regex(lines, self._grammar).fill_null(True))
        for place in np.flatnonzero(~good).tolist():
            reasons[place] = self._problem(lines[place].as_py())
        # Delimiters inside quotes do not separate fields.
        without_quoted = lines
        if pc.any(pc.match_substring(lines, '"')).as_py():
            without_quoted = pc.replace_substring_regex(lines, _QUOTED, "")
        counts = pc.count_substring(without_quoted, self._delimiter).fill_null(-1).to_numpy() + 1
        expected = len(self._order)
        for place in np.flatnonzero(good & (counts != expected) & (counts > 0)).tolist():
            reasons[place] = f"the number of its fields is {counts[place]}, and that of the columns {expected}"
        return without(lines, ~good_mask(len(lines), reasons))

    def _problem(self, line: str) -> str:
        """Return the reason why a line does not match the grammar: the problem is behind the valid beginning."""
        part = self._good_part.match(line)
        assert part is not None, "the pattern matches an empty text, too"
        end = part.end()
        if line[end] in "\r\n":
            return f"a line break outside quotes, at character {end}: a record is one row"
        if line[end] != '"' or line[end - 1 : end] == '"':
            return f"text behind a closing quote, at character {end}"
        if end == 0 or line[end - 1] == self._delimiter:
            return f"a quote that is not closed, at character {end}"
        return f"a quote inside a field that does not begin with one, at character {end}"

    def _split(self, lines: pa.Array) -> dict[str, pa.Array]:
        """Return the texts of each column, null for an empty field without quotes.

        :param lines: valid lines without null.
        """
        # A line of empty fields comes first, since Arrow skips a byte order mark at the very beginning; an empty text
        # comes last, so that the last line has a line end.
        guarded = [pa.array([self._delimiter * (len(self._order) - 1)]), lines, pa.array([""])]
        joined = pa.ListArray.from_arrays(pa.array([0, len(lines) + 2], pa.int32()), pa.concat_arrays(guarded))
        data = pc.binary_join(joined, "\n")[0].as_buffer()
        table = pa.csv.read_csv(
            pa.BufferReader(data),
            # A row has to be in a single block.
            pa.csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=self._order),
            pa.csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True, ignore_empty_lines=False),
            pa.csv.ConvertOptions(
                column_types=dict.fromkeys(self._order, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        # Should never happen, but with a row fewer or more each later row would land under a wrong offset.
        if len(table) != len(lines) + 1:
            raise AssertionError(f"{len(table) - 1} rows of {len(lines)} records")
        return {name: table[name].combine_chunks().slice(1) for name in self._order}

    def _column(self, field: pa.Field, texts: pa.Array, reasons: Reasons) -> pa.Array:
        """Return the column of these texts, with null for misfits, whose reasons are added to `reasons`."""
        kind = field.type
        if not field.nullable and texts.null_count:
            self._one_by_one(field, texts, np.flatnonzero(mask_of(texts.is_null())).tolist(), reasons)
        if t.is_string(kind) or t.is_large_string(kind):
            return texts.cast(kind)
        valid = np.flatnonzero(mask_of(texts.is_valid()))
        in_bulk, odd = _convert_in_bulk(texts.take(pa.array(valid)), kind, self._finer)
        if not odd.any() and len(valid) == len(texts):
            return in_bulk
        one_by_one = self._one_by_one(field, texts, valid[odd].tolist(), reasons)
        # The position of each text's value in both results together; -1 for null.
        places = np.full(len(texts), -1)
        places[valid] = np.arange(len(valid))
        places[valid[odd]] = len(valid) + np.arange(odd.sum())
        return pa.concat_arrays([in_bulk, one_by_one]).take(pa.array(places, mask=places < 0))

    def _one_by_one(self, field: pa.Field, texts: pa.Array, places: Sequence[int], reasons: Reasons) -> pa.Array:
        """Return the values of the texts at `places`; a misfit, or a missing required text, is null with a reason."""
        values = []
        for place in places:
            text = texts[place].as_py()
            try:
                values.append(self._coercers[field.name](text if text is None else _json_of_text(text, field.type)))
            except Misfit as misfit:
                reasons.setdefault(place, misfit.inside(field.name).reason)
                values.append(None)
        return pa.array(values, leaves.plain(field.type)).cast(field.type)


def _json_of_text(text: str, kind: pa.DataType) -> Json:
    """Return the JSON value for a field's text. Raises Misfit for a text without a value of the type."""
    if _is_text(kind):
        return text
    try:
        value = parse_document(text.encode())
    except Misfit:
        if t.is_nested(kind):
            raise
        value = None
    if value is None:
        # The word "null" is not null: null has no text.
        raise Misfit(f"{quoted(text)} is not a value of the type {kind}")
    return value


def _is_text(kind: pa.DataType) -> bool:
    """Return whether JSON's values of this type are strings."""
    return not (t.is_boolean(kind) or t.is_integer(kind) or t.is_floating(kind) or t.is_nested(kind))


def _convert_in_bulk(texts: pa.Array, kind: pa.DataType, finer: TimestampsFiner) -> tuple[pa.Array, Mask]:
    """Return a column of these texts, converted in bulk, and a mask of the texts that must be converted one by one.

    The mask has all misfits, and may have good texts; the column is null there.

    :param texts: without null.
    """
    odd = mask_of(pc.or_(pc.equal(texts, ""), pc.equal(texts, "null")))
    convert = partial(from_texts, finer=finer) if _is_text(kind) else from_literals
    for _ in range(0 if t.is_nested(kind) or odd.all() else _MOST_ATTEMPTS):
        try:
            return convert(without(texts, odd), kind), odd
        except OddRows as signal:
            odd |= signal.odd
        except (NotInBulk, Misfit, pa.ArrowException):
            break
    return pa.nulls(len(texts), kind), np.ones(len(texts), np.bool_)
