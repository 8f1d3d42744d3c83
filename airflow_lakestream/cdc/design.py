"""What a user asks of a mirror."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from pyiceberg.schema import Schema

from airflow_lakestream.cdc.columns import OF_EVENTS, RECORD_KEY, VERSION, mirror_schema
from airflow_lakestream.core.mirrors import MIRROR
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.design import TableDesign
from airflow_lakestream.iceberg.schema import to_schema


@dataclass(frozen=True)
class MirrorDesign:
    """`table` is the design of the mirror; `key` are the columns of its key, None to take them from the records' keys.

    :param soft_delete: whether deleted rows stay, with `DELETED` true.
    """

    table: TableDesign
    key: tuple[str, ...] | None = None
    soft_delete: bool = False

    def of_table(self, name: str, properties: Mapping[str, str]) -> MirrorDesign:
        """Return the design with the key that an existing mirror has. Raises InvalidArgument where they contradict."""
        note = properties.get(MIRROR)
        if note is None:
            problem = f"{name} is there, and no mirror."
            raise InvalidArgument("table", problem, "Choose a table that is not there yet, or drop it.")
        held = json.loads(note)
        key, soft_delete = tuple(held["key"]), bool(held["soft_delete"])
        if self.key is not None and self.key != key:
            raise InvalidArgument("key", f"{name} is mirrored by {', '.join(key)}, not by {', '.join(self.key)}.")
        if soft_delete != self.soft_delete:
            raise InvalidArgument("soft_delete", f"{name} was made with {soft_delete}.", "A mirror keeps what it has.")
        return self.with_key(key)

    def of_rows(self, rows: pa.Table) -> MirrorDesign:
        """Return the design of a new mirror for these events. Raises InvalidArgument where nothing tells the key."""
        key = self.key or key_of(rows)
        beside = (*VERSION, *OF_EVENTS)
        schema = self.table.schema
        if schema is None:
            columns = [field for field in rows.schema if field.name not in beside]
            schema = to_schema(pa.schema(columns))
        missing = [name for name in key if name not in schema.column_names]
        if missing:
            raise InvalidArgument(
                "key", f"there is no column {', '.join(missing)} in {', '.join(schema.column_names)}."
            )
        return replace(self.with_key(key), table=replace(self._noted(key), schema=_with_required(schema, key)))

    def with_key(self, key: tuple[str, ...]) -> MirrorDesign:
        """Return the design for this key."""
        return replace(self, key=key, table=self._noted(key))

    def _noted(self, key: tuple[str, ...]) -> TableDesign:
        note = json.dumps({"key": list(key), "soft_delete": self.soft_delete})
        beside = mirror_schema(soft_delete=self.soft_delete)
        return replace(self.table, metadata=beside, notes={**self.table.notes, MIRROR: note})


def key_of(rows: pa.Table) -> tuple[str, ...]:
    """Return the names of the columns that the records' keys have, as JSON. Raises InvalidArgument."""
    keys = rows[RECORD_KEY].drop_null() if RECORD_KEY in rows.column_names else []
    try:
        found = json.loads(keys[0].as_py())
        if set(found) == {"schema", "payload"}:
            found = found["payload"]
        names = tuple(found)
    except (IndexError, ValueError, TypeError, KeyError):
        names = ()
    if not names or not isinstance(found, dict):
        problem = "the records' keys do not tell it in JSON."
        raise InvalidArgument("key", problem, 'Name the columns of the primary key, such as ["id"].')
    return names


def _with_required(schema: Schema, key: tuple[str, ...]) -> Schema:
    fields = [field.model_copy(update={"required": True}) if field.name in key else field for field in schema.fields]
    ids = [field.field_id for field in fields if field.name in key]
    return Schema(*fields, identifier_field_ids=ids)
