"""Partition specs that tables come to have by evolution, such as Java's Iceberg writes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import date, datetime, time
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.avro.file import AvroFile
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import AddPartitionSpecUpdate, SetDefaultSpecUpdate
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import IcebergType
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros, time_to_micros

from airflow_lakestream.core.names import DEFAULT_METADATA
from airflow_lakestream.decode.metadata import metadata_schema
from airflow_lakestream.tables.schema.columns import to_schema
from tests.support.given_records import GivenLake

AnyTransform = Transform[Any, Any]
TRANSFORMS: Sequence[AnyTransform] = (
    IdentityTransform(),
    BucketTransform(4),
    BucketTransform(7),
    TruncateTransform(2),
    YearTransform(),
    MonthTransform(),
    DayTransform(),
    HourTransform(),
    VoidTransform(),
)
# A column's DDL type, and values of it as JSON has them.
VALUES: dict[str, list[Any]] = {
    "int": [-7, 0, 5, 2**31 - 1, -(2**31) + 9, None],
    "bigint": [-7, 0, 5, 2**63 - 1, -(2**63) + 9, None],
    "string": ["", "abcdef", "abcdefg", "é€😀xyz", "a b/c=d%", None],
    "binary": ["", "YWJjZGVm", "AAECAwQF", "/////w==", None],
    "uuid": ["f79c3e09-677c-4bbd-a479-3f349cb785e7", "00000000-0000-0000-0000-000000000000", None],
    "decimal(9,2)": ["12.34", "-12.34", "0.00", "9999999.99", None],
    "decimal(38,10)": ["1234567890123456789012345678.9012345678", "-0.0000000001", None],
    "date": ["1969-12-31", "1970-01-01", "2024-02-29", "9999-12-31", "0001-01-02", None],
    "time": ["00:00:00", "22:31:08.000001", "23:59:59.999999", None],
    "timestamp": ["1969-12-31T23:59:59.999999Z", "2024-02-29T12:30:00Z", "9999-12-31T23:59:59Z", None],
    "timestamp_ntz": ["1969-12-31T23:59:59.999999", "2024-02-29T12:30:00", "9999-12-31T23:59:59", None],
    "boolean": [True, False, None],
    "float": [-1.5, 0.0, 3.25, None],
}


def transforms_of(kind: IcebergType) -> list[AnyTransform]:
    """Return the transforms that a column of this type takes."""
    return [one for one in TRANSFORMS if one.can_transform(kind)]


def spec_of(table: Table, *terms: tuple[str, AnyTransform]) -> PartitionSpec:
    """Return the table's next spec: the transforms of these columns."""
    columns = sorted(table.schema().column_names)
    fields = []
    for column, transform in terms:
        at = columns.index(column) * len(TRANSFORMS) + TRANSFORMS.index(transform)
        source = table.schema().find_field(column).field_id
        # A field keeps its id from spec to spec.
        fields.append(PartitionField(source, PARTITION_FIELD_ID_START + at, transform, f"{column}_{at}"))
    return PartitionSpec(*fields, spec_id=max(table.specs()) + 1)


def partition_by(table: Table, *terms: tuple[str, AnyTransform]) -> None:
    """Give the table another spec, which PyIceberg itself may refuse to add."""
    spec = spec_of(table, *terms)
    table.catalog.commit_table(table, (), (AddPartitionSpecUpdate(spec=spec), SetDefaultSpecUpdate(spec_id=-1)))


def made_of_version_1(lake: GivenLake, *others: str) -> None:
    """Make the lake's table, with a column `n`, of version 1: its partition field was dropped, then the field's column.

    :param others: columns by which it is partitioned, too.
    """
    times = pa.field("ts", pa.timestamp("us", "UTC"))
    columns = to_schema(pa.schema([pa.field("n", pa.int32()), times, *metadata_schema(DEFAULT_METADATA)]))
    terms: list[tuple[str, AnyTransform]] = [("ts", DayTransform()), *((one, IdentityTransform()) for one in others)]
    fields = [
        PartitionField(columns.find_field(name).field_id, PARTITION_FIELD_ID_START + at, transform, f"{name}_{at}")
        for at, (name, transform) in enumerate(terms)
    ]
    lake.catalog().create_namespace("lake")
    version_1 = {"format-version": "1"}
    table = lake.catalog().create_table(lake.name, columns, partition_spec=PartitionSpec(*fields), properties=version_1)
    with table.update_spec() as spec:
        spec.remove_field("ts_0")
    with table.transaction() as change:
        change.upgrade_table_version(2)
    with table.update_schema(allow_incompatible_changes=True) as schema:
        schema.delete_column("ts")
    assert isinstance(table.spec().fields[0].transform, VoidTransform)


def assert_partitions_are_right(table: Table) -> int:
    """Assert that each row lies in a file whose partition is that of the row; return how many files there are."""
    tasks = list(table.scan().plan_files())
    for task in tasks:
        assert_partition_is_right(task.file, table.schema(), table.specs()[task.file.spec_id])
    return len(tasks)


def assert_partition_is_right(file: DataFile, schema: Schema, spec: PartitionSpec) -> int:
    """Assert that the partition of a file is that of each row in the file; return how many rows there are."""
    rows = pq.read_table(file.file_path.removeprefix("file://")).to_pylist()
    assert rows
    for at, field in enumerate(spec.fields):
        column = schema.find_column_name(field.source_id)
        found = _in_manifest(file.partition[at])
        if column is None or isinstance(field.transform, VoidTransform):
            assert found is None
            continue
        kind: Any = schema.find_field(field.source_id).field_type
        apply = field.transform.transform(kind)
        for row in rows:
            value = row
            for name in column.split("."):
                value = None if value is None else value[name]
            assert _in_manifest(apply(value)) == found, (field, value, found)
    return len(rows)


def assert_avro_has_each_name_once(table: Table) -> None:
    """Assert that the schemas of the current snapshot's manifests define no type twice."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    for manifest in snapshot.manifests(table.io):
        with AvroFile[Any](table.io.new_input(manifest.manifest_path)) as file:
            names = list(_defined(json.loads(file.header.meta["avro.schema"])))
        assert len(names) == len(set(names)), names


def _defined(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict) and schema.get("type") in ("fixed", "record"):
        yield schema["name"]
    for one in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _defined(one)


def _in_manifest(value: Any) -> Any:
    if isinstance(value, datetime):
        return datetime_to_micros(value)
    if isinstance(value, date):
        return date_to_days(value)
    if isinstance(value, time):
        return time_to_micros(value)
    return value.bytes if isinstance(value, UUID) else value
