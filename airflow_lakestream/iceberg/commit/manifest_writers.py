"""Manifest writers of a snapshot: a clean-up waits for all writers before files are deleted.

PyIceberg writes the manifests of a snapshot concurrently in its thread pool, and takes the results one after the
other: if one fails, others may be under way, or not begun. Manifests written after the clean-up would never be deleted.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from typing import Any

from pyiceberg.avro.codecs import AVRO_CODEC_KEY, CODEC_MAPPING_ICEBERG_TO_AVRO
from pyiceberg.avro.file import MAGIC, META_SCHEMA, AvroFileHeader, AvroOutputFile
from pyiceberg.avro.resolver import construct_writer
from pyiceberg.manifest import ManifestEntry
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.types import StructType, UnknownType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

# A snapshot producer and a manifest writer of PyIceberg; the producer's class is private.
Producer = Any
Writer = Any


class CleanedUp(Exception):
    """Refusal to write a manifest for a snapshot already given up."""


class ManifestWriters:
    """Manifests under way for a snapshot, known to the clean-up.

    Making the object replaces two methods of the producer: the clean-up then waits for all writers, and refuses
    later writers.
    """

    def __init__(self, producer: Producer) -> None:
        self._make = producer.new_manifest_writer
        self._clean = producer._clean_all_uncommitted
        self._lock = threading.Lock()
        self._writing: set[Future[None]] = set()
        self._given_up = False
        # Methods of this object only: its class is private in PyIceberg, and so are the tasks that call them.
        producer.new_manifest_writer = self._new
        producer._clean_all_uncommitted = self._clean_all

    def _new(self, spec: PartitionSpec) -> Writer:
        """Return a manifest writer that the clean-up waits for. Raises CleanedUp after the clean-up began."""
        done: Future[None] = Future()
        with self._lock:
            if self._given_up:
                raise CleanedUp
            self._writing.add(done)
        try:
            writer = self._make(with_optional_values(spec))
            name_types_uniquely(writer)
            return _SignalWriter(writer, done)
        except BaseException:
            done.set_result(None)
            raise

    def _clean_all(self) -> None:
        with self._lock:
            self._given_up = True
        wait(self._writing)
        self._clean()


def with_optional_values(spec: PartitionSpec) -> PartitionSpec:
    """Return a partition spec with all values optional, as Iceberg specifies."""
    return _OptionalValuesSpec.model_validate(spec.model_dump())


class _OptionalValuesSpec(PartitionSpec):
    """See `with_optional_values`.

    PyIceberg requires a value if the column is required, and can't write the manifest of a row in which that column is
    a field of a struct that is NULL.
    """

    def partition_type(self, schema: Schema) -> StructType:
        """Return the type of a file's partition."""
        fields = super().partition_type(schema).fields
        # The type of a dropped column is unknown. Avro allows no union of null and null, which optional would be.
        return StructType(
            *(field.model_copy(update={"required": isinstance(field.field_type, UnknownType)}) for field in fields)
        )


def name_types_uniquely(writer: Writer) -> None:
    """Make a manifest's writer name each type of a fixed length differently.

    PyIceberg gives all UUIDs one name, and all decimals of one precision. Avro allows a name once: DuckDB's process
    ends on a manifest with two such partition fields.
    """
    opened = writer.new_writer

    def open_writer() -> AvroOutputFile[ManifestEntry]:
        file: AvroOutputFile[ManifestEntry] = opened()
        file.__class__ = _UniqueNamesFile
        return file

    writer.new_writer = open_writer


class _UniqueNamesFile(AvroOutputFile[ManifestEntry]):
    """See `name_types_uniquely`."""

    def _write_header(self) -> None:
        schema = AvroSchemaConversion().iceberg_to_avro(self.file_schema, schema_name=self.schema_name)
        _rename(schema, itertools.count())
        codec = self.metadata.get(AVRO_CODEC_KEY, TableProperties.WRITE_AVRO_COMPRESSION_DEFAULT)
        codec = CODEC_MAPPING_ICEBERG_TO_AVRO.get(codec) or codec
        about = {**self.metadata, "avro.schema": json.dumps(schema), AVRO_CODEC_KEY: codec}
        construct_writer(META_SCHEMA).write(self.encoder, AvroFileHeader(MAGIC, about, self.sync_bytes))


def _rename(schema: Any, numbers: Iterator[int]) -> None:
    """Append a number to the name of each type of a fixed length in an Avro schema, changed in place."""
    if isinstance(schema, list):
        for child in schema:
            _rename(child, numbers)
    elif isinstance(schema, dict):
        if schema.get("type") == "fixed":
            schema["name"] = f"{schema['name']}_{next(numbers)}"
        for child in schema.values():
            _rename(child, numbers)


class _SignalWriter:
    """Manifest writer with a signal at the end of writing."""

    def __init__(self, writer: Writer, done: Future[None]) -> None:
        self._writer, self._done = writer, done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def __enter__(self) -> _SignalWriter:
        try:
            self._writer.__enter__()
        except BaseException:
            self._done.set_result(None)
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self._writer.__exit__(*error)
        finally:
            self._done.set_result(None)
