"""Records of a topic, read without joining a group or committing an offset, and the format guessed from the values."""

from __future__ import annotations

import csv
import itertools
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_lakestream.core.landing.plan import Plan, TopicState
from airflow_lakestream.core.names import RecordPart
from airflow_lakestream.core.policies import ValueEnvelope, ValueFormat
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.header_ids import VALUE, bare, named_by_header
from airflow_lakestream.decode.json.document import parse_object
from airflow_lakestream.decode.json.infer import infer_schema
from airflow_lakestream.decode.known_formats import FORMATS
from airflow_lakestream.decode.values.outcome import Misfit, pick
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.kafka.reader import KafkaReader
from airflow_lakestream.kafka.source import KafkaSource, StartAt
from airflow_lakestream.registry.client import RegistryClient, SchemaNotFound
from airflow_lakestream.registry.config import RegistryConfig
from airflow_lakestream.tables.schema.columns import to_schema
from airflow_lakestream.tables.schema.types import schema_text

# The client needs the name of a group. No consumer joins the group, and no offset is committed.
_GROUP = "lakestream-preview"
_POLL_TIMEOUT = 20.0  # seconds
# Most bytes that are read: a record may have megabytes, and a topic hundreds of partitions.
MOST_BYTES = 64 * 2**20
# If the offsets read have too few records, after a compaction or transactions, the next read is this many times wider.
_WIDER = 8
_HOUR_MS = 3_600_000


@dataclass(frozen=True)
class TopicSample:
    """Records of a topic, in the order of offsets within each batch. `is_cut`: reading ended early, at MOST_BYTES."""

    batches: tuple[RawBatch, ...]
    is_cut: bool = False

    def __len__(self) -> int:
        return sum(map(len, self.batches))

    @property
    def values(self) -> list[bytes | None]:
        """The values of all records."""
        return [value for batch in self.batches for value in batch.values.to_pylist()]

    @property
    def bare(self) -> list[int]:
        """Indexes, into `values`, of the values whose schema ids are in headers."""
        starts = itertools.accumulate(map(len, self.batches), initial=0)
        return [
            start + index for start, batch in zip(starts, self.batches, strict=False) for index in bare(batch, VALUE)
        ]

    @property
    def newest_ms(self) -> int | None:
        """The greatest timestamp, in milliseconds since the epoch, or None if no record has a timestamp."""
        return max((at for batch in self.batches for at in batch.timestamps if at >= 0), default=None)

    def trimmed(self, count: int, *, newest: bool) -> TopicSample:
        """Return the `count` newest records by timestamp, or the `count` oldest if `newest` is False."""
        records = sorted(
            (timestamp, batch.partition, offset, n, index)
            for n, batch in enumerate(self.batches)
            for index, (timestamp, offset) in enumerate(zip(batch.timestamps, batch.offsets, strict=True))
        )
        indexes_by_batch: dict[int, list[int]] = {}
        for *_, n, index in records[-count:] if newest else records[:count]:
            indexes_by_batch.setdefault(n, []).append(index)
        batches = [pick(self.batches[n], sorted(indexes_by_batch[n])) for n in sorted(indexes_by_batch)]
        return TopicSample(tuple(batches), self.is_cut)

    def __add__(self, other: TopicSample) -> TopicSample:
        """Return the records of both samples, each once."""
        known = {(batch.partition, offset) for batch in self.batches for offset in batch.offsets}
        batches = list(self.batches)
        for batch in other.batches:
            new = [n for n, offset in enumerate(batch.offsets) if (batch.partition, offset) not in known]
            if new:
                batches.append(pick(batch, new))
        return TopicSample(tuple(batches), self.is_cut or other.is_cut)


