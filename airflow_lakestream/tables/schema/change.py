"""Change of a table's schema: columns added and types widened, within the commit of the next rows.

Files are written in advance, with the field ids that the change will assign. So the change is made to exactly the
schema for which it was planned, or not at all; the commit guard checks it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import pyarrow as pa
from pyiceberg import types as iceberg
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema, assign_fresh_schema_ids
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
    TAKEN,
    check_compatible,
    check_metadata,
    fits,
    to_schema,
    wider_types,
    with_metadata,
)
from airflow_lakestream.tables.schema.types import (
    all_optional,
    arrow_schema,
    fields_from_arrow,
    least_version,
    type_text,
)

# Parent of a top-level column.
ROOT = -1


@dataclass(frozen=True, slots=True)
class EvolutionResult:
    """Evolved schema of a table, with the changes in words, and the impossible changes with the reasons.

    `added` are the new fields by the id of their parent field, ROOT for columns.
    """

    schema: Schema
    changes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    added: dict[int, list[iceberg.NestedField]] = field(default_factory=dict)


def evolve(
    current: Schema,
    wanted: Iterable[iceberg.NestedField],
    policy: SchemaEvolution,
    *,
    last_column_id: int,
    schema_id: int,
    format_version: int,
    taken: Collection[str] = (),
) -> EvolutionResult:
    """Return the schema with a place for each value of the wanted columns and of the table's columns.

    Columns that only the table has stay as they are, and so do columns that hold all wanted values already. A new
    column and all fields in it are optional, even if required in `wanted`: existing rows have no value for it.
    An impossible change is left out, and described in `problems` of the result. If two columns would have the same
    path, no change is made at all.

    :param current: the table's schema.
    :param policy: WIDEN also allows wider types, and required columns to become optional.
    :param last_column_id: the table's greatest field id; new fields get greater ids.
    :param schema_id: the id of a changed schema.
    :param taken: names that no new column of the table may have, in lower case.
    """
    ids = itertools.count(last_column_id + 1)
    work = _EvolutionWalk(policy, ids, format_version, set(current.identifier_field_ids), taken)
    struct = work.struct(current.as_struct(), tuple(wanted), "", ROOT)
    if not work.changes:
        return EvolutionResult(current, problems=tuple(work.problems))
    try:
        schema = Schema(*struct.fields, schema_id=schema_id, identifier_field_ids=current.identifier_field_ids)
    except ValueError as error:
        # A name with a dot equals the path of another column.
        return EvolutionResult(current, problems=(*work.problems, f"two columns would have one path: {error}"))
    return EvolutionResult(schema, tuple(work.changes), tuple(work.problems), work.added)


class _EvolutionWalk:
    """Walk through a table's schema and the wanted columns side by side: collects changes, problems and new fields."""

    def __init__(
        self,
        policy: SchemaEvolution,
        ids: Iterator[int],
        format_version: int,
        identifier_ids: set[int],
        taken: Collection[str],
    ) -> None:
        self._widens = policy is SchemaEvolution.WIDEN
        self._ids = ids
        self._format_version = format_version
        self._identifier_ids = identifier_ids
        self._taken = taken
        self.changes: list[str] = []
        self.problems: list[str] = []
        self.added: dict[int, list[iceberg.NestedField]] = {}

    def struct(
        self, current: iceberg.StructType, wanted: tuple[iceberg.NestedField, ...], path: str, parent: int
    ) -> iceberg.StructType:
        """Return the struct with a place for all wanted fields; `path` ends in a dot, or is empty."""
        by_name = {item.name: item for item in wanted}
        current_names = {item.name for item in current.fields}
        name_by_lower_case = {item.name.lower(): item.name for item in current.fields}
        fields = [
            self._field(item, by_name[item.name], path + item.name) if item.name in by_name else item
            for item in current.fields
        ]
        for item in wanted:
            if item.name in current_names:
                continue
            twin = name_by_lower_case.setdefault(item.name.lower(), item.name)
            if twin != item.name:
                self.problems.append(
                    f"{path + item.name!r} can't be added next to {path + twin!r}: some engines take them for one"
                )
            elif parent == ROOT and item.name.lower() in self._taken:
                self.problems.append(f"{item.name!r}: {TAKEN}; rename_columns gives the column another one")
            elif (new := self._new(item, path)) is not None:
                fields.append(new)
                self.added.setdefault(parent, []).append(new)
        return iceberg.StructType(*fields)

    def _new(self, wanted: iceberg.NestedField, path: str) -> iceberg.NestedField | None:
        """Return a new field of the table, or None with a problem noted; `path` is of the parent."""
        if (version := least_version(wanted.field_type)) > self._format_version:
            self.problems.append(
                f"{path + wanted.name!r} ({type_text(wanted.field_type)}) needs format version {version} of Iceberg, "
                f"and the table has {self._format_version}"
            )
            return None
        new_id = next(self._ids)
        kind = cast(
            iceberg.IcebergType, assign_fresh_schema_ids(all_optional(wanted.field_type), lambda: next(self._ids))
        )
        self.changes.append(f"add column {path}{wanted.name} {type_text(kind)}")
        return iceberg.NestedField(new_id, wanted.name, kind, required=False, doc=wanted.doc)

    def _field(self, current: iceberg.NestedField, wanted: iceberg.NestedField, path: str) -> iceberg.NestedField:
        """Return a field of the table, changed to hold the wanted values if possible; `path` is the field's."""
        required = current.required
        if current.required and wanted.optional:
            required = self._keeps_required(current, path)
        kind = self._type(current, wanted.field_type, path)
        # An unchanged type is returned as the same object.
        if required == current.required and kind is current.field_type:
            return current
        return current.model_copy(update={"required": required, "field_type": kind})

    def _keeps_required(self, current: iceberg.NestedField, path: str) -> bool:
        """Return False for a required field that becomes optional, and note the change; True with the problem noted."""
        if current.field_id in self._identifier_ids:
            self.problems.append(f"{path!r} can't become optional: it identifies the table's rows")
        elif not self._widens:
            self.problems.append(
                f'{path!r} is given as optional and is required in the table: schema_evolution="widen" would change it'
            )
        else:
            self.changes.append(f"make column {path} optional")
            return False
        return True

    def _type(self, column: iceberg.NestedField, wanted: iceberg.IcebergType, path: str) -> iceberg.IcebergType:
        """Return a column's type, changed for values of the wanted type if possible; the same object if unchanged."""
        current = column.field_type
        match current, wanted:
            case iceberg.StructType(), iceberg.StructType():
                struct = self.struct(current, wanted.fields, f"{path}.", column.field_id)
                return current if struct == current else struct
            case iceberg.ListType(), iceberg.ListType():
                element = self._field(current.element_field, wanted.element_field, f"{path}.element")
                if element is current.element_field:
                    return current
                return iceberg.ListType(current.element_id, element.field_type, element_required=element.required)
            case iceberg.MapType(), iceberg.MapType():
                return self._map(current, wanted, path)
            case _:
                return self._primitive(current, wanted, path)

    def _map(self, current: iceberg.MapType, wanted: iceberg.MapType, path: str) -> iceberg.IcebergType:
        if not fits(wanted.key_type, current.key_type):
            self.problems.append(
                f"{path + '.key'!r} is {type_text(current.key_type)} in the table and {type_text(wanted.key_type)} is "
                "given: Iceberg changes no keys of maps"
            )
        value = self._field(current.value_field, wanted.value_field, f"{path}.value")
        if value is current.value_field:
            return current
        return iceberg.MapType(
            current.key_id, current.key_type, current.value_id, value.field_type, value_required=value.required
        )

    def _primitive(self, current: iceberg.IcebergType, wanted: iceberg.IcebergType, path: str) -> iceberg.IcebergType:
        if fits(wanted, current):
            return current
        wide = next((kind for kind in wider_types(current) if fits(wanted, kind)), None)
        sides = f"{path!r} is {type_text(current)} in the table and {type_text(wanted)} is given"
        if wide is None:
            self.problems.append(f"{sides}: {_incompatibility(current, wanted)}")
            return current
        if not self._widens:
            self.problems.append(f'{sides}: schema_evolution="widen" would make it {type_text(wide)}')
            return current
        self.changes.append(f"widen column {path} from {type_text(current)} to {type_text(wide)}")
        return wide


