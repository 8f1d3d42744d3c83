"""JSON values to column values, one by one: lossless, or rejected by Misfit. A function (coercion) for each Arrow type.

Bulk conversions may accept only values that are accepted here, with the same result.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal, InvalidOperation
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.types as t

from airflow_lakestream.core.policies import TimestampsFiner
from airflow_lakestream.decode.json.document import Json, JsonNumber, describe, to_text
from airflow_lakestream.decode.values import iso8601
from airflow_lakestream.decode.values.outcome import Misfit, quoted, shorten
from airflow_lakestream.exceptions import InvalidArgument

# A coercion: returns the column's value for a JSON value, or raises Misfit.
Coerce = Callable[[Json], Any]
# Coercions of types: a test of the type, and a function that returns the type's coercion.
Scalars = Sequence[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], Coerce]]]

_WIDE = Context(prec=80)
_DATE_TIME = "an ISO 8601 date-time"
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_INTEGRAL = re.compile(r"-?\d+(?:\.0*)?", re.ASCII)
_ZERO = re.compile(r"-?0(?:\.0*)?(?![.\d])", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)


def field_coercer(field: pa.Field, *, fail_unknown: bool, path: str = "", scalars: Scalars = ()) -> Coerce:
    """Return the coercion of a field, for which a missing value is None, like null.

    :param fail_unknown: whether a member of an inner object without a field is a misfit; otherwise ignored.
    :param path: path of the field, for errors about the type.
    :param scalars: coercions in place of the usual coercions of some types.

    Raises InvalidArgument if JSON can't fill the field's type, or if an inner field is listed twice.
    """
    coerce = _coercer(field.type, fail_unknown=fail_unknown, path=path or field.name, scalars=scalars)
    nullable = field.nullable

    def coerce_field(value: Json) -> Any:
        coerced = None if value is None else coerce(value)
        if coerced is None and not nullable:
            raise Misfit("is null or missing, and the column is required")
        return coerced

    return coerce_field


def fields_coercer(
    fields: list[pa.Field],
    *,
    fail_unknown: bool,
    path: str = "",
    scalars: Scalars = (),
    special: Mapping[str, Scalars] | None = None,
) -> Coerce:
    """Return the coercion of a JSON object to a dict with a value for each field; see `field_coercer`.

    :param special: coercions for single fields, by name, in place of `scalars`.
    """
    parts: dict[str, Coerce] = {}
    for field in fields:
        name, own = field.name, (special or {}).get(field.name, scalars)
        if name in parts:
            raise InvalidArgument("schema", f"{path}{name} is listed twice.")
        parts[name] = field_coercer(field, fail_unknown=fail_unknown, path=path + name, scalars=own)

    def coerce_fields(value: Json) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Misfit(f"is {describe(value)}, not an object")
        if fail_unknown and not parts.keys() >= value.keys():
            raise Misfit("the schema has no such field").inside("." + next(k for k in value if k not in parts))
        row = {}
        try:
            for name, coerce in parts.items():
                row[name] = coerce(value.get(name))
        except Misfit as misfit:
            raise misfit.inside("." + name) from None
        return row

    return coerce_fields


def _coercer(kind: pa.DataType, *, fail_unknown: bool, path: str, scalars: Scalars) -> Coerce:
    if t.is_struct(kind):
        return fields_coercer(list(kind), fail_unknown=fail_unknown, path=path + ".", scalars=scalars)
    inside = partial(field_coercer, fail_unknown=fail_unknown, scalars=scalars)
    if t.is_list(kind) or t.is_large_list(kind):
        return _list(inside(kind.value_field, path=path + "[]"))
    if t.is_map(kind) and (t.is_string(kind.key_type) or t.is_large_string(kind.key_type)):
        return _map(inside(kind.item_field, path=path + "{}"))
    for is_kind, make in (*scalars, *_SCALARS):
        if is_kind(kind):
            return make(kind)
    raise InvalidArgument("schema", f"{path} has the type {kind}, which JSON can't fill.")


def _list(coerce: Coerce) -> Coerce:
    def coerce_list(value: Json) -> list[Any]:
        if not isinstance(value, list):
            raise Misfit(f"is {describe(value)}, not an array")
        items = []
        for index, item in enumerate(value):
            try:
                items.append(coerce(item))
            except Misfit as misfit:
                raise misfit.inside(f"[{index}]") from None
        return items

    return coerce_list


def _map(coerce: Coerce) -> Coerce:
    def coerce_map(value: Json) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            raise Misfit(f"is {describe(value)}, not an object")
        items = []
        for key, item in value.items():
            try:
                items.append((key, coerce(item)))
            except Misfit as misfit:
                raise misfit.inside(f"[{shorten(key, 40)!r}]") from None
        return items

    return coerce_map


def _bool(kind: pa.DataType) -> Coerce:
    def coerce(value: Json) -> bool:
        if not isinstance(value, bool):
            raise Misfit(f"is {describe(value)}, not a boolean")
        return value

    return coerce


def _integer(kind: pa.DataType) -> Coerce:
    limit = 1 << (kind.bit_width - 1)

    def coerce(value: Json) -> int:
        if not isinstance(value, JsonNumber):
            raise Misfit(f"is {describe(value)}, not a number")
        number = int(value) if value.is_integer_literal and len(value) <= 20 else _integral(value)
        if not -limit <= number < limit:
            raise Misfit(f"{shorten(value)} is out of range for {kind}")
        return number

    return coerce


def _integral(text: str) -> int:
    exact = exact_decimal(text)
    if exact.adjusted() > 19:
        raise Misfit(f"{shorten(text)} is out of range for an integer")
    number = int(exact)
    if number != exact:
        raise Misfit(f"{shorten(text)} is not an integer")
    return number


def floating(kind: pa.DataType) -> Coerce:
    """Return the coercion of numbers to the nearest double or float.

    Integers have to be exact, and only a zero becomes 0. Other numbers may be rounded, even an integer with an
    exponent: 1e23 has no exact double, and every program writes doubles like this.
    """
    is_double = t.is_float64(kind)
    # The characters up to which an integer is surely exact: below 2**53, or below 2**24.
    surely_exact = 15 if is_double else 7

    def coerce(value: Json) -> float:
        if not isinstance(value, JsonNumber):
            raise Misfit(f"is {describe(value)}, not a number")
        # Arrow rounds the text to a float32 in one step; by way of a double it would be rounded twice.
        number: float = float(value) if is_double else pa.scalar(str(value)).cast(kind).as_py()
        if number in (float("inf"), float("-inf")):
            raise Misfit(f"{shorten(value)} is out of range for {kind}")
        if number == 0 and not _ZERO.match(value):
            raise Misfit(f"{shorten(value)} is too small for {kind}, which would make 0 of it")
        if len(value) > surely_exact and _INTEGRAL.fullmatch(value) and int(number) != exact_decimal(value):
            raise Misfit(f"{shorten(value)} can't be held exactly by {kind}")
        return number

    return coerce


def _string(kind: pa.DataType) -> Coerce:
    def coerce(value: Json) -> str:
        return value if type(value) is str else to_text(value)

    return coerce


def _from_text(read: Callable[[str], Any], content: str) -> Coerce:
    """Return the coercion of texts by `read`; `content` is the expected content in words."""

    def coerce(value: Json) -> Any:
        if type(value) is not str:
            is_number_for_time = content.startswith(_DATE_TIME) and isinstance(value, JsonNumber)
            hint = iso8601.epoch_hint(value) if is_number_for_time else ""
            raise Misfit(f"is {describe(value)}, not a string with {content}{hint}")
        return read(value)

    return coerce


def timestamp(kind: pa.DataType, *, cuts: bool = False) -> Coerce:
    """Return the coercion of a date-time's text; see `iso8601.micros`."""
    zoned = kind.tz is not None
    content = f"{_DATE_TIME} " + ("with a zone" if zoned else "without a zone")
    return _from_text(partial(iso8601.micros, zoned=zoned, cuts=cuts), content)


