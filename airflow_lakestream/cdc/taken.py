"""The change events of one commit, on their way to a mirror of whatever format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_lakestream.cdc.columns import DELETED, OP, RECORD_KEY, no_rows, version_schema
from airflow_lakestream.required import with_required


@dataclass
class TakenEvents:
    """`rows` as they were written here, and `files` in which executors have written some."""

    rows: list[pa.Table] = field(default_factory=list)
    files: list[Any] = field(default_factory=list)

    def joined(self, read: Callable[[Any], pa.Table], columns: pa.Schema) -> pa.Table:
        """Return all of them; without any these columns, and no row."""
        parts = [*self.rows, *map(read, self.files)] or [no_rows(columns)]
        return pa.concat_tables([_plain(part) for part in parts], promote_options="permissive")

    def forget(self) -> None:
        """Forget them; their files are for the caller to delete."""
        self.rows, self.files = [], []


def columns_of_events(mirror: pa.Schema, *, with_key: bool) -> pa.Schema:
    """Return the columns that executors write for a mirror with these.

    :param with_key: with the records' keys, where nobody names the key.
    """
    own = [one.with_nullable(True) for one in mirror if one.name not in (*version_schema().names, DELETED)]
    key = [pa.field(RECORD_KEY, pa.binary())] if with_key else []
    return pa.schema([*own, pa.field(OP, pa.string()), *version_schema(), *key])


def _plain(rows: pa.Table) -> pa.Table:
    """Return events with the types that all have in common, wherever they were written."""
    fields = [one.with_nullable(True) for one in rows.schema]
    # Arrow casts no struct that is NULL and has NULL in a required field.
    columns = [with_required(rows[one.name], one) for one in fields]
    # A file's fields carry ids of their own, which must not tell two columns of one name apart.
    return pa.Table.from_arrays(columns, schema=pa.schema(fields)).cast(
        pa.schema([one.remove_metadata() for one in fields])
    )