def _incompatibility(current: iceberg.IcebergType, wanted: iceberg.IcebergType) -> str:
    """Return the reason why a column's current type can't be widened to the wanted type."""
    match current, wanted:
        case iceberg.DateType(), (iceberg.TimestampType() | iceberg.TimestamptzType()):
            return (
                "Iceberg makes timestamps of dates from format version 3 on, and PyIceberg can't read such a column yet"
            )
        case iceberg.DecimalType(), iceberg.DecimalType():
            return "Iceberg widens a decimal's precision, up to 38, and never its scale"
        case _ if fits(current, wanted):
            return "Iceberg does not widen the one to the other"
        case _:
            return "neither holds all values of the other"


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
    def without_catalog(cls, schema: Schema) -> SchemaChange:
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
        base, planned = self.base, self.metadata
        evolved = evolve(
            planned.schema(),
            wanted,
            policy,
            last_column_id=planned.last_column_id,
            schema_id=1 + max(schema.schema_id for schema in base.schemas),
            format_version=planned.format_version,
            taken=self.taken,
        )
        if not evolved.changes:
            return self, evolved.problems
        # A known schema becomes the current one again.
        schema = next((earlier for earlier in base.schemas if earlier == evolved.schema), evolved.schema)
        metadata = base.model_copy(
            update={
                "schemas": [*base.schemas, *([] if schema in base.schemas else [schema])],
                "current_schema_id": schema.schema_id,
                "last_column_id": max(planned.last_column_id, schema.highest_field_id),
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
        # Files without field ids, imported by other tools, are read by the mapping of names.
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
        names = set(metadata.schema().column_names)
        extra = [f for f in fields_from_arrow(design.metadata, "metadata_columns") if f.name not in names]
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


def _incoming(design: TableDesign, current: Schema) -> list[NestedField]:
    """Return the columns wanted for the records read so far; empty if no columns are known."""
    columns = None if design.incoming is None else design.incoming(arrow_schema(current))
    if columns is None:
        return []
    wanted = fields_from_arrow(columns, "schema")
    if design.evolution is not SchemaEvolution.WIDEN:
        return wanted
    # Columns that records no longer have must become optional.
    names = {column.name for column in wanted}
    left_out = (column for column in current.fields if column.name not in names and not column.name.startswith("_"))
    return [*wanted, *(column.model_copy(update={"required": False}) for column in left_out if column.required)]


def _set_current(schema_id: int) -> TableUpdate:
    return SetCurrentSchemaUpdate.model_validate({"action": "set-current-schema", "schema-id": schema_id})


def changes_in(snapshot: Snapshot | None) -> list[str]:
    """Return the schema changes of a snapshot's commit, in words; empty for an expired snapshot."""
    if snapshot is None or snapshot.summary is None:
        return []
    texts: list[str] = json.loads(snapshot.summary.additional_properties.get(SUMMARY_KEY, "[]"))
    return texts
