"""A change of a table's schema that goes into the commit of the next rows, and is written for before it is made.

Files are written with the field ids that the change will assign. So it is made at the very schema that it was planned
for, or not at all; the guard sees to that.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.name_mapping import parse_mapping_from_json, update_mapping
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate, SetPropertiesUpdate, TableUpdate
from pyiceberg.types import NestedField, StringType

from airflow_lakestream.core.names import ICEBERG_COLUMNS, RESCUED
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.schema.columns import (
    check_compatible,
    check_metadata,
    to_schema,
    with_metadata,
)
from airflow_lakestream.tables.schema.evolution import evolve
from airflow_lakestream.tables.schema.types import arrow_schema, fields_from_arrow

# Beside the landing's own keys in the snapshot's summary: what its commit changed, as JSON.
SUMMARY_KEY = "lakestream.schema-changes"


@dataclass(frozen=True)
class SchemaChange:
    """The table as it is, and as it is with the change; without any the two are the same.

    `texts` say what is changed, `added` are new fields by the id of the field that they are in. `taken` are names that
    no new column may have.
    """

    base: TableMetadata
    metadata: TableMetadata
    texts: tuple[str, ...] = ()
    added: Mapping[int, Sequence[NestedField]] = field(default_factory=dict)
    taken: Collection[str] = ICEBERG_COLUMNS

    @classmethod
    def none(cls, metadata: TableMetadata) -> SchemaChange:
        """Return the change that changes nothing."""
        return cls(metadata, metadata)

    @classmethod
    def nowhere(cls, schema: Schema) -> SchemaChange:
        """Return no change of a table that no catalog has: what stands for a table of another format."""
        return replace(cls.none(metadata_of(schema, "", {"format-version": "2"})), taken=())

    def __bool__(self) -> bool:
        return bool(self.texts)

    @property
    def schema(self) -> Schema:
        """The schema with the change."""
        return self.metadata.schema()

    def and_then(self, wanted: Iterable[NestedField], policy: SchemaEvolution) -> tuple[SchemaChange, tuple[str, ...]]:
        """Return the change that makes room for the wanted columns, too, and why some of them are not possible."""
        base, now = self.base, self.metadata
        evolved = evolve(
            now.schema(),
            wanted,
            policy,
            last_column_id=now.last_column_id,
            schema_id=1 + max(schema.schema_id for schema in base.schemas),
            format_version=now.format_version,
            taken=self.taken,
        )
        if not evolved.changes:
            return self, evolved.problems
        # One that is there already is made the current one again.
        schema = next((known for known in base.schemas if known == evolved.schema), evolved.schema)
        metadata = base.model_copy(
            update={
                "schemas": [*base.schemas, *([] if schema in base.schemas else [schema])],
                "current_schema_id": schema.schema_id,
                "last_column_id": max(now.last_column_id, schema.highest_field_id),
            }
        )
        added = {parent: [*self.added.get(parent, ()), *fields] for parent, fields in evolved.added.items()}
        texts = (*self.texts, *evolved.changes)
        return replace(self, metadata=metadata, texts=texts, added={**self.added, **added}), evolved.problems

    def target(self, table: Table) -> Table:
        """Return the table with the change: what files are written for."""
        if not self:
            return table
        return Table(table.name(), self.metadata, table.metadata_location, table.io, table.catalog, table.config)

    def is_made_in(self, metadata: TableMetadata) -> bool:
        """Tell whether a table has the very schema, field ids included, that the change leads to."""
        return metadata.schema() == self.schema

    def fits(self, metadata: TableMetadata) -> bool:
        """Tell whether the change can be made to the table, or has been made already, with the same field ids."""
        if self and self.is_made_in(metadata):
            return True
        ids = [schema.schema_id for schema in metadata.schemas], metadata.last_column_id
        same_ids = ids == ([schema.schema_id for schema in self.base.schemas], self.base.last_column_id)
        return metadata.current_schema_id == self.base.current_schema_id and (not self or same_ids)

    def updates(self) -> tuple[TableUpdate, ...]:
        """Return what a transaction on the base stages."""
        if not self:
            return ()
        if self.schema.schema_id in {schema.schema_id for schema in self.base.schemas}:
            return (_set_current(self.schema.schema_id),)
        # -1 is the one just added, which a catalog may give another id.
        return (AddSchemaUpdate(schema=self.schema), _set_current(-1), *self._name_mapping())

    def summary(self) -> dict[str, str]:
        """Return what the snapshot's summary says of it."""
        return {SUMMARY_KEY: json.dumps(self.texts, ensure_ascii=False)} if self else {}

    def _name_mapping(self) -> Iterable[TableUpdate]:
        # Files without field ids, which others imported, are read by it.
        text = self.base.properties.get(TableProperties.DEFAULT_NAME_MAPPING)
        if text is None or not self.added:
            return ()
        adds = {parent: list(fields) for parent, fields in self.added.items()}
        mapping = update_mapping(parse_mapping_from_json(text), {}, adds)
        return (SetPropertiesUpdate(updates={TableProperties.DEFAULT_NAME_MAPPING: mapping.model_dump_json()}),)


