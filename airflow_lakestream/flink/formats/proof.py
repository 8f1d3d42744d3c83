"""The proof of what Flink has decoded, where its decoder notices less than ours: each record is decoded again by ours.

Flink's Avro leaves bytes behind a record in its buffer and takes them for the beginning of the next one, makes a text
of what is no UTF-8, and NULL of a decimal that is too long. Its JSON makes NULL of such a decimal, too, 1 of 1.5, and
`false` of any text. A record that ours takes is none of these.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

from airflow_lakestream.core.ports import Reader
from airflow_lakestream.core.publishing.branch import Proof
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.avro.decoder import AvroDecoder
from airflow_lakestream.decode.header_ids import VALUE, bad_rows
from airflow_lakestream.decode.json.decoder import JsonDecoder
from airflow_lakestream.decode.raw import RawDecoder
from airflow_lakestream.decode.values.outcome import Decoded, SchemaRefused
from airflow_lakestream.flink.formats.avro import WayRefused, Ways, ways_of
from airflow_lakestream.flink.job import JobSpoilt
from airflow_lakestream.registry.schemas import RegisteredSchema, SchemaSource
from airflow_lakestream.run.publication import DecodedAgain
from airflow_lakestream.tables.no_rows import no_rows
from airflow_lakestream.tables.schema.types import arrow_schema

# By whether it reads keys, and headers.
MakeReader = Callable[..., Reader]


class SchemaMoved(JobSpoilt):
    """Records were written with a schema that the job was not submitted for: it may have taken them for others."""

    def __init__(self, schema_id: int, why: str) -> None:
        super().__init__(
            f"Records have schema {schema_id} of the registry: {why}. What the job has made of them is not published; "
            "a new job begins where the ledger ends. Where that does not help, the schema is no version of the topic's "
            "subject: register it there."
        )


@dataclass(frozen=True)
class Reads:
    """How a job reads, as it was submitted.

    :param format: "" of a job that was submitted before formats were written down, whose records nobody looks at again.
    :param places: of the ways of Avro.
    :param begins: by partition, where it began; a job that goes on with the state of another one has that one's.
    """

    format: str = ""
    places: Mapping[str, str] = field(default_factory=dict)
    begins: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Reads:
        """Return what was written down by `str`."""
        if not text:
            return cls()
        name, places, begins = json.loads(text)
        return cls(name, places, {int(p): offset for p, offset in begins.items()})

    def __str__(self) -> str:
        return json.dumps([self.format, dict(self.places), dict(self.begins)])


def avro_proof(columns: Schema, registry: SchemaSource, reads: Reads, reader: MakeReader) -> Proof:
    """Return the proof of Avro that a job has read."""
    ways = Ways(dict(reads.places))
    decoder = AvroDecoder(arrow_schema(columns), registry=_OfTheseWays(columns, registry, ways))

    def decode(batch: RawBatch) -> Decoded:
        # Flink takes a value by the id in it, whatever a header says.
        bare = list(bad_rows(batch, (VALUE,), reads.format))
        return Decoded(no_rows(decoder.schema), bare) if bare else decoder.decode(batch)

    return DecodedAgain(reader(False, True), decode, reads.begins, tombstones=False)


def json_proof(columns: Schema, reads: Reads, reader: MakeReader) -> Proof:
    """Return the proof of JSON that a job has read."""
    return DecodedAgain(reader(False), JsonDecoder(arrow_schema(columns)).decode, reads.begins, tombstones=False)


def raw_proof(columns: Schema, reads: Reads, reader: MakeReader) -> Proof | None:
    """Return the proof of raw records; None for bytes, which are what they are."""
    if all(isinstance(one.field_type, iceberg.BinaryType) for one in columns.fields):
        return None
    with_keys = any(one.name == "key" for one in columns.fields)
    return DecodedAgain(reader(with_keys), RawDecoder(arrow_schema(columns)).decode, reads.begins, tombstones=True)


class _OfTheseWays:
    """A registry that gives a decoder only schemas whose values a job has read right."""

    def __init__(self, columns: Schema, registry: SchemaSource, ways: Ways) -> None:
        self._columns = columns
        self._registry = registry
        self._ways = ways

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._columns, self._registry, self._ways)

    def versions(self, subject: str) -> list[RegisteredSchema]:
        """Return nothing: a job reads a record by its own schema alone."""
        return []

    def schema(self, schema_id: int) -> RegisteredSchema:
        """Return the schema of this id. Raises SchemaMoved, and what the registry raises."""
        found = self._registry.schema(schema_id)
        try:
            why = self._ways.lacks(ways_of(self._columns, [found]))
        except SchemaRefused:
            # The decoder says what is wrong with it.
            return found
        except WayRefused as refused:
            why = str(refused)
        if why:
            raise SchemaMoved(schema_id, why)
        return found
