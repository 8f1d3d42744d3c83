"""What a JSON record must become, written a second time and in another way than the package does it."""

from __future__ import annotations

import base64
import json
import re
import struct
import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import pyarrow as pa


class Rejected(Exception):
    pass


class Num(NamedTuple):
    text: str

    @property
    def exact(self) -> Fraction:
        exponent = re.search(r"[eE]([+-]?\d+)", self.text)
        if exponent is not None and abs(int(exponent[1])) > 10_000:
            # No column holds it, and it takes a day to write it out.
            if re.search("[1-9]", self.text[: exponent.start()]):
                raise Rejected("far beyond")
            return Fraction(0)
        return Fraction(self.text)


def row(
    schema: pa.Schema, value: bytes | None, *, fail_unknown: bool = False, unsent: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the row, as `Table.to_pylist` shows it. Raises Rejected.

    :param unsent: the structs in which an empty text says that a UUID was not sent.
    """
    document = {} if value is None else _load(value)
    for name in unsent:
        struct = schema.field(name).type
        if isinstance(held := document.get(name), dict):
            uuids = {field.name for field in struct if field.type == pa.uuid() and held.get(field.name) == ""}
            document[name] = {key: None if key in uuids else one for key, one in held.items()}
    return _struct(list(schema), document, fail_unknown)


def _load(value: bytes) -> dict[str, Any]:
    def constant(name: str) -> None:
        raise Rejected(name)

    try:
        text = value.decode()
        document = json.loads(text, parse_float=Num, parse_int=Num, parse_constant=constant)
    except (ValueError, RecursionError):
        raise Rejected("not one document") from None
    if type(document) is not dict or _depth(document) > 200 or _surrogates(document):
        raise Rejected("not a plain object")
    return document


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _depth(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(_depth, _children(value)), default=0)


def _surrogates(value: Any) -> bool:
    if isinstance(value, str):
        return any("\ud800" <= c <= "\udfff" for c in value)
    return any(map(_surrogates, _children(value))) or (isinstance(value, dict) and any(map(_surrogates, value)))


def _struct(fields: list[pa.Field], value: Any, fail_unknown: bool) -> dict[str, Any]:
    if not isinstance(value, dict) or (fail_unknown and set(value) - {field.name for field in fields}):
        raise Rejected("struct")
    return {field.name: _field(field, value.get(field.name), fail_unknown) for field in fields}


def _field(field: pa.Field, value: Any, fail_unknown: bool) -> Any:
    if value is None:
        if not field.nullable:
            raise Rejected("required")
        return None
    kind = field.type
    if pa.types.is_struct(kind):
        return _struct(list(kind), value, fail_unknown)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        if not isinstance(value, list) or isinstance(value, Num):
            raise Rejected("list")
        return [_field(kind.value_field, item, fail_unknown) for item in value]
    if pa.types.is_map(kind):
        if not isinstance(value, dict):
            raise Rejected("map")
        return [(key, _field(kind.item_field, item, fail_unknown)) for key, item in value.items()]
    return _scalar(str(kind), value)


def _scalar(kind: str, value: Any) -> Any:
    if kind in ("string", "large_string"):
        return value if isinstance(value, str) else _text(value)
    if kind == "bool":
        return _expect(value, bool)
    if kind.startswith("int"):
        return _integer(int(kind[3:]), _expect(value, Num))
    if kind in ("double", "float"):
        return _float(kind, _expect(value, Num))
    if kind.startswith("decimal128"):
        return _decimal(kind, value.text if isinstance(value, Num) else _expect(value, str))
    read = _READERS[re.sub(r"\[\d+\]", "", kind) if kind.startswith("fixed") else kind]
    try:
        result = read(_expect(value, str))
    except (ValueError, OverflowError):
        raise Rejected(kind) from None
    if kind.startswith("fixed") and len(result) != int(kind[18:-1]):
        raise Rejected("size")
    return result


def _expect(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise Rejected(kind.__name__)
    return value


def _text(value: Any) -> str:
    if isinstance(value, Num):
        return value.text
    if isinstance(value, dict):
        return "{" + ",".join(_text(key) + ":" + _text(item) for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_text(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def _integer(bits: int, value: Num) -> int:
    number = value.exact
    if number.denominator != 1 or not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise Rejected("integer")
    return int(number)


def _float(kind: str, value: Num) -> float:
    number = float(value.text)
    if kind == "float":
        number = _nearest_float32(value, number)
    if number in (float("inf"), float("-inf")):
        raise Rejected("infinite")
    if number == 0 and re.search("[1-9]", re.split("[eE]", value.text)[0]):
        raise Rejected("too small")
    # With an exponent it is a floating-point number, whose nearest double is meant.
    if re.fullmatch(r"-?\d+(\.0*)?", value.text) and Fraction(number) != value.exact:
        raise Rejected("inexact")
    return number


def _nearest_float32(value: Num, near: float) -> float:
    """Return the float32 nearest to the text, ties to even, chosen among the neighbours of a first guess."""
    if value.exact == 0:
        return near
    if abs(value.exact) >= 2**128 - 2**103:
        raise Rejected("infinite")
    try:
        (bits,) = struct.unpack("<i", struct.pack("<f", abs(near)))
    except OverflowError:
        bits = 0x7F7FFFFF
    neighbours = [b for b in (bits - 1, bits, bits + 1) if 0 <= b < 0x7F800000]
    as_float = {b: struct.unpack("<f", struct.pack("<i", b))[0] for b in neighbours}
    best = min(neighbours, key=lambda b: (abs(Fraction(as_float[b]) - abs(value.exact)), b & 1))
    return -as_float[best] if value.text.startswith("-") else as_float[best]


def _decimal(kind: str, text: str) -> Decimal:
    precision, scale = map(int, re.findall(r"\d+", kind)[1:])
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text):
        raise Rejected("decimal")
    unscaled = Num(text.replace("+.", "+0.")).exact * 10**scale
    if unscaled.denominator != 1 or abs(unscaled) >= 10**precision:
        raise Rejected("decimal")
    return Decimal(f"{int(unscaled)}e-{scale}")


_CLOCK = r"[0-9]{2}(:[0-9]{2}(:[0-9]{2}([.,][0-9]+)?)?)?"


def _instant(text: str) -> datetime:
    """Return text as an aware date-time; fromisoformat after the extras that it takes were sorted out."""
    match = re.fullmatch(rf"([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})[T ]({_CLOCK})(Z|[+-][0-9]{{2}}(:?[0-9]{{2}})?)", text)
    if not match:
        raise ValueError(text)
    # fromisoformat takes such offsets, and from Python 3.13 on 24:00.
    if re.search(r"[+-][0-9]{2}:?[6-9][0-9]$|[T ]24", text):
        raise ValueError(text)
    return datetime.fromisoformat(_six_digits(text)).astimezone(UTC)


def _local(text: str) -> datetime:
    if not re.fullmatch(rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}([T ]{_CLOCK})?", text):
        raise ValueError(text)
    return datetime.fromisoformat(_six_digits(text))


def _six_digits(text: str) -> str:
    match = re.search(r"[.,]([0-9]+)", text)
    if match is None:
        return text
    if match[1][6:].strip("0"):
        raise ValueError("too fine")
    return text[: match.start()] + "." + match[1][:6].ljust(6, "0") + text[match.end() :]


def _time(text: str) -> time:
    if not re.fullmatch(_CLOCK, text) or len(text) < 5:
        raise ValueError(text)
    return time.fromisoformat(_six_digits(text))


def _date(text: str) -> date:
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        raise ValueError(text)
    return date.fromisoformat(text)


def _base64(text: str) -> bytes:
    data = base64.b64decode(text, validate=True)
    if base64.b64encode(data).decode() != text:
        raise ValueError(text)
    return data


def _uuid(text: str) -> uuid.UUID:
    if str(uuid.UUID(text)) != text.lower() or not text.isascii():
        raise ValueError(text)
    return uuid.UUID(text)


_READERS = {
    "timestamp[us, tz=UTC]": _instant,
    "timestamp[us]": _local,
    "date32[day]": _date,
    "time64[us]": _time,
    "binary": _base64,
    "large_binary": _base64,
    "fixed_size_binary": _base64,
    "extension<arrow.uuid>": _uuid,
}
