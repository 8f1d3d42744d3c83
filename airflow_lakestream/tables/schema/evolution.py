"""Evolution of a table's schema: columns are added and types widened, without any further change.

Pure: new columns and their field ids are decided here; the commit of a landing makes the change.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import cast

from pyiceberg import types as iceberg
from pyiceberg.schema import Schema, assign_fresh_schema_ids

from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.tables.schema.columns import TAKEN, fits
from airflow_lakestream.tables.schema.ddl import MAX_PRECISION
from airflow_lakestream.tables.schema.types import type_text

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
    held: Schema,
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
    path,
    no change is made at all.

    :param held: the table's schema.
    :param policy: WIDEN also allows wider types, and required columns to become optional.
    :param last_column_id: of the table; new fields get the ids after it.
    :param schema_id: the id of a changed schema.
    :param taken: names that no new column of the table may have, in lower case.
    """
    ids = itertools.count(last_column_id + 1)
    work = _EvolutionWalk(policy, ids, format_version, set(held.identifier_field_ids), taken)
    struct = work.struct(held.as_struct(), tuple(wanted), "", ROOT)
    if not work.changes:
        return EvolutionResult(held, problems=tuple(work.problems))
    try:
        schema = Schema(*struct.fields, schema_id=schema_id, identifier_field_ids=held.identifier_field_ids)
    except ValueError as error:
        # A name with a dot equals the path of another column.
        return EvolutionResult(held, problems=(*work.problems, f"two columns would have one path: {error}"))
    return EvolutionResult(schema, tuple(work.changes), tuple(work.problems), work.added)


class _EvolutionWalk:
    """Parallel walk through both schemas."""

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
        self, held: iceberg.StructType, wanted: tuple[iceberg.NestedField, ...], path: str, parent: int
    ) -> iceberg.StructType:
        """Return the struct with a place for all wanted fields; `path` ends in a dot, or is empty."""
        by_name = {item.name: item for item in wanted}
        known = {item.name for item in held.fields}
        taken = {item.name.lower(): item.name for item in held.fields}
        fields = [
            self._field(item, by_name[item.name], path + item.name) if item.name in by_name else item
            for item in held.fields
        ]
        for item in wanted:
            if item.name in known:
                continue
            twin = taken.setdefault(item.name.lower(), item.name)
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
        if (version := _least_version(wanted.field_type)) > self._format_version:
            self.problems.append(
                f"{path + wanted.name!r} ({type_text(wanted.field_type)}) needs format version {version} of Iceberg, "
                f"and the table has {self._format_version}"
            )
            return None
        new_id = next(self._ids)
        kind = cast(
            iceberg.IcebergType, assign_fresh_schema_ids(_all_optional(wanted.field_type), lambda: next(self._ids))
        )
        self.changes.append(f"add column {path}{wanted.name} {type_text(kind)}")
        return iceberg.NestedField(new_id, wanted.name, kind, required=False, doc=wanted.doc)

    def _field(self, held: iceberg.NestedField, wanted: iceberg.NestedField, path: str) -> iceberg.NestedField:
        required = held.required
        if held.required and wanted.optional:
            required = self._keeps_required(held, path)
        kind = self._type(held, wanted.field_type, path)
        # An unchanged type is returned as the same object.
        if required == held.required and kind is held.field_type:
            return held
        return held.model_copy(update={"required": required, "field_type": kind})

    def _keeps_required(self, held: iceberg.NestedField, path: str) -> bool:
        if held.field_id in self._identifier_ids:
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
        held = column.field_type
        match held, wanted:
            case iceberg.StructType(), iceberg.StructType():
                struct = self.struct(held, wanted.fields, f"{path}.", column.field_id)
                return held if struct == held else struct
            case iceberg.ListType(), iceberg.ListType():
                element = self._field(held.element_field, wanted.element_field, f"{path}.element")
                if element is held.element_field:
                    return held
                return iceberg.ListType(held.element_id, element.field_type, element_required=element.required)
            case iceberg.MapType(), iceberg.MapType():
                return self._map(held, wanted, path)
            case _:
                return self._primitive(held, wanted, path)

    def _map(self, held: iceberg.MapType, wanted: iceberg.MapType, path: str) -> iceberg.IcebergType:
        if not fits(wanted.key_type, held.key_type):
            self.problems.append(
                f"{path + '.key'!r} is {type_text(held.key_type)} in the table and {type_text(wanted.key_type)} is "
                "given: Iceberg changes no keys of maps"
            )
        value = self._field(held.value_field, wanted.value_field, f"{path}.value")
        if value is held.value_field:
            return held
        return iceberg.MapType(
            held.key_id, held.key_type, held.value_id, value.field_type, value_required=value.required
        )

    def _primitive(self, held: iceberg.IcebergType, wanted: iceberg.IcebergType, path: str) -> iceberg.IcebergType:
        if fits(wanted, held):
            return held
        wide = next((kind for kind in _wider(held) if fits(wanted, kind)), None)
        sides = f"{path!r} is {type_text(held)} in the table and {type_text(wanted)} is given"
        if wide is None:
            self.problems.append(f"{sides}: {_incompatibility(held, wanted)}")
            return held
        if not self._widens:
            self.problems.append(f'{sides}: schema_evolution="widen" would make it {type_text(wide)}')
            return held
        self.changes.append(f"widen column {path} from {type_text(held)} to {type_text(wide)}")
        return wide