def time_of_day(kind: pa.DataType, *, cuts: bool = False) -> Coerce:
    """Return the coercion of a time's text; see `iso8601.micros_of_day`."""
    return _from_text(partial(iso8601.micros_of_day, cuts=cuts), "a time")


def exact_decimal(text: str) -> Decimal:
    """Return the number of a decimal text, exactly, without trailing zeros. Raises Misfit."""
    if not _DECIMAL.fullmatch(text):
        raise Misfit(f"{quoted(text)} is not a decimal number")
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise Misfit(f"{shorten(text)} is out of range") from None
    sign, digits, exponent = number.as_tuple()
    significant = "".join(map(str, digits)).rstrip("0")
    if not significant or not isinstance(exponent, int):
        return Decimal(0)
    exponent += len(digits) - len(significant)
    return Decimal((sign, tuple(map(int, significant)), exponent))


def _decimal(kind: pa.DataType) -> Coerce:
    precision, scale = kind.precision, kind.scale

    def coerce(value: Json) -> Decimal:
        if not isinstance(value, str):
            raise Misfit(f"is {describe(value)}, not a decimal number")
        number = exact_decimal(value)
        exponent = number.as_tuple().exponent
        if number and isinstance(exponent, int) and exponent < -scale:
            raise Misfit(f"{shorten(value)} has more than {scale} fraction digits")
        if number and number.adjusted() + 1 > precision - scale:
            raise Misfit(f"{shorten(value)} is out of range for {kind}")
        return number.quantize(Decimal(1).scaleb(-scale, _WIDE), context=_WIDE)

    return coerce