class SampledTopic:
    """A topic to read records from, without joining a consumer group or committing offsets.

    The other methods take the state that `look` returns.

    :param connection: librdkafka configuration.
    :param where: name of the connection for errors.
    """

    def __init__(self, connection: Mapping[str, Any], topic: str, where: str) -> None:
        self.name = topic
        self._source = KafkaSource(connection, topic, _GROUP, StartAt(), where)
        parts = frozenset(RecordPart)
        self._reader = KafkaReader(connection, _GROUP, poll_timeout=_POLL_TIMEOUT, where=where, parts=parts)

    def look(self) -> TopicState:
        """Return identity and watermarks. Raises TopicMissing, KafkaRefused, KafkaUnavailable, KafkaMisconfigured."""
        return self._source.look()

    def last(self, state: TopicState, count: int) -> TopicSample:
        """Return the last `count` records of each partition. Raises the errors of the reader."""
        return self._read(state, {p: marks.end for p, marks in state.marks.items()}, count, backwards=True)

    def first(self, state: TopicState, count: int) -> TopicSample:
        """Return the first `count` records of each partition. Raises the errors of the reader."""
        return self._read(state, {p: marks.low for p, marks in state.marks.items()}, count)

    def since(self, state: TopicState, offsets: Mapping[int, int], count: int) -> TopicSample:
        """Return `count` records of each partition in `offsets`, from the partition's offset on.

        :param offsets: by partition, the first offset; any other partition is not read.

        Raises InvalidArgument for a missing partition or an offset outside the log, and the errors of the reader.
        """
        for p, offset in offsets.items():
            marks = state.marks.get(p)
            if marks is None:
                problem = f"{self.name} has no partition {p}; it has {len(state.marks)}, from 0 on."
                raise InvalidArgument("--from-offset", problem)
            if not marks.low <= offset <= marks.end:
                problem = f"{self.name}[{p}] {offset} is not in the log, which is [{marks.low},{marks.end}) now."
                raise InvalidArgument("--from-offset", problem)
        return self._read(state, offsets, count)

    def since_time(self, state: TopicState, at_ms: int, count: int) -> TopicSample:
        """Return `count` records of each partition, from a time (milliseconds since 1970) on.

        Raises the errors of source and reader.
        """
        return self._read(state, self._source.offsets_at(state, at_ms), count)

    def rate(self, state: TopicState, first: TopicSample, last: TopicSample) -> float | None:
        """Return the number of records a minute in the hour before the newest record, or None if unknown.

        Offsets are counted, so that markers of transactions count, too. The rate is unknown if all timestamps are
        within a second.

        :param first: the first records of each partition.
        :param last: the last records of each partition.
        """
        newest = last.newest_ms
        oldest = min((at for batch in first.batches for at in batch.timestamps if at >= 0), default=None)
        if newest is None or oldest is None or newest - oldest < 1000:
            return None
        window_ms = min(_HOUR_MS, newest - oldest)
        begins = self._source.offsets_at(state, newest - window_ms)
        return sum(state.marks[p].end - begin for p, begin in begins.items()) * 60_000 / window_ms

    def _read(
        self, state: TopicState, begins: Mapping[int, int], count: int, *, backwards: bool = False
    ) -> TopicSample:
        """Read `count` records of each partition, forwards or backwards from an offset.

        The log may have holes: further reads go on, each with more offsets, until the records are enough, the log ends,
        or MOST_BYTES are read.

        :param begins: offsets by partition; backwards, the record at this offset is not included.
        """
        positions, counts, batches = dict(begins), Counter[int](), list[RawBatch]()
        size, width = 0, count
        while positions and size < MOST_BYTES:
            ranges = []
            for p, position in sorted(positions.items()):
                marks = state.marks[p]
                low, end = position, min(marks.end, position + width)
                if backwards:
                    low, end = max(marks.low, position - width), position
                if low < end:
                    ranges.append(OffsetRange(self.name, p, low, end))
            size += self._read_ranges(Plan(state, RangeSet(ranges)), batches, counts, MOST_BYTES - size)
            positions = {
                r.partition: r.from_offset if backwards else r.until_offset
                for r in ranges
                if counts[r.partition] < count
            }
            width *= _WIDER
        ordered = sorted(batches, key=lambda batch: (batch.partition, batch.offsets[0]))
        return TopicSample(tuple(_of_each(ordered, count, backwards=backwards)), size >= MOST_BYTES)

    def _read_ranges(self, plan: Plan, batches: list[RawBatch], counts: Counter[int], most: int) -> int:
        """Read the ranges of a plan; return the number of bytes read.

        :param batches: list to which the records are appended.
        :param counts: counter to which the numbers of records by partition are added.
        :param most: number of bytes after which reading ends.
        """
        size = 0
        with closing(self._reader.read(plan, threading.Event())) as chunks:
            for chunk in chunks:
                size += chunk.size
                if len(chunk.batch):
                    batches.append(chunk.batch)
                    counts[chunk.batch.partition] += len(chunk.batch)
                if size >= most:
                    break
        return size


def _of_each(batches: Sequence[RawBatch], count: int, *, backwards: bool) -> list[RawBatch]:
    """Return the first `count` records of each partition, or the last `count` if `backwards`."""
    remaining: dict[int, int] = {}
    selected = []
    for batch in reversed(batches) if backwards else batches:
        number = min(len(batch), remaining.setdefault(batch.partition, count))
        remaining[batch.partition] -= number
        if number:
            selected.append(pick(batch, range(len(batch))[-number:] if backwards else range(number)))
    return selected[::-1] if backwards else selected