def _wider(held: iceberg.IcebergType) -> Iterator[iceberg.IcebergType]:
    """Yield the wider types for a column; each type holds all values of the type before."""
    match held:
        case iceberg.IntegerType():
            yield iceberg.LongType()
        case iceberg.FloatType():
            yield iceberg.DoubleType()
        case iceberg.DecimalType():
            # The scale stays: files contain the digits alone, and the scale sets the point.
            for precision in range(held.precision + 1, MAX_PRECISION + 1):
                yield iceberg.DecimalType(precision, held.scale)
        case _:
            return


def _incompatibility(held: iceberg.IcebergType, wanted: iceberg.IcebergType) -> str:
    match held, wanted:
        case iceberg.DateType(), (iceberg.TimestampType() | iceberg.TimestamptzType()):
            return (
                "Iceberg makes timestamps of dates from format version 3 on, and PyIceberg can't read such a column yet"
            )
        case iceberg.DecimalType(), iceberg.DecimalType():
            return "Iceberg widens a decimal's precision, up to 38, and never its scale"
        case _ if fits(held, wanted):
            return "Iceberg does not widen the one to the other"
        case _:
            return "neither holds all values of the other"


def _all_optional(kind: iceberg.IcebergType) -> iceberg.IcebergType:
    """Return the type with all fields optional: PyIceberg can't read lists of structs without a required field."""
    match kind:
        case iceberg.StructType():
            fields = (
                item.model_copy(update={"required": False, "field_type": _all_optional(item.field_type)})
                for item in kind.fields
            )
            return iceberg.StructType(*fields)
        case iceberg.ListType():
            return iceberg.ListType(kind.element_id, _all_optional(kind.element_type), element_required=False)
        case iceberg.MapType():
            value = _all_optional(kind.value_type)
            return iceberg.MapType(
                kind.key_id, _all_optional(kind.key_type), kind.value_id, value, value_required=False
            )
        case _:
            return kind


def _least_version(kind: iceberg.IcebergType) -> int:
    match kind:
        case iceberg.StructType():
            inside = [item.field_type for item in kind.fields]
        case iceberg.ListType():
            inside = [kind.element_type]
        case iceberg.MapType():
            inside = [kind.key_type, kind.value_type]
        case _:
            inside = []
    return max([int(kind.minimum_format_version()), *map(_least_version, inside)])
