"""Change of a table's schema within the commit of the next rows; files are written for the change in advance.

Files are written with the field ids that the change will assign. So the change is made to exactly the schema for
which it was planned, or not at all; the commit guard checks it.
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

# Next to the landing's own keys in the snapshot's summary: the schema changes of the commit, as JSON.
SUMMARY_KEY = "lakestream.schema-changes"


@dataclass(frozen=True)
class SchemaChange:
    """A table's metadata before and after a change of the schema; the same without a change.

    :param base: the metadata before the change.
    :param metadata: the metadata after the change.
    :param texts: the changes in words.
    :param added: the new fields by the id of their parent field.
    :param taken: names that no new column may have.
    """

    base: TableMetadata
    metadata: TableMetadata
    texts: tuple[str, ...] = ()
    added: Mapping[int, Sequence[NestedField]] = field(default_factory=dict)
    taken: Collection[str] = ICEBERG_COLUMNS

    @classmethod
    def none(cls, metadata: TableMetadata) -> SchemaChange:
        """Return an empty change."""
        return cls(metadata, metadata)

    @classmethod
    def nowhere(cls, schema: Schema) -> SchemaChange:
        """Return an empty change for a table of another format, as if Iceberg had the table without a catalog.

        So the rules for changes of columns serve Delta, too. No name is reserved.
        """
        return replace(cls.none(metadata_of(schema, "", {"format-version": "2"})), taken=())

    def __bool__(self) -> bool:
        return bool(self.texts)

    @property
    def schema(self) -> Schema:
        """The schema with the change."""
        return self.metadata.schema()

    def and_then(self, wanted: Iterable[NestedField], policy: SchemaEvolution) -> tuple[SchemaChange, tuple[str, ...]]:
        """Return the change extended by the wanted columns, and the problems of impossible columns, in words."""
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
        # A known schema becomes the current one again.
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
        """Return the table with the changed metadata, for writing files; the catalog still has the old metadata."""
        if not self:
            return table
        return Table(table.name(), self.metadata, table.metadata_location, table.io, table.catalog, table.config)

    def is_made_in(self, metadata: TableMetadata) -> bool:
        """Return whether a table has exactly the change's schema, field ids included."""
        return metadata.schema() == self.schema

    def fits(self, metadata: TableMetadata) -> bool:
        """Return whether the change can be made to the table, or is made already, with the same field ids."""
        if self and self.is_made_in(metadata):
            return True
        ids = [schema.schema_id for schema in metadata.schemas], metadata.last_column_id
        same_ids = ids == ([schema.schema_id for schema in self.base.schemas], self.base.last_column_id)
        return metadata.current_schema_id == self.base.current_schema_id and (not self or same_ids)

    def updates(self) -> tuple[TableUpdate, ...]:
        """Return the updates for a transaction on the base."""
        if not self:
            return ()
        if self.schema.schema_id in {schema.schema_id for schema in self.base.schemas}:
            return (_set_current(self.schema.schema_id),)
        # -1 means the schema just added, to which a catalog may give another id.
        return (AddSchemaUpdate(schema=self.schema), _set_current(-1), *self._name_mapping())

    def summary(self) -> dict[str, str]:
        """Return the changes in words as an entry of the snapshot's summary; empty without a change."""
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
    """Return the change of the table for all columns of the design.

    Raises InvalidArgument if the change is impossible, or the table contradicts the design in spite of it.
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
    """Return all columns of a new table, payload and metadata columns. Raises InvalidArgument for reserved names.

    :param rows: the columns of the first rows, which give the payload if the design has no schema; else unused.
    """
    payload = design.schema
    if payload is None:
        assert rows is not None, "the decoder was made from a schema or from a first batch"
        payload = to_schema(pa.schema([field for field in rows if field.name not in design.metadata.names]))
    return with_metadata(payload, design.metadata)


def metadata_of(schema: Schema, location: str, properties: Mapping[str, str]) -> TableMetadata:
    """Return the metadata of a plain table without a catalog."""
    spec, order = UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER
    return new_table_metadata(schema, spec, order, location, dict(properties))


def _incoming(design: TableDesign, held: Schema) -> list[NestedField]:
    columns = None if design.incoming is None else design.incoming(arrow_schema(held))
    if columns is None:
        return []
    wanted = fields_from_arrow(columns, "schema")
    if design.evolution is not SchemaEvolution.WIDEN:
        return wanted
    # Columns that records no longer have must become optional.
    names = {one.name for one in wanted}
    left_out = (one for one in held.fields if one.name not in names and not one.name.startswith("_"))
    return [*wanted, *(one.model_copy(update={"required": False}) for one in left_out if one.required)]


def _set_current(schema_id: int) -> TableUpdate:
    return SetCurrentSchemaUpdate.model_validate({"action": "set-current-schema", "schema-id": schema_id})


def changes_in(snapshot: Snapshot | None) -> list[str]:
    """Return the schema changes of a snapshot's commit, in words; empty for an expired snapshot."""
    if snapshot is None or snapshot.summary is None:
        return []
    texts: list[str] = json.loads(snapshot.summary.additional_properties.get(SUMMARY_KEY, "[]"))
    return texts
