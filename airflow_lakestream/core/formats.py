"""The formats of keys and values, and which of them need a schema registry."""

from __future__ import annotations

from enum import StrEnum


class Format(StrEnum):
    """What a record's value holds."""

    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    JSON_SCHEMA = "json_schema"
    RAW = "raw"


class KeyFormat(StrEnum):
    """What a record's key holds; `RAW` is bytes, `STRING` is text in UTF-8."""

    STRING = "string"
    RAW = "raw"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    JSON_SCHEMA = "json_schema"


class Envelope(StrEnum):
    """The wrapping around the row in a value.

    `CONNECT` is the {"schema": ..., "payload": ...} of Kafka Connect's JSON converter. `DEBEZIUM` is a change event
    with the row before and after it, with or without Connect's wrapping.
    """

    CONNECT = "connect"
    DEBEZIUM = "debezium"


# The names of a registry's schema types.
SCHEMA_KINDS = {"avro": "AVRO", "protobuf": "PROTOBUF", "json_schema": "JSON"}
# Formats whose records name their schema by id, and can't be read without it.
IDS_NEEDED = ("avro", "protobuf")
