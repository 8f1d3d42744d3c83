"""Proof of Flink's rows: our decoder decodes each record again, and the rows are compared.

Flink's Avro leaves bytes behind a record in its buffer and takes them for the beginning of the next record, makes a
text of bytes that are not UTF-8, and NULL of a decimal that is too long. Its JSON makes NULL of such a decimal, too, 1
of 1.5, and `false` of any text. Our decoder rejects all these records. Flink's JSON also shifts the columns of a
repeated key, rounds large numbers, and formats JSON kept as text: the comparison of rows finds these.

The rows of a user's statement can't be compared: with a statement the records are only decoded again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.schema import Schema

from airflow_lakestream.core.names import RecordPart
from airflow_lakestream.core.ports import RecordReader
from airflow_lakestream.core.publishing.branch import RowProof
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.avro.decoder import AvroDecoder
from airflow_lakestream.decode.header_ids import VALUE, bad_rows
from airflow_lakestream.decode.json.decoder import JsonDecoder
from airflow_lakestream.decode.keys import ColumnDecoder
from airflow_lakestream.decode.raw import RawDecoder
from airflow_lakestream.decode.values.outcome import DecoderResult, SchemaRefused
from airflow_lakestream.flink.formats.avro import AvroEncodings, WayRefused, ways_of
from airflow_lakestream.flink.job import JobSpoilt
from airflow_lakestream.registry.client import RegisteredSchema, SchemaSource
from airflow_lakestream.run.publication import DecodingProof
from airflow_lakestream.tables.row_buffer import no_rows
from airflow_lakestream.tables.schema.types import arrow_schema

# Opens a reader; the arguments are the parts of the records (keys, headers) to read in addition to values.
MakeReader = Callable[..., RecordReader]


class SchemaMoved(JobSpoilt):
    """Error of records with a schema unknown at the job's submit: the job may have misread them."""

    def __init__(self, schema_id: int, difference: str) -> None:
        super().__init__(
            f"Records have schema {schema_id} of the registry: {difference}. Their rows are not published; a new job "
            "begins where the ledger ends. If that does not help, the schema is not a version of the topic's "
            "subject: register it there."
        )


@dataclass(frozen=True)
class JobFormat:
    """The format in which a job reads records, as noted at the submit.

    :param format: "" for a job submitted before formats were noted, whose records are not decoded again.
    :param places: the encoding of each place, for Avro; see `AvroEncodings`.
    :param begins: by partition, the job's start; a job with the state of another job has that job's start.
    """

    format: str = ""
    places: Mapping[str, str] = field(default_factory=dict)
    begins: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> JobFormat:
        """Read the result of `str`; an empty text is the format of a job submitted before formats were noted."""
        if not text:
            return cls()
        name, places, begins = json.loads(text)
        return cls(name, places, {int(p): offset for p, offset in begins.items()})

    def __str__(self) -> str:
        return json.dumps([self.format, dict(self.places), dict(self.begins)])


def proof_of(
    columns: Schema,
    reads: JobFormat,
    reader: MakeReader,
    registry: SchemaSource | None,
    *,
    compares: bool,
    share: float,
) -> RowProof:
    """Return the proof of the records read by a job.

    :param columns: the columns of the records.
    :param reads: the format in which the job reads records.
    :param reader: opens a reader of the topic.
    :param registry: the registry, for Avro.
    :param compares: whether the values of rows are compared, see `DecodingProof`; otherwise the records are only
        decoded.
    :param share: the share of the records that are checked, from 0 to 1.
    """
    is_raw = reads.format == "raw"
    if reads.format == "avro":
        assert registry is not None, "the configuration requires a registry for Avro"
        source = _CheckedRegistry(columns, registry, AvroEncodings(dict(reads.places)))

        def make(schema: pa.Schema) -> ColumnDecoder:
            return _FramedDecoder(AvroDecoder(schema, registry=source))
    else:
        make = RawDecoder if is_raw else JsonDecoder
    record_schema = arrow_schema(columns)

    def decoder(table: pa.Schema) -> ColumnDecoder:
        """Return a decoder into the table's own types, which may have become wider than the job's types."""
        compared = set(table.names) if compares else set[str]()
        return make(pa.schema([table.field(col.name) if col.name in compared else col for col in record_schema]))

    parts = [RecordPart.KEY] if is_raw and "key" in record_schema.names else []
    if reads.format == "avro":
        parts.append(RecordPart.HEADERS)
    return DecodingProof(
        reader=reader(*parts),
        decoder=decoder,
        begins=reads.begins,
        tombstones=is_raw,
        compares=compares,
        share=share,
    )


@dataclass(frozen=True)
class _FramedDecoder:
    """A decoder of Avro as Flink reads Avro: by the schema id in each value, regardless of headers."""

    decoder: AvroDecoder

    @property
    def schema(self) -> pa.Schema:
        return self.decoder.schema

    def decode(self, batch: RawBatch) -> DecoderResult:
        """Decode a batch; a batch with a value without a schema id has no rows, and these values as bad."""
        without_id = list(bad_rows(batch, (VALUE,), "avro"))
        return DecoderResult(no_rows(self.schema), without_id) if without_id else self.decoder.decode(batch)


@dataclass(frozen=True)
class _CheckedRegistry:
    """A registry limited to schemas with the encodings that a job was submitted with."""

    columns: Schema
    registry: SchemaSource
    ways: AvroEncodings

    def versions(self, subject: str) -> list[RegisteredSchema]:
        """Return no versions: a job reads a record by the record's own schema alone."""
        return []

    def schema(self, schema_id: int) -> RegisteredSchema:
        """Return the schema of an id. Raises SchemaMoved for other encodings than the job's, and the registry's errors.

        A malformed schema is returned, since its decoder reports the fault.
        """
        schema = self.registry.schema(schema_id)
        try:
            difference = self.ways.lacks(ways_of(self.columns, [schema]))
        except SchemaRefused:
            return schema
        except WayRefused as refused:
            difference = str(refused)
        if difference:
            raise SchemaMoved(schema_id, difference)
        return schema
