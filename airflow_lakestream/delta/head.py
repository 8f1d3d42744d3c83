"""A Delta table at a version, read from the log through delta-rs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable


def _no_transaction(app: str) -> int | None:
    return None


@dataclass(frozen=True)
class DeltaTableHead:
    """A Delta table at a version.

    :param schema: the Arrow schema of all columns.
    :param fields: the columns as Delta's JSON, metadata of columns included.
    :param partitions: the names of the partition columns.
    :param txn: returns the number of an application's last transaction, or None.
    :param delta: the table as loaded by delta-rs; None for a table made from an outline, or not created yet.
    """

    table: str
    version: int
    table_id: str
    schema: pa.Schema
    fields: Sequence[Mapping[str, Any]]
    partitions: tuple[str, ...]
    properties: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    description: str | None = None
    created_time: int | None = None
    reader_version: int = 1
    writer_version: int = 2
    reader_features: frozenset[str] = frozenset()
    writer_features: frozenset[str] = frozenset()
    txn: Callable[[str], int | None] = field(default=_no_transaction, repr=False, compare=False)
    delta: DeltaTable | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, delta: DeltaTable, table: str) -> DeltaTableHead:
        """Return the head of a loaded table."""
        metadata, protocol = delta.metadata(), delta.protocol()
        return cls(
            table=table,
            version=delta.version(),
            table_id=str(metadata.id),
            name=metadata.name,
            description=metadata.description,
            created_time=metadata.created_time,
            properties=metadata.configuration,
            partitions=tuple(metadata.partition_columns),
            schema=pa.schema(delta.schema()),
            fields=json.loads(delta.schema().to_json())["fields"],
            reader_version=protocol.min_reader_version,
            writer_version=protocol.min_writer_version,
            reader_features=frozenset(protocol.reader_features or ()),
            writer_features=frozenset(protocol.writer_features or ()),
            txn=delta.transaction_version,
            delta=delta,
        )

    @property
    def features(self) -> frozenset[str]:
        """The table features named by the protocol, of readers and of writers."""
        return self.reader_features | self.writer_features

    def metadata_action(self, properties: Mapping[str, str], fields: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the metadata action with these properties and columns; all further metadata is kept."""
        return {
            "metaData": {
                "id": self.table_id,
                "name": self.name,
                "description": self.description,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": list(fields)}),
                "partitionColumns": list(self.partitions),
                "createdTime": self.created_time,
                "configuration": dict(properties),
            }
        }
