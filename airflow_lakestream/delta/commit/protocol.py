"""Which Delta tables can be written here: those that ask of a writer only what is done here."""

from __future__ import annotations

import re

import pyarrow as pa

from airflow_lakestream.core.ports import CannotReplace
from airflow_lakestream.delta.head import Head
from airflow_lakestream.exceptions import LakestreamError, Terminal

# They ask nothing of a writer that appends rows of a given schema, or only what is checked below.
_HARMLESS = frozenset(
    {
        *("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "columnMapping"),
        *("identityColumns", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"),
        *("domainMetadata", "typeWidening", "typeWidening-preview", "allowColumnDefaults"),
    }
)
NTZ_FEATURE = "timestampNtz"
_COLUMN_RULES = ("delta.generationExpression", "delta.identity.start", "delta.invariants")


class UnfitTable(LakestreamError, Terminal):
    """A Delta table with a feature that a writer has to respect, and that is unknown here."""

    def __init__(self, table: str, what: str, remedy: str) -> None:
        super().__init__(f"{table}: {what}. Nothing was written. {remedy}")


def unreadable(table: str, error: str) -> UnfitTable | None:
    """Return the refusal of a table that delta-rs does not read for a feature; None where it fails for anything else.

    :param error: what delta-rs says.
    """
    if "catalog-managed table" in error:
        return UnfitTable(table, "its commits are its catalog's (catalogManaged)", "Land in a table without it.")
    if found := re.search(r"Unsupported: (.*)", error):
        return UnfitTable(table, f"delta-rs can't read it: {found[1]}", "Drop it: ALTER TABLE ... DROP FEATURE.")
    return None


def check_writable(head: Head) -> None:
    """Refuse a table whose rules rows written here would break. Raises UnfitTable."""
    unknown = sorted(head.features - _HARMLESS) if head.writer_version == 7 else []
    if unknown or head.writer_version > 7:
        what = f"table features {', '.join(unknown)}" if unknown else f"writer version {head.writer_version}"
        raise UnfitTable(head.table, f"it has {what}, unknown here", "Drop them: ALTER TABLE ... DROP FEATURE.")
    if head.properties.get("delta.columnMapping.mode", "none") != "none":
        raise UnfitTable(head.table, "it maps columns (delta.columnMapping.mode)", "Land in a table without it.")
    if rules := [key for key in head.properties if key.startswith("delta.constraints.")]:
        raise UnfitTable(head.table, f"it has the constraint {rules[0]}", "Drop it: it would not be checked here.")
    for column in head.fields:
        if rules := [key for key in _COLUMN_RULES if key in column.get("metadata", {})]:
            what = f"column {column['name']!r} has {rules[0]}"
            raise UnfitTable(head.table, what, "Land in a table whose columns are plain ones.")


def check_removable(head: Head) -> None:
    """Refuse a table that rows can't be taken out of here. Raises UnfitTable, CannotReplace."""
    for key, what in (
        ("delta.appendOnly", "it is append-only"),
        ("delta.enableChangeDataFeed", "its change data feed would show rows as changed that only move"),
    ):
        if head.properties.get(key, "").lower() == "true":
            raise UnfitTable(head.table, f"{what} ({key})", f"Unset {key}, or do without replace.")
    check_no_dead_rows(head)


def check_no_dead_rows(head: Head) -> None:
    """Refuse a table with rows that are deleted and still in its files. Raises CannotReplace."""
    assert head.delta is not None, "the table is really there"
    if dead := pa.table(head.delta.deletion_vectors()).num_rows:
        raise CannotReplace(
            f"{head.table} has {dead} files with deletion vectors: their deleted rows would come back. Nothing was "
            "changed. Rewrite them first: REORG TABLE ... APPLY (PURGE), or OPTIMIZE."
        )
