"""Bulk parsing of JSON documents by Arrow's JSON reader, with the same results as for single documents.

In doubt, NotInBulk is raised, and the caller parses smaller pieces, in the end single documents.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json
import pyarrow.types as t

from airflow_lakestream.core.policies import TimestampsFiner
from airflow_lakestream.decode.json.document import nested_too_deep
from airflow_lakestream.decode.json.values import base64_bytes, is_uuid, texts_for, uuid_bytes
from airflow_lakestream.decode.lanes.lanes import Bytes, Integers, Mask
from airflow_lakestream.decode.values.outcome import Misfit
from airflow_lakestream.tables.schema import value_ranges

# The most digits that are searched ahead of an exponent. A number with more digits counts as small.
_MOST_DIGITS = 24
_E, _DIGIT, _POINT, _MINUS, _PLUS, _LOWER = ord("e"), ord("0"), ord("."), ord("-"), ord("+"), 0x20
# Bytes that are searched together, few enough to stay in the processor's cache with the results.
_PIECE = 1 << 16
_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
# Bytes that may be ahead of a number.
_AHEAD = np.zeros(256, np.bool_)
_AHEAD[list(b":,[ \t\r\n")] = True


@dataclass(frozen=True)
class SmallNumbers:
    """Search for numbers that a column's type may turn into 0 or round.

    A number counts as small if it has a negative exponent of `digits` digits, or `zeros` zeros in a row. All other
    numbers are at least 1e-199, or 1e-39 for 32 bits.

    :param any_digits: all digits count as zeros, and all exponents as negative exponents.
    """

    digits: int
    zeros: int
    any_digits: bool = False

    def may_be_in(self, joined: pa.Buffer) -> bool:
        """Return whether documents may contain a small number; true also for some documents without a small number."""
        text, zeros = np.frombuffer(joined, np.uint8), b"0" * self.zeros
        exponents = []
        for start in range(0, len(text), _PIECE):
            piece = text[start : start + _PIECE + self.zeros]
            if zeros in (piece.tobytes().translate(_AS_ZEROS) if self.any_digits else piece.tobytes()):
                return True
            exponents.append(np.flatnonzero(((piece[:-1] | _LOWER) == _E) & self._may_follow(piece[1:])) + start)
        return self._end_numbers(text, np.concatenate(exponents))

    def _may_follow(self, following: Bytes) -> Mask:
        """Return a mask of the bytes that may follow the `e` of a number with an exponent to search."""
        is_minus: Mask = following == _MINUS
        return is_minus | (following == _PLUS) | _is_digit(following) if self.any_digits else is_minus

    def _end_numbers(self, text: Bytes, letters: Integers) -> bool:
        """Return whether one of the letters `e` is in a number with a large exponent: texts have the letter, too."""
        digits = letters + np.where(_is_digit(text[letters + 1]), 1, 2)
        first, second, third = (text[np.minimum(digits + ahead, len(text) - 1)] for ahead in (0, 1, 2))
        is_large = _is_digit(second) & ((first != _DIGIT) & (self.digits == 2) | _is_digit(third))
        # Walk back over the digits ahead of the letter: a number has a comma, a colon, or the like ahead.
        places = letters[_is_digit(text[letters - 1]) & _is_digit(first) & is_large] - 1
        for _ in range(_MOST_DIGITS):
            if not len(places):
                return False
            byte = text[places]
            is_inside = _is_digit(byte) | (byte == _POINT)
            ahead_of_digits = places[~is_inside]
            before = text[ahead_of_digits]
            if (_AHEAD[before] | ((before == _MINUS) & _AHEAD[text[ahead_of_digits - 1]])).any():
                return True
            places = places[is_inside] - 1
        return bool(len(places))


def _is_digit(characters: Bytes) -> Mask:
    # Bytes are unsigned: a character below the digit 0 becomes a large number.
    return characters - np.uint8(_DIGIT) <= 9


_DOUBLES = SmallNumbers(3, 100)
_SINGLES = SmallNumbers(2, 20)
# A number with at most 29 digits on either side of the point, and an exponent of one digit, fits 76 digits in each
# scale up to 38.
_DECIMALS = SmallNumbers(2, 30, any_digits=True)
_DECIMALS_AND_SINGLES = SmallNumbers(2, 20, any_digits=True)


def small_numbers(types: Iterable[pa.DataType]) -> SmallNumbers | None:
    """Return the search for numbers too small for columns of these types, or None if no number is too small."""
    leaves = [leaf for kind in types for leaf in _leaves(kind)]
    has_singles = any(map(t.is_float32, leaves))
    if any(map(t.is_decimal128, leaves)):
        return _DECIMALS_AND_SINGLES if has_singles else _DECIMALS
    if has_singles:
        return _SINGLES
    return _DOUBLES if any(map(t.is_float64, leaves)) else None


def _leaves(kind: pa.DataType) -> list[pa.DataType]:
    """Return the types without inner types in a type."""
    if not kind.num_fields:
        return [kind]
    return [leaf for index in range(kind.num_fields) for leaf in _leaves(kind.field(index).type)]


# The most bytes of a block: Arrow's reader takes less than 2 GiB.
_MAX_BYTES = 1 << 30
# The bytes of a copy that is searched for a newline.
_LOOK = 1 << 16

_JSON_SPACE = b" \t\r\n"
_NOT_JSON_NUMBER = re.compile(rb"(?:Inf|Infinity|NaN)[ \t\r]*[,}\]]")


class NotInBulk(Exception):
    """A piece of a batch can't be proven right in bulk."""


