"""Which Delta tables can be written here: those whose features ask nothing of a writer that is not done."""

from __future__ import annotations

from airflow_lakestream.delta.head import Head
from airflow_lakestream.exceptions import LakestreamError, Terminal

# They ask nothing of who appends rows of a given schema, or only what is looked at below.
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
    """A Delta table with a feature that a writer has to keep to, and this one does not know."""

    def __init__(self, table: str, what: str, remedy: str) -> None:
        super().__init__(f"{table}: {what}. Nothing was written. {remedy}")


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
    """Refuse a table that rows can't be taken out of here. Raises UnfitTable."""
    for key, what in (
        ("delta.appendOnly", "it is append-only"),
        ("delta.enableChangeDataFeed", "its change data feed would show rows as changed that only move"),
    ):
        if head.properties.get(key, "").lower() == "true":
            raise UnfitTable(head.table, f"{what} ({key})", f"Unset {key}, or do without replace.")
