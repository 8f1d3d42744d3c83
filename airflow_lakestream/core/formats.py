"""Formats of keys and values, as closed lists; `decode.known_formats` describes each."""

from __future__ import annotations

import re
from enum import StrEnum

from airflow_lakestream.exceptions import InvalidArgument


class ValueFormat(StrEnum):
    """Format of a record's value."""

    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    JSON_SCHEMA = "json_schema"
    CSV = "csv"
    RAW = "raw"


class KeyFormat(StrEnum):
    """Format of a record's key; `RAW` is bytes, `STRING` is text in UTF-8."""

    STRING = "string"
    RAW = "raw"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    JSON_SCHEMA = "json_schema"


class ValueEnvelope(StrEnum):
    """The wrapping around the row in a value.

    `CONNECT` is the {"schema": ..., "payload": ...} of Kafka Connect's JSON converter. `DEBEZIUM` is a change event
    with the row before and after it, with or without Connect's wrapping.
    """

    CONNECT = "connect"
    DEBEZIUM = "debezium"


def check_delimiter(text: str) -> None:
    """Raise InvalidArgument unless the text is an ASCII character fit to separate fields."""
    if not re.fullmatch(r"[\t -~]", text) or text == '"':
        raise InvalidArgument("csv_delimiter", f"{text!r} is not one character of ASCII.", 'Write ";", "|" or a tab.')


# Debezium's default placeholder for a value that the database did not send.
UNAVAILABLE = "__debezium_unavailable_value"


class UnavailableValues(StrEnum):
    """Treatment of a value left out of an event, by an extract: a bad record, or NULL with a note."""

    REJECT = "reject"
    NULL = "null"


def octets_of(placeholder: str) -> bytes:
    """Return the octets of a connector's `unavailable.value.placeholder`, a text or `hex:` with digits.

    Raises InvalidArgument for wrong digits, and for an empty placeholder.
    """
    try:
        placeholder_bytes = bytes.fromhex(placeholder[4:]) if placeholder.startswith("hex:") else placeholder.encode()
    except ValueError:
        placeholder_bytes = b""
    if not placeholder_bytes:
        problem = f"{placeholder!r} is neither a text nor hex: with hexadecimal digits."
        raise InvalidArgument(
            "unavailable_placeholder", problem, "Write the connector's unavailable.value.placeholder."
        )
    return placeholder_bytes