class BulkParser:
    """Parser of pieces of a batch into tables of a schema. Raises NotInBulk.

    :param ignore_unknown: fields without a column are skipped; otherwise they raise NotInBulk.
    :param within: the members in which fields without a column have to be null; other members may have any fields. By
        default, `ignore_unknown` decides for the whole document.
    :param finer: treatment of times finer than microseconds.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        ignore_unknown: bool,
        within: Collection[str] = (),
        finer: TimestampsFiner = TimestampsFiner.REJECT,
    ) -> None:
        self._schema, self._finer = schema, finer
        self._within = within
        self._requires = any(not field.nullable for field in schema)
        self._small = small_numbers(schema.types)
        raw = pa.schema([pa.field(field.name, transport_type(field.type)) for field in schema])
        # With `within`, fields without a column are read with an inferred type: they are checked afterwards.
        behaviours = ["infer"] if within else ["error", "ignore"] if ignore_unknown else ["error"]
        self._options = [
            pa_json.ParseOptions(explicit_schema=raw, unexpected_field_behavior=behaviour) for behaviour in behaviours
        ]

    def parse(self, values: pa.Array) -> pa.Table:
        """Return a row for each value, in order. Raises NotInBulk."""
        try:
            joined = self._join(values)
            table = self._read(joined, values)
            if self._small is not None and not self._small.any_digits:
                self._check_zeros(table, values, self._small)
            for name in self._within:
                _check_known(table.column(name), self._schema.field(name).type)
            columns = [_fit_field(_one_chunk(table.column(field.name)), field, self._finer) for field in self._schema]
            return pa.Table.from_arrays(columns, schema=self._schema)
        except (pa.ArrowException, Misfit) as error:
            raise NotInBulk(str(error)) from None

    def _join(self, values: pa.Array) -> pa.Buffer:
        """Return the values as lines, in a form for which n rows read from n lines are one row of each value.

        Each line begins with `{` and ends with `}`, so each newline between lines is between `}` and `{`. No string may
        contain a newline, and inside a document `}` is never next to `{`. So each line has whole documents, and at
        least one; if the reader finds n documents in n lines, each line has one. The input must begin with an object:
        the reader crashes if the input begins with `null`.
        """
        lines = values
        if lines.null_count:
            if self._requires:
                raise NotInBulk("null values, and a column is required")
            lines = pc.fill_null(lines, b"{}")
        if lines.nbytes > _MAX_BYTES:
            raise NotInBulk("too large for one block")
        joined = _as_lines(lines)
        if joined is None:
            lines = pa.array([b"{}" if v is None else _on_one_line(v) for v in values.to_pylist()], pa.binary())
            joined = _as_lines(lines)
        if joined is None:
            raise NotInBulk("not one object on each line")
        if self._small is not None and self._small.any_digits and self._small.may_be_in(joined):
            raise NotInBulk("a number that may become another one")
        lines.cast(pa.string())  # also validates the UTF-8 of the parts that the reader skips
        return joined

    def _check_zeros(self, table: pa.Table, values: pa.Array, small: SmallNumbers) -> None:
        """Check that documents contain no small number if a floating point column has a zero. Raises NotInBulk."""
        has_zero = np.zeros(len(table), np.bool_)
        for field in self._schema:
            has_zero |= _zeros(_one_chunk(table.column(field.name)))
        if has_zero.any():
            lines = values.filter(pa.array(has_zero)).fill_null(b"{}")
            if small.may_be_in(_one_text(lines)):
                raise NotInBulk("a number that may have become 0")

    def _read(self, joined: pa.Buffer, values: pa.Array) -> pa.Table:
        # A single block: the reader splits at newlines only, but this way nothing depends on the splitting.
        read = pa_json.ReadOptions(use_threads=False, block_size=joined.size + 1)
        if self._within and _may_have_invalid_number(joined.to_pybytes()):
            raise NotInBulk("an invalid number in a member that is not read")
        for index, options in enumerate(self._options):
            # The first try accepts no unknown field, so all is read. The second skips unknown fields unchecked.
            if index and not _skippable(joined, values):
                raise NotInBulk("unknown fields that can't be skipped unseen")
            try:
                table = pa_json.read_json(pa.BufferReader(joined), read_options=read, parse_options=options)
            except pa.ArrowInvalid as error:
                problem = str(error)
                if "unexpected field" in problem:
                    continue
                raise
            if table.num_rows != len(values):
                raise NotInBulk(f"{table.num_rows} rows of {len(values)} values")
            return table
        raise NotInBulk(problem)


def _check_known(column: pa.ChunkedArray, kind: pa.DataType) -> None:
    """Check that all fields without a column, read with inferred types, are null. Raises NotInBulk.

    :param kind: the column's type, without these fields.
    """
    if t.is_struct(kind):
        for index, field in enumerate(column.type):
            inner = pc.struct_field(column, [index])
            if field.name in kind.names:
                _check_known(inner, kind.field(field.name).type)
            elif inner.null_count < len(inner):
                raise NotInBulk("unknown fields")
    elif (t.is_list(kind) or t.is_large_list(kind)) and t.is_list(column.type):
        _check_known(pc.list_flatten(column), kind.value_type)


def _zeros(array: pa.Array) -> Mask:
    """Return a mask of the rows with a floating point 0; a 0 anywhere in a column of lists marks all rows."""
    kind, mask = array.type, np.zeros(len(array), np.bool_)
    if t.is_floating(kind):
        return np.asarray(pc.equal(array, pa.scalar(0, kind)).fill_null(False))
    if t.is_struct(kind):
        for member in array.flatten():
            mask |= _zeros(member)
    elif t.is_list(kind):
        mask |= _zeros(array.flatten()).any()
    return mask


def _as_lines(lines: pa.Array) -> pa.Buffer | None:
    """Return the lines joined by newlines, or None if a line is not an object, or has a newline or a NUL."""
    if not pc.all(pc.and_(pc.starts_with(lines, "{"), pc.ends_with(lines, "}"))).as_py():
        return None
    # The reader may cut its input at any newline, and a NUL ends the input early, with the rest unread.
    if any(b"\n" in piece or b"\0" in piece for piece in _pieces(lines)):
        return None
    return _one_text(lines)


def _one_text(lines: pa.Array) -> pa.Buffer:
    joined = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
    return pc.binary_join(joined, b"\n")[0].as_buffer()


def _pieces(lines: pa.Array) -> Iterator[bytes]:
    """Yield the bytes of all values, concatenated, in pieces; the array may be a slice of a longer array."""
    _, offsets, data = lines.buffers()
    if data is None:
        return
    ends = memoryview(offsets).cast("i")
    first, last = ends[lines.offset], ends[lines.offset + len(lines)]
    # Python can only search its own bytes objects for a byte. Small copies stay in the processor's cache.
    for start in range(first, last, _LOOK):
        yield data.slice(start, min(_LOOK, last - start)).to_pybytes()


def _on_one_line(value: bytes) -> bytes:
    # Outside of strings a CR means the same as a newline, and inside of strings both are invalid.
    return value.strip(_JSON_SPACE).replace(b"\n", b"\r")


def _may_have_invalid_number(text: bytes) -> bool:
    """Return whether JSON text may have NaN or Infinity as a number, which Arrow skips; also true for some strings."""
    # The search for bytes is fast, and rules out almost all texts.
    return (b"NaN" in text or b"Inf" in text) and _NOT_JSON_NUMBER.search(text) is not None


def _skippable(joined: pa.Buffer, values: pa.Array) -> bool:
    if _may_have_invalid_number(joined.to_pybytes()):
        return False
    return not any(map(nested_too_deep, filter(None, values.to_pylist())))


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def transport_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which Arrow reads a column; `fit` converts to the column's own type. Raises NotInBulk."""
    if t.is_struct(kind):
        # Nullable throughout: the reader fails on a missing required field even if the struct around it is null.
        return pa.struct([pa.field(field.name, transport_type(field.type)) for field in kind])
    if t.is_list(kind) or t.is_large_list(kind):
        return pa.list_(transport_type(kind.value_type))
    if t.is_map(kind):
        raise NotInBulk("the reader takes maps as arrays of entries only")
    if t.is_decimal128(kind):
        # 128 bits overflow, silently, for a number of many digits in a column of a large scale.
        return pa.decimal256(76, kind.scale)
    native = t.is_boolean(kind) or t.is_signed_integer(kind) or t.is_floating(kind)
    return kind if native else pa.string()


