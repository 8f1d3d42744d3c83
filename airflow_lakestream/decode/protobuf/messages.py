"""Readers of inner messages, and of well-known types with a value: timestamps, wrappers, JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as t

from airflow_lakestream.core.policies import TimestampsFiner
from airflow_lakestream.decode.lanes import leaves
from airflow_lakestream.decode.lanes.lanes import ByteLanes
from airflow_lakestream.decode.lanes.leaves import Unfit
from airflow_lakestream.decode.protobuf.readers import MessageReader, ReaderCompiler
from airflow_lakestream.decode.protobuf.schema import JSON_TYPES, TIMESTAMP, WRAPPERS
from airflow_lakestream.decode.protobuf.values import span
from airflow_lakestream.tables.schema import value_ranges

Read = Callable[[ByteLanes, int], pa.Array]

_NANOS = 1_000_000_000


def inside(reader: MessageReader, lanes: ByteLanes, depth: int, path: str) -> list[pa.Array]:
    """Read a message in each lane, behind the message's length; return the columns, and fail the lanes of bad messages.

    :param depth: number of messages around these.
    """
    starts, lengths = span(lanes, path)
    part = lanes.inside(starts, lengths)
    columns = reader.read(part, depth + 1)
    lanes.fail_with(part)
    return columns


def reader(descriptor: Any, kind: pa.DataType, path: str, compiler: ReaderCompiler) -> Read:
    """Return the reader of a message as a value of this type.

    A struct has a field for each column inside; a timestamp, a wrapper and JSON may be a single value. Raises Unfit.
    """
    name = descriptor.full_name
    if t.is_struct(kind):
        return _struct(descriptor, kind, path, compiler)
    if name == TIMESTAMP and t.is_timestamp(kind):
        return _timestamp(descriptor, kind, path, compiler)
    if name in WRAPPERS:
        # The value is null only if the wrapper is missing, not if it is the default.
        inner = compiler.message(descriptor, [pa.field("value", kind)], path)
        return lambda lanes, depth: inside(inner, lanes, depth, path)[0]
    if name in JSON_TYPES and (t.is_string(kind) or t.is_large_string(kind)):
        return _json(name, kind, path)
    raise Unfit(f"{path}: a message of type {name} can't become {kind}")


def _struct(descriptor: Any, kind: pa.DataType, path: str, compiler: ReaderCompiler) -> Read:
    inner, fields = compiler.message(descriptor, list(kind), path), list(leaves.plain(kind))
    return lambda lanes, depth: pa.StructArray.from_arrays(inside(inner, lanes, depth, path), fields=fields)


def _timestamp(descriptor: Any, kind: pa.DataType, path: str, compiler: ReaderCompiler) -> Read:
    if kind.unit != "us" or kind.tz is None:
        raise Unfit(f"{path}: an instant can't become {kind}")
    inner = compiler.message(descriptor, [pa.field("seconds", pa.int64()), pa.field("nanos", pa.int32())], path)
    low, high = value_ranges.MIN_MICROS // 1_000_000, value_ranges.MAX_MICROS // 1_000_000

    def read(lanes: ByteLanes, depth: int) -> pa.Array:
        columns = inside(inner, lanes, depth, path)
        # A missing part is the default, not null; nulls come from failed lanes.
        filled = (column.fill_null(0) if column.null_count else column for column in columns)
        seconds, nanos = (column.to_numpy().astype(np.int64, copy=False) for column in filled)
        lanes.fail((seconds < low) | (seconds > high), f"{path}: {value_ranges.NOT_A_YEAR}")
        lanes.fail((nanos < 0) | (nanos >= _NANOS), f"{path}: a timestamp with nanos out of range")
        if compiler.finer is TimestampsFiner.REJECT:
            lanes.fail(nanos % 1000 != 0, f"{path}: {value_ranges.FINER_MESSAGE}")
        return pa.array(seconds * 1_000_000 + nanos // 1000).view(pa.timestamp("us", kind.tz))

    return read


def _json(name: str, kind: pa.DataType, path: str) -> Read:
    # Returns the reader of Protobuf's JSON types as text; a value that JSON can't express fails the lane.
    from google.protobuf import json_format, struct_pb2
    from google.protobuf.message import DecodeError

    message = getattr(struct_pb2, name.rpartition(".")[2])

    def text(value: bytes) -> str | None:
        try:
            return str(json_format.MessageToJson(message.FromString(value), indent=None, sort_keys=True))
        except (DecodeError, json_format.Error, ValueError, RecursionError):
            return None

    def read(lanes: ByteLanes, depth: int) -> pa.Array:
        starts, lengths = span(lanes, path)
        # One by one: such values contain themselves, and are rare.
        texts = pa.array([text(value) for value in lanes.binary(starts, lengths).to_pylist()], kind)
        if texts.null_count:
            lanes.fail(texts.is_null().to_numpy(zero_copy_only=False), f"{path}: no value that JSON can show")
        return texts

    return read