def change_for(design: TableDesign, metadata: TableMetadata, name: str) -> SchemaChange:
    """Return the change that gives the table a place for all that the design has.

    Raises InvalidArgument if the table can't be changed so, or contradicts the design in spite of the change.
    """
    change, problems = SchemaChange.none(metadata), tuple[str, ...]()
    if design.evolution is not SchemaEvolution.NONE:
        known = set(metadata.schema().column_names)
        extra = [f for f in fields_from_arrow(design.metadata, "metadata_columns") if f.name not in known]
        wanted = list(design.schema.fields) if design.schema is not None else _incoming(design, metadata.schema())
        change, problems = change.and_then([*wanted, *extra], design.evolution)
    if design.rescues and not problems:
        rescued = NestedField(1, RESCUED, StringType(), required=False)
        change, problems = change.and_then([rescued], SchemaEvolution.ADD)
    if problems:
        raise InvalidArgument(
            design.argument,
            f"the table {name} can't be changed to have a place for it: {'; '.join(problems)}.",
            "Correct it, or rewrite the table."
            if design.argument != "schema"
            else "Correct the schema, leave the argument out to take the table's own, or rewrite the table.",
        )
    if design.schema is not None:
        check_compatible(design.schema, change.schema, name, design.metadata, design.argument)
    else:
        check_metadata(change.schema, name, design.metadata)
    return change


def whole_schema(design: TableDesign, rows: pa.Schema | None) -> Schema:
    """Return all columns of a new table; without a schema in the design, those of the first rows."""
    payload = design.schema
    if payload is None:
        assert rows is not None, "the decoder was made from a schema or from a first batch"
        payload = to_schema(pa.schema([field for field in rows if field.name not in design.metadata.names]))
    return with_metadata(payload, design.metadata)


def metadata_of(schema: Schema, location: str, properties: Mapping[str, str]) -> TableMetadata:
    """Return the metadata of a plain table that no catalog has."""
    spec, order = UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER
    return new_table_metadata(schema, spec, order, location, dict(properties))


def _incoming(design: TableDesign, held: Schema) -> list[NestedField]:
    columns = None if design.incoming is None else design.incoming(arrow_schema(held))
    if columns is None:
        return []
    wanted = fields_from_arrow(columns, "schema")
    if design.evolution is not SchemaEvolution.WIDEN:
        return wanted
    # What records no longer have must not be required any more.
    names = {one.name for one in wanted}
    left_out = (one for one in held.fields if one.name not in names and not one.name.startswith("_"))
    return [*wanted, *(one.model_copy(update={"required": False}) for one in left_out if one.required)]


def _set_current(schema_id: int) -> TableUpdate:
    return SetCurrentSchemaUpdate.model_validate({"action": "set-current-schema", "schema-id": schema_id})


def changes_in(snapshot: Snapshot | None) -> list[str]:
    """Return what a snapshot's commit changed in the schema, in words; nothing for one that has expired."""
    if snapshot is None or snapshot.summary is None:
        return []
    texts: list[str] = json.loads(snapshot.summary.additional_properties.get(SUMMARY_KEY, "[]"))
    return texts