def _fit_field(array: pa.Array, field: pa.Field, finer: TimestampsFiner, parent: pa.Array | None = None) -> pa.Array:
    """Return a column in the schema's type, after the checks that Arrow's reader does not make.

    :param parent: the structs around the column; null inside a null struct is not a missing value.

    Raises the errors of `fit`.
    """
    if not field.nullable and array.null_count:
        missing = array.is_null() if parent is None else pc.and_(array.is_null(), parent.is_valid())
        if pc.any(missing).as_py():
            raise NotInBulk(f"{field.name} is required")
    return fit(array, field.type, finer)


def fit(array: pa.Array, kind: pa.DataType, finer: TimestampsFiner = TimestampsFiner.REJECT) -> pa.Array:
    """Return an array of `transport_type(kind)` as `kind`, exactly. Raises NotInBulk, Misfit and pyarrow's errors."""
    if t.is_struct(kind):
        children = [_fit_field(array.field(i), kind.field(i), finer, array) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if t.is_list(kind) or t.is_large_list(kind):
        values = _fit_field(array.values, kind.value_field, finer)
        offsets, maker = array.offsets, pa.ListArray
        if t.is_large_list(kind):
            offsets, maker = offsets.cast(pa.int64()), pa.LargeListArray
        return maker.from_arrays(offsets, values, type=kind, mask=array.is_null())
    for is_kind, fit_kind in _FITS:
        if is_kind(kind):
            return fit_kind(texts_for(finer, array, kind), kind)
    return array.cast(kind)


def _between(array: pa.Array, low: int, high: int, storage: pa.DataType) -> pa.Array:
    bounds = pc.min_max(array.cast(storage)).as_py()
    if bounds["min"] is not None and not low <= bounds["min"] <= bounds["max"] <= high:
        raise NotInBulk("a date outside the years 1 to 9999")
    return array


def _fit_timestamp(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return _between(array.cast(kind), value_ranges.MIN_MICROS, value_ranges.MAX_MICROS, pa.int64())


def _fit_date(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return _between(array.cast(kind), value_ranges.MIN_DAY, value_ranges.MAX_DAY, pa.int32())


def _fit_time(array: pa.Array, kind: pa.DataType) -> pa.Array:
    # Arrow has no cast from text to a time, only to a date-time, which may have no minutes.
    if pc.any(pc.less(pc.binary_length(array), len("00:00"))).as_py():
        raise NotInBulk("a time without minutes")
    instants = pc.binary_join_element_wise(pa.scalar("1970-01-01"), array, "T").cast(pa.timestamp("us"))
    return instants.cast(pa.int64()).cast(kind)


def exact_up_to(kind: pa.DataType) -> float:
    """Return the bound below which a floating point type represents all integers exactly."""
    return 2.0**24 if t.is_float32(kind) else 2.0**53


def _fit_floating(array: pa.Array, kind: pa.DataType) -> pa.Array:
    # Only the text shows whether a larger number was an integer. The check also excludes NaN and infinity, which the
    # reader accepts.
    if not pc.all(pc.less(pc.abs(array), pa.scalar(exact_up_to(kind), kind)), min_count=0).as_py():
        raise NotInBulk("a number whose text has to be looked at")
    return array


def _fit_decimal(array: pa.Array, kind: pa.DataType) -> pa.Array:
    fitting = array.cast(kind)
    # The reader accepts 1234 for a decimal(5, 2), and leaves six digits in it: hence the full validation.
    fitting.validate(full=True)
    return fitting


def _fit_binary(array: pa.Array, kind: pa.DataType) -> pa.Array:
    size = kind.byte_width if t.is_fixed_size_binary(kind) else None
    return pa.array([None if text is None else base64_bytes(text, size) for text in array.to_pylist()], kind)


def _fit_uuid(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return pa.array([None if text is None else uuid_bytes(text) for text in array.to_pylist()], kind)


_FITS: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array, pa.DataType], pa.Array]]] = [
    (t.is_timestamp, _fit_timestamp),
    (t.is_date32, _fit_date),
    (t.is_time64, _fit_time),
    (t.is_floating, _fit_floating),
    (t.is_decimal128, _fit_decimal),
    (is_uuid, _fit_uuid),
    (lambda kind: t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind), _fit_binary),
]
