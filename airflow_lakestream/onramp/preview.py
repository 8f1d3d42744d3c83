"""Preview of a topic: records decoded as by a landing, and the columns of a new table. Nothing is written."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pyarrow as pa

from airflow_lakestream.cdc.events.record_keys import as_list, names_in
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.policies import OnError, Tombstones, ValueEnvelope, ValueFormat, is_given
from airflow_lakestream.core.ports import OffsetsGone
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.csv import CsvDecoder
from airflow_lakestream.decode.json.kinds import Kinds, kinds_of, remarks
from airflow_lakestream.decode.known_formats import uses_registry
from airflow_lakestream.decode.rows import RowDecoderFactory
from airflow_lakestream.decode.values.outcome import all_but, pick
from airflow_lakestream.decode.values.outcome import excerpt as excerpt
from airflow_lakestream.exceptions import BadRecord, InvalidArgument, LakestreamError
from airflow_lakestream.onramp.samples import (
    MOST_BYTES,
    FormatGuess,
    SampledTopic,
    TopicSample,
    document_of_texts,
    guess_format,
)
from airflow_lakestream.registry.client import RegistryClient, RegistryRefused, RegistryUnavailable
from airflow_lakestream.registry.config import RegistryConfig
from airflow_lakestream.tables.schema.columns import payload_schema, to_schema, to_timed_schema, with_metadata
from airflow_lakestream.tables.schema.types import schema_text


def json_ready(value: Any) -> Any:
    """Return a JSON-ready value.

    Bytes become text, or base64 if they are not UTF-8; times become ISO 8601; infinities and NaN become text.
    """
    if isinstance(value, Mapping):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, str | int):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


# Arguments that a landing needs, and a preview does not use.
_UNUSED_ARGUMENTS = {"table": "no.table", "consumer_group": "lakestream-preview"}
_LOOKED_AT = 500  # number of records from which the columns are made, of all partitions together
_LEAST_OF_EACH = 5  # least number of these records at each end of a partition
_ATTEMPTS = 3  # number of attempts while retention removes the records that are read


class ColumnsBy(StrEnum):
    """Source of the previewed columns."""

    SCHEMA = "schema"
    SQL = "sql"
    RECORDS = "records"
    # The format's fixed columns, or the registry's schema.
    FORMAT = "format"


@dataclass(frozen=True)
class TopicPreview:
    """Known facts about a topic, with decoded records.

    :param partitions: number of the topic's partitions.
    :param offsets: number of the topic's offsets, of records and of holes.
    :param rate: records a minute by the newest timestamps, or None if unknown.
    :param decoding: arguments of a landing by which the records were decoded, the guessed ones included.
    :param reason: reason for the guess of the format; empty if the format was given.
    :param columns: the payload's columns as DDL, or None if unknown.
    :param columns_by: source of the columns.
    :param looked_at: number of records that were read.
    :param key: the columns of the records' keys; empty unless all keys have the same columns.
    :param kinds: by column, the kinds of values in JSON documents or in fields of CSV.
    :param problem: the reason why no record was decoded; None if the records were decoded.
    :param rows: the selected records as rows of a landing, with the metadata columns.
    :param rejected: the selected records that become no row, each with stage and reason.
    :param undecoded: the selected records, if no record was decoded.
    :param skipped: number of selected records that `tombstones` or `sql` leaves out.
    :param notes: remarks about the records, for a person.
    """

    topic: str
    partitions: int
    offsets: int
    rate: float | None
    decoding: Mapping[str, Any]
    reason: str
    columns: str | None
    looked_at: int
    columns_by: ColumnsBy = ColumnsBy.RECORDS
    key: Sequence[str] = ()
    kinds: Kinds = field(default_factory=dict)
    problem: str | None = None
    rows: Sequence[Mapping[str, Any]] = ()
    rejected: Sequence[Mapping[str, Any]] = ()
    undecoded: Sequence[Mapping[str, Any]] = ()
    skipped: int = 0
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def has_events(self) -> bool:
        """Whether the values are change events of Debezium: by the decoding, or by the columns op, before and after."""
        names = () if self.columns is None else to_schema(self.columns).column_names
        return self.decoding.get("envelope") == ValueEnvelope.DEBEZIUM or {"op", "before", "after"} <= set(names)

    @property
    def remarks(self) -> Sequence[str]:
        """Remarks about the columns, for a person who makes a table with them; see `kinds.remarks`."""
        if self.columns is None:
            return []
        given = self.decoding.get("schema")
        times = to_timed_schema(given)[1] if is_given(given) else {}
        return list(remarks(to_schema(self.columns), self.kinds, times))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; bytes without UTF-8 text are base64."""
        return {
            "topic": self.topic,
            "partitions": self.partitions,
            "offsets": self.offsets,
            "records_a_minute": None if self.rate is None else round(self.rate, 2),
            "format": self.decoding.get("format"),
            "guessed": self.reason or None,
            "decoding": {name: value for name, value in self.decoding.items() if isinstance(value, str | list)},
            "columns": self.columns,
            "columns_by": str(self.columns_by),
            "records_looked_at": self.looked_at,
            "kinds": {name: [kind.to_dict() for kind in kind_counts] for name, kind_counts in self.kinds.items()},
            "remarks": self.remarks,
            "problem": self.problem,
            "rows": [json_ready(row) for row in self.rows],
            "rejected": [json_ready(row) for row in self.rejected],
            "undecoded": [json_ready(row) for row in self.undecoded],
            "skipped": self.skipped,
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class RecordSelection:
    """Selection of the records to show: the newest `count` records of the topic.

    With `offsets` (by partition), the oldest `count` records from these offsets on. With `since_ms`, in milliseconds
    since the epoch, the oldest `count` records from this time on. At most one of both is set.
    """

    count: int = 10
    offsets: Mapping[int, int] = field(default_factory=dict)
    since_ms: int | None = None


def preview(
    topic: SampledTopic,
    decoding: Mapping[str, Any],
    wanted: RecordSelection,
    registry: RegistryConfig | None = None,
    tombstones: str = Tombstones.KEEP,
) -> TopicPreview:
    """Return a preview of a topic. The topic is read without a consumer group; no offset is committed.

    :param decoding: arguments of `config.decoding` that the user gave; a missing format is guessed.
    :param wanted: the records to show; the columns come from more records.
    :param registry: used to guess the format, and to decode formats that need a registry.
    :param tombstones: the operators' argument.

    Raises the errors of the connection, of the registry and of wrong arguments. If the records can't be decoded, the
    preview has the problem.
    """
    for _ in range(_ATTEMPTS - 1):
        with suppress(OffsetsGone):
            # Retention may remove the first records while they are read.
            return _preview(topic, decoding, wanted, registry, tombstones)
    return _preview(topic, decoding, wanted, registry, tombstones)


def _preview(
    topic: SampledTopic,
    decoding: Mapping[str, Any],
    wanted: RecordSelection,
    registry: RegistryConfig | None,
    tombstones: str,
) -> TopicPreview:
    """Return the preview by one attempt. Raises also OffsetsGone if retention removes records meanwhile."""
    state = topic.look()
    # Records are read from both ends of each partition, since their columns may have changed.
    each = max(_LEAST_OF_EACH, _LOOKED_AT // (2 * max(1, len(state.marks))))
    first, last = topic.first(state, each), topic.last(state, max(each, wanted.count))
    if wanted.offsets:
        chosen = topic.since(state, wanted.offsets, wanted.count).trimmed(wanted.count, newest=False)
    elif wanted.since_ms is not None:
        chosen = topic.since_time(state, wanted.since_ms, wanted.count).trimmed(wanted.count, newest=False)
    else:
        chosen = last.trimmed(wanted.count, newest=True)
    sample = first + last + chosen
    guess = FormatGuess()
    if not is_given(decoding.get("format")) and not is_given(decoding.get("sql")):
        guess = guess_format(sample.values, registry, sample.bare)
    settings = {**guess.decoding, **decoding}
    if uses_registry(settings.get("format"), settings.get("key_format")):
        settings |= {} if registry is None else {"schema_registry": registry}
    elif guess.format is not None:
        # The registry was only needed for the guess.
        settings.pop("schema_registry", None)
    base = TopicPreview(
        topic=topic.name,
        partitions=len(state.marks),
        offsets=sum(marks.end - marks.low for marks in state.marks.values()),
        rate=topic.rate(state, first, last),
        decoding=settings,
        reason=guess.reason,
        columns=None,
        looked_at=len(sample),
        columns_by=ColumnsBy.SCHEMA if is_given(decoding.get("schema")) else ColumnsBy.RECORDS,
        key=_key_of(sample, registry),
        notes=_notes(sample),
    )
    # With schemas from the user, the records can be decoded in spite of a guess's problem.
    has_schemas = is_given(settings.get("writer_schemas")) or is_given(settings.get("schema"))
    if guess.problem is not None and not has_schemas:
        return replace(base, problem=guess.problem, undecoded=_undecoded(chosen))
    return _decoded(base, sample, chosen, tombstones)


def _key_of(sample: TopicSample, registry: RegistryConfig | None) -> Sequence[str]:
    """Return the columns of the keys, or an empty sequence unless all keys have the same columns."""
    client = None if registry is None else RegistryClient(registry)
    names = {text for batch in sample.batches for text in names_in(_keys(batch), client, {}).to_pylist()}
    return (as_list(names.pop()) or ()) if len(names) == 1 else ()


def _notes(sample: TopicSample) -> list[str]:
    notes = []
    if sample.is_cut:
        notes.append(f"The records are large: reading ended after {MOST_BYTES >> 20} MiB.")
    nulls = sum(value is None for value in sample.values)
    if nulls:
        notes.append(
            f"{nulls} of {len(sample)} records have no value (tombstones); the argument tombstones decides "
            "what they become."
        )
    return notes


def _decoded(base: TopicPreview, sample: TopicSample, chosen: TopicSample, tombstones: str) -> TopicPreview:
    """Return the preview with columns and rows, or with a problem if no columns can be made from the records.

    Raises the error of a schema that the user gave.

    :param base: the preview without columns and rows.
    :param sample: the records from which the columns are made.
    :param chosen: the records to show.
    """
    arguments: dict[str, Any] = {**_UNUSED_ARGUMENTS, **base.decoding}
    config = ExtractConfig(topic=base.topic, tombstones=tombstones, **arguments)
    design, statement = config.design, config.statement
    decoders = RowDecoderFactory(
        config.payload,
        tuple(config.metadata_columns),
        None,
        OnError.REJECT,
        config.tombstone_policy,
        None if statement is None else statement.transform,
    )
    try:
        if design.schema is not None:
            schema = payload_schema(with_metadata(design.schema, design.metadata), design.metadata.names)
        else:
            schema = _columns(config, sample, base.topic)
        columns = schema_text(to_schema(schema))
        decoder = decoders(schema, None)
    except (RegistryUnavailable, RegistryRefused):
        raise
    except LakestreamError as e:
        if design.schema is not None:
            raise
        return replace(base, problem=str(e), undecoded=_undecoded(chosen))
    assert decoder is not None, "there is a schema"
    rows: list[Mapping[str, Any]] = []
    rejected: list[Mapping[str, Any]] = []
    skipped = 0
    for batch in chosen.batches:
        outcome = decoder.decode(batch)
        names = outcome.rows.column_names
        rows += [dict(zip(names, row, strict=True)) for row in zip(*map(_values, outcome.rows.columns), strict=True)]
        skipped += outcome.counts.skipped + outcome.counts.filtered
        if outcome.rejected is not None:
            # The column `timestamp_ms` has the same times, also after the year 9999, where Python's times end.
            rejects = outcome.rejected.drop_columns(["_kafka_timestamp"])
            rejected += [_rejected(reject) for reject in rejects.to_pylist()]
    source = base.columns_by
    if source is ColumnsBy.RECORDS and statement is not None:
        source = ColumnsBy.SQL
    elif source is ColumnsBy.RECORDS and design.schema is None and config.payload.format_row.first_columns is None:
        source = ColumnsBy.FORMAT
    kinds = {} if statement is not None else kinds_of(list(documents_of(config, sample)))
    base = replace(base, columns=columns, columns_by=source, kinds=kinds)
    return replace(base, rows=rows, rejected=rejected, skipped=skipped)


def documents_of(config: ExtractConfig, sample: TopicSample) -> Iterator[RawBatch]:
    """Yield the records as JSON documents, if the format is CSV, or JSON without an envelope; otherwise none.

    A CSV record becomes an object whose keys are the given columns. A record that is not CSV is left out.
    """
    if config.format == ValueFormat.JSON and not is_given(config.envelope):
        yield from sample.batches
    elif config.format == ValueFormat.CSV and (names := config.payload.given_columns):
        decoder = CsvDecoder(pa.schema([pa.field(name, pa.string()) for name in names]), delimiter=config.csv_delimiter)
        for batch in sample.batches:
            decoded = decoder.decode(batch)
            good_records = pick(batch, all_but(len(batch), [row.index for row in decoded.bad]))
            rows = zip(*(column.to_pylist() for column in decoded.rows.columns), strict=True)
            yield replace(good_records, values=pa.array([document_of_texts(names, row) for row in rows], pa.binary()))


def _columns(config: ExtractConfig, sample: TopicSample, topic: str) -> pa.Schema:
    """Return the columns that a first run gives a new table, by the registry or by the records.

    Raises BadRecord with the record's position in the topic.
    """
    batches = [batch for batch in sample.batches if len(batch)]
    positions = [(batch.partition, offset) for batch in batches for offset in batch.offsets]
    values = pa.concat_arrays([pa.array([], pa.binary()), *(batch.values.cast(pa.binary()) for batch in batches)])
    keys = pa.concat_arrays([pa.array([], pa.binary()), *(_keys(batch) for batch in batches)])
    # One batch of all records: its offsets are indexes into `positions`.
    batch_of_all = RawBatch(topic, 0, range(len(values)), [0] * len(values), values, keys)
    try:
        return config.payload.columns(batch_of_all)
    except BadRecord as e:
        partition, offset = positions[e.offset]
        raise BadRecord(topic, partition, offset, e.reason) from e


def _keys(batch: RawBatch) -> pa.Array:
    return pa.nulls(len(batch), pa.binary()) if batch.keys is None else batch.keys.cast(pa.binary())


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return a column's values as Python objects.

    A time out of Python's range becomes Arrow's number of microseconds; a struct or list with such a time is "...".
    """
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):
        return [_value(scalar) for scalar in column]


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return getattr(scalar, "value", None) if not isinstance(scalar, pa.StructScalar | pa.ListScalar) else "..."


def _rejected(reject: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "partition": reject["_kafka_partition"],
        "offset": reject["_kafka_offset"],
        "timestamp": _time(reject["timestamp_ms"]),
        "stage": reject["stage"],
        "reason": reject["error"],
        "value": reject["value"],
    }


def _undecoded(sample: TopicSample) -> list[dict[str, Any]]:
    return [
        {"partition": batch.partition, "offset": offset, "timestamp": _time(at), "value": value}
        for batch in sample.batches
        for offset, at, value in zip(batch.offsets, batch.timestamps, batch.values.to_pylist(), strict=True)
    ]


def _time(milliseconds: int) -> datetime | None:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds >= 0 else None
    except (OverflowError, ValueError, OSError):
        return None


def check_wanted(count: int, offsets: Mapping[int, int], since_ms: int | None) -> RecordSelection:
    """Return the selection of records. Raises InvalidArgument for a count below 1, and for offsets with a time."""
    if count < 1:
        raise InvalidArgument("--limit", f"{count} is not a number of records above 0.")
    if offsets and since_ms is not None:
        raise InvalidArgument("--from-timestamp", "does not go with --from-offset.", "Give one of them.")
    return RecordSelection(count, offsets, since_ms)