def uuid_bytes(text: str) -> bytes:
    """Return the 16 bytes of a UUID in the usual text form. Raises Misfit."""
    if not _UUID.fullmatch(text):
        raise Misfit(f"{quoted(text)} is not a UUID")
    return bytes.fromhex(text.replace("-", ""))


def uuid(kind: pa.DataType) -> Coerce:
    """Return the coercion of a UUID's text."""
    return _from_text(uuid_bytes, "a UUID")


def base64_bytes(text: str, size: int | None = None) -> bytes:
    """Return the bytes of a base64 text with padding.

    :param size: the required number of bytes, or None.

    Raises Misfit.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Misfit(f"{quoted(text)} is not base64") from None
    # Several base64 texts mean the same bytes. Only the usual text is accepted, so that no information is lost.
    if base64.b64encode(data) != text.encode():
        raise Misfit(f"{quoted(text)} is not canonical base64")
    if size is not None and len(data) != size:
        raise Misfit(f"{quoted(text)} holds {len(data)} bytes, the column {size}")
    return data


def is_uuid(kind: pa.DataType) -> bool:
    """Return whether a type is Arrow's UUID extension type."""
    return isinstance(kind, pa.UuidType)


def _fixed(kind: pa.DataType) -> Coerce:
    size = kind.byte_width
    return _from_text(lambda text: base64_bytes(text, size), f"base64 of {size} bytes")


_SCALARS: Scalars = [
    (t.is_boolean, _bool),
    (t.is_signed_integer, _integer),
    (lambda kind: t.is_float32(kind) or t.is_float64(kind), floating),
    (lambda kind: t.is_string(kind) or t.is_large_string(kind), _string),
    (lambda kind: t.is_timestamp(kind) and kind.unit == "us", timestamp),
    (t.is_date32, lambda kind: _from_text(iso8601.days, "a date")),
    (lambda kind: t.is_time64(kind) and kind.unit == "us", time_of_day),
    (t.is_decimal128, _decimal),
    (lambda kind: t.is_binary(kind) or t.is_large_binary(kind), lambda kind: _from_text(base64_bytes, "base64")),
    (t.is_fixed_size_binary, _fixed),
    (is_uuid, uuid),
]


_CUTTING: Scalars = (
    (lambda kind: t.is_timestamp(kind) and kind.unit == "us", partial(timestamp, cuts=True)),
    (lambda kind: t.is_time64(kind) and kind.unit == "us", partial(time_of_day, cuts=True)),
)


def scalars_for(finer: TimestampsFiner) -> Scalars:
    """Return the coercions that cut times to microseconds, or () if times are not cut."""
    return _CUTTING if finer is TimestampsFiner.TRUNCATE else ()


def texts_for(finer: TimestampsFiner, texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return texts for a column of this type, with times cut if the policy is to truncate."""
    is_time = t.is_timestamp(kind) or t.is_time64(kind)
    return iso8601.cut(texts) if is_time and finer is TimestampsFiner.TRUNCATE else texts