_HEADER = 5  # bytes in front of a payload with a schema id: a zero byte and the id
_SINGLE_OBJECT = b"\xc3\x01"  # first bytes of Avro in single-object encoding
# A longer value is not parsed as a whole: its beginning, or its first and last characters, decide.
_MOST_BYTES_PARSED = 256 * 1024
_DELIMITERS = ",;\t|"
_LEAST_LINES = 3  # fewer lines do not count as CSV: any two texts may have the same number of commas
_ALIKE = 0.9  # least share of the lines that must have the same number of fields
# A number or a boolean of JSON.
_LITERAL = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false")


@dataclass(frozen=True)
class FormatGuess:
    """A guess about the format of values: arguments of a landing as `decoding`, and the reason in words.

    `problem` is the missing information without which the values can't be decoded, and the remedy; None if nothing is
    missing.
    """

    decoding: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    problem: str | None = None

    @property
    def format(self) -> str | None:
        """The format, or None if unknown."""
        return self.decoding.get("format")


def guess_format(
    values: Sequence[bytes | None], registry: RegistryConfig | None, bare: Collection[int] = ()
) -> FormatGuess:
    """Return the format of more than half of the values as a guess, or the format raw if there is no such format.

    :param values: a sample; None for a tombstone.
    :param registry: resolves the schema ids in values, or None without a registry.
    :param bare: indexes of the values whose schema ids are in headers.

    Raises the registry's errors.
    """
    known = [value for value in values if value is not None]
    if not known:
        state = "is empty" if not values else "has tombstones only (records without a value) where it was looked at"
        return FormatGuess(problem=f"The topic {state}: say format and schema, or produce a record first.")
    kind_of, named = _ValueClassifier(registry), frozenset(bare)
    kinds = Counter(
        _kind_by_header(value) if index in named else kind_of(value)
        for index, value in enumerate(values)
        if value is not None
    )
    kind, count = kinds.most_common(1)[0]
    if 2 * count <= len(known):
        kind, count = "bytes", len(known)
    reason = f"{count} of {len(known)} values {_KIND_TEXTS[kind]}"
    return _GUESS_BY_KIND[kind](reason, known)


class _ValueClassifier:
    """Function that returns the kind of a value, by its first bytes and its syntax: a key of `_KIND_TEXTS`."""

    def __init__(self, registry: RegistryConfig | None) -> None:
        self._registry = None if registry is None else RegistryClient(registry)
        self._of_kind = {row.kind: name for name, row in FORMATS.items() if row.kind is not None}

    def __call__(self, value: bytes) -> str:
        if value.startswith(_SINGLE_OBJECT):
            return "single"
        if len(value) > _HEADER and value[0] == 0 and (kind := self._framed(value)) is not None:
            return kind
        if value[:_MOST_BYTES_PARSED].lstrip()[:1] == b"{" and (kind := _document(value)) is not None:
            return kind
        return "text" if _is_line(value) else "bytes"

    def _framed(self, value: bytes) -> str | None:
        """Return the kind of a value that begins with a schema id, or None if the registry has no such schema."""
        if self._registry is None:
            return ValueFormat.JSON_SCHEMA if _document(value[_HEADER:]) is not None else "framed"
        try:
            kind = self._registry.schema(int.from_bytes(value[1:_HEADER], "big")).kind
        except SchemaNotFound:
            return None
        return self._of_kind.get(kind)


def _kind_by_header(value: bytes) -> str:
    """Return the kind of a value whose schema id is in a header: "bare", except for JSON, which needs no schema."""
    is_object = value[:_MOST_BYTES_PARSED].lstrip()[:1] == b"{"
    return (_document(value) if is_object else None) or "bare"


def _document(value: bytes) -> str | None:
    """Return the kind of a JSON object, plain or in an envelope, or None for any other value.

    A long value counts as plain JSON if it begins and ends with braces.
    """
    if len(value) > _MOST_BYTES_PARSED:
        return ValueFormat.JSON if value.lstrip()[:1] == b"{" and value.rstrip()[-1:] == b"}" else None
    try:
        document = parse_object(value)
    except Misfit:
        return None
    inner = document.get("payload") if set(document) == {"schema", "payload"} else document
    if isinstance(inner, dict) and "op" in inner and ("before" in inner or "after" in inner):
        return ValueEnvelope.DEBEZIUM
    return ValueFormat.JSON if inner is document else ValueEnvelope.CONNECT


def _is_line(value: bytes) -> bool:
    """Return whether a value is a single line of printable text."""
    try:
        text = value[:_MOST_BYTES_PARSED].decode()
    except UnicodeDecodeError:
        return False
    return text.replace("\t", " ").rstrip("\r\n").isprintable()


