"""Protobuf messages in Confluent's wire format to rows of a schema."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_lakestream.core.policies import UnknownFields
from airflow_lakestream.decode.lanes import confluent
from airflow_lakestream.decode.lanes.framed import FramedDecoder, Read
from airflow_lakestream.decode.lanes.lanes import ByteLanes, Integers
from airflow_lakestream.decode.lanes.leaves import Unfit
from airflow_lakestream.decode.other_names import FieldNaming, proto_of, protobuf_names
from airflow_lakestream.decode.protobuf.columns import ProtobufCompiler, ProtobufMessageReader
from airflow_lakestream.decode.protobuf.schema import is_map
from airflow_lakestream.decode.values.outcome import SchemaRefused

_MOST_INDEXES = 32


class ProtobufDecoder(FramedDecoder):
    """Decoder of Protobuf; each value names the writer's schema and the message in the schema."""

    kind = "PROTOBUF"

    def _split(self, lanes: ByteLanes) -> Iterator[tuple[Hashable, int | None, Integers]]:
        framed = confluent.is_framed(lanes)
        lanes.fail(~framed, "the value does not begin as Confluent's wire format does, with a zero")
        ids = confluent.schema_ids(lanes, framed)
        for schema_id, rows in confluent.groups(ids, lanes.failure == 0):
            part = lanes.take(rows)
            messages = _messages(part)
            lanes.put(rows, part)
            for path, found in messages:
                yield (schema_id, path), schema_id, rows[found]

    def _compile(self, key: Hashable) -> Read:
        assert isinstance(key, tuple)
        schema_id, path = key
        schema = self._registered(schema_id)
        try:
            descriptor = proto_of(schema).descriptor(path)
        except SchemaRefused as refused:
            raise Unfit(str(refused)) from None

        def read_by(naming: FieldNaming) -> Read:
            compiler = ProtobufCompiler(
                naming, ignore_unknown=self.unknown_fields is UnknownFields.IGNORE, finer=self.finer
            )
            reader = compiler.message(descriptor, list(self.schema))
            return _RetryingReader(descriptor, reader, compiler).read

        return self._by_names(read_by, protobuf_names)


def _messages(lanes: ByteLanes) -> list[tuple[tuple[int, ...], Integers]]:
    """Move the lanes behind the message indexes; return the lanes of each message of the schema."""
    counts = lanes.zigzags("message indexes")
    lanes.fail((counts < 0) | (counts > _MOST_INDEXES), "message indexes: too many")
    live = lanes.failure == 0
    if live.all() and not counts.any():
        return [((0,), np.arange(len(lanes)))]
    rows = np.flatnonzero(live & (counts > 0))
    # The first message, by far the most common, is written without any index.
    found: dict[tuple[int, ...], Integers] = {(0,): np.flatnonzero(live & (counts == 0))}
    if len(rows):
        part, left = lanes.take(rows), counts[rows]
        paths: list[list[int]] = [[] for _ in rows]
        while (more := np.flatnonzero((left > 0) & (part.failure == 0))).size:
            some = part.take(more)
            for lane, index in zip(more.tolist(), some.zigzags("message indexes").tolist(), strict=True):
                paths[lane].append(index)
            part.put(more, some)
            left[more] -= 1
        lanes.put(rows, part)
        by_path: dict[tuple[int, ...], list[int]] = {}
        for lane, path in zip(np.flatnonzero(part.failure == 0).tolist(), _of(paths, part), strict=True):
            by_path.setdefault(tuple(path), []).append(int(rows[lane]))
        for message, its in by_path.items():
            found[message] = np.concatenate([found.get(message, np.zeros(0, np.int64)), np.array(its, np.int64)])
    return [(path, np.sort(its)) for path, its in found.items() if len(its)]


def _of(paths: list[list[int]], lanes: ByteLanes) -> list[list[int]]:
    return [path for path, failure in zip(paths, lanes.failure.tolist(), strict=True) if not failure]


class _RetryingReader:
    """Reader of messages in lanes; the official package rewrites failed messages for a second try.

    So this reader need not know rare forms (a message in several parts, groups, numbers of closed enums without a
    name): the official package writes everything in the form that the reader knows. The package also has the last
    word on whether the bytes are a message at all.
    """

    def __init__(self, descriptor: Any, reader: ProtobufMessageReader, compiler: ProtobufCompiler) -> None:
        from google.protobuf import message_factory

        self._message = message_factory.GetMessageClass(descriptor)
        self._reader = reader
        self._compiler = compiler

    def read(self, lanes: ByteLanes) -> list[pa.Array]:
        starts, ends = lanes.pos.copy(), lanes.end.copy()
        columns = self._reader.read(lanes)
        failed = np.flatnonzero(lanes.failure)
        if not len(failed):
            return columns
        rewritten: dict[int, bytes] = {}
        for lane in failed.tolist():
            written = self._rewritten(lanes.data[starts[lane] : ends[lane]].tobytes())
            if isinstance(written, str):
                lanes.blame(lane, written)
            else:
                rewritten[lane] = written
        if not rewritten:
            return columns
        again = ByteLanes.over(pa.array(rewritten.values(), pa.binary()))
        self._compiler.patient = True
        try:
            better = self._reader.read(again)
        finally:
            self._compiler.patient = False
        places = np.arange(len(lanes))
        for place, lane in enumerate(rewritten):
            lanes.blame(lane, again.reasons[again.failure[place]])
            places[lane] = len(lanes) + place
        both = [pa.concat_arrays([column, other]) for column, other in zip(columns, better, strict=True)]
        return [column.take(pa.array(places)) for column in both]

    def _rewritten(self, value: bytes) -> bytes | str:
        """Return the message in the usual form, or the error."""
        from google.protobuf.message import DecodeError, EncodeError

        try:
            message = self._message.FromString(value)
            if self._compiler.ignore_unknown:
                message.DiscardUnknownFields()
            # Raises EncodeError with the missing fields.
            written: bytes = message.SerializeToString(deterministic=True)
            if self._compiler.ignore_unknown:
                # Groups with a column are refused before.
                _drop_groups(message)
                written = message.SerializePartialToString(deterministic=True)
        except (DecodeError, EncodeError, RecursionError) as error:
            return str(error).splitlines()[0]
        return written


def _drop_groups(message: Any) -> None:
    """Remove groups at any depth."""
    for field, value in message.ListFields():
        items = value if field.is_repeated else [value]
        if field.type == field.TYPE_GROUP:
            message.ClearField(field.name)
            continue
        if is_map(field):
            field, items = field.message_type.fields_by_name["value"], value.values()
        for item in items if field.message_type is not None else ():
            _drop_groups(item)