_KIND_TEXTS = {
    "single": "are Avro in single-object encoding",
    "framed": "begin with a zero byte and the id of a schema",
    "bare": "have the ids of their schemas in headers",
    "text": "are text",
    "bytes": "are neither JSON nor text, and have no schema in a registry",
    ValueFormat.JSON: "are JSON objects",
    ValueEnvelope.DEBEZIUM: "are change events of Debezium in JSON",
    ValueEnvelope.CONNECT: "are Kafka Connect's JSON, with a schema next to each row",
    ValueFormat.AVRO: "name a schema of Avro in the registry",
    ValueFormat.PROTOBUF: "name a schema of Protobuf in the registry",
    ValueFormat.JSON_SCHEMA: "name a JSON Schema in the registry",
}


def _as(**decoding: str) -> Callable[[str, Sequence[bytes]], FormatGuess]:
    return lambda reason, _: FormatGuess(decoding, reason)


def _stuck(format_name: str | None, remedy: str) -> Callable[[str, Sequence[bytes]], FormatGuess]:
    decoding = {} if format_name is None else {"format": format_name}
    return lambda reason, _: FormatGuess(decoding, reason, f"{reason}. {remedy}")


def _csv_or_raw(reason: str, values: Sequence[bytes]) -> FormatGuess:
    """Return CSV as the guess for texts if most lines have the same number of fields, otherwise raw.

    The delimiter is the one that gives the most fields.
    """
    lines = [value.decode() for value in values if len(value) <= _MOST_BYTES_PARSED and _is_line(value)]
    tables: list[tuple[int, str, int]] = []
    for delimiter in _DELIMITERS if len(lines) >= _LEAST_LINES else "":
        widths = Counter(len(_fields(line, delimiter)) for line in lines)
        ((width, count),) = widths.most_common(1)
        if width > 1 and count >= _ALIKE * len(lines):
            tables.append((width, delimiter, count))
    if not tables:
        return FormatGuess({"format": ValueFormat.RAW}, f"{reason}, and not CSV")
    width, delimiter, count = max(tables)
    decoding = {"format": ValueFormat.CSV, "schema": _csv_columns(lines, delimiter, width)}
    if delimiter != ",":
        decoding["csv_delimiter"] = delimiter
    return FormatGuess(
        decoding, f"{count} of {len(values)} values are text of {width} fields, with {delimiter!r} between them"
    )


_GUESS_BY_KIND: Mapping[str, Callable[[str, Sequence[bytes]], FormatGuess]] = {
    "single": _stuck(ValueFormat.AVRO, "Give the schemas of its writers: --writer-schemas."),
    "framed": _stuck(None, "Say where the registry is: --schema-registry http://registry:8081."),
    "bare": lambda reason, _: FormatGuess({}, reason, f"{reason}. Of each one, {named_by_header(VALUE)}."),
    "text": _csv_or_raw,
    "bytes": _as(format=ValueFormat.RAW),
    ValueEnvelope.DEBEZIUM: _as(format=ValueFormat.JSON, envelope=ValueEnvelope.DEBEZIUM),
    ValueEnvelope.CONNECT: _as(format=ValueFormat.JSON, envelope=ValueEnvelope.CONNECT),
    **{
        name: _as(format=name)
        for name in (ValueFormat.JSON, ValueFormat.AVRO, ValueFormat.PROTOBUF, ValueFormat.JSON_SCHEMA)
    },
}


def _fields(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line.rstrip("\r\n")], delimiter=delimiter, strict=True), [])
    except csv.Error:
        return []


def _csv_columns(lines: Sequence[str], delimiter: str, width: int) -> str:
    """Return DDL for CSV fields, named column_1 and so on, with types inferred from the text of the fields."""
    rows = [fields for line in lines if len(fields := _fields(line, delimiter)) == width]
    names = [f"column_{n}" for n in range(1, width + 1)]
    values = pa.array([document_of_texts(names, row) for row in rows], pa.binary())
    try:
        inferred = infer_schema(RawBatch("csv", 0, range(len(values)), [0] * len(values), values))
    except InvalidArgument:
        inferred = pa.schema([])
    types = dict(zip(inferred.names, inferred.types, strict=True))
    return schema_text(to_schema(pa.schema([pa.field(name, types.get(name, pa.string())) for name in names])))


def document_of_texts(names: Sequence[str], texts: Sequence[str | None]) -> bytes:
    """Return a JSON object with a CSV record's fields.

    A text with a number or a boolean becomes a number or a boolean of JSON; an empty text or None becomes null.
    """
    members = zip(names, texts, strict=True)
    return ("{" + ", ".join(f"{json.dumps(name)}: {_json(text)}" for name, text in members) + "}").encode()


def _json(text: str | None) -> str:
    if not text:
        return "null"
    return text if _LITERAL.fullmatch(text) else json.dumps(text)
