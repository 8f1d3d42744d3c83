"""Protocol of Delta tables: commit files, refusal of features unsupported here, and the protocol of new versions.

A version of a table is written once, or not at all: the compare-and-set of Delta's own protocol, and the only one here.
delta-rs writes commit files in the same way, but its public calls can't change a table property in the commit of rows,
and rebase an append without a check.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import obstore
import pyarrow as pa
from obstore.exceptions import AlreadyExistsError

from airflow_lakestream.core.ports import CannotReplace
from airflow_lakestream.delta.columns import uses_ntz
from airflow_lakestream.delta.head import DeltaTableHead
from airflow_lakestream.exceptions import LakestreamError, Terminal

Action = Mapping[str, Any]


def put_commit(store: Any, version: int, actions: Sequence[Action]) -> bool:
    """Write a version; return False if the version exists. After an error the version may be written, now or later."""
    lines = "\n".join(json.dumps(action, separators=(",", ":"), ensure_ascii=False) for action in actions)
    try:
        obstore.put(store, commit_path(version), lines.encode(), mode="create")
    except AlreadyExistsError:
        return False
    return True


def read_commit(store: Any, version: int) -> list[Action] | None:
    """Return the actions of a version, or None if the file is missing."""
    try:
        data = bytes(obstore.get(store, commit_path(version)).bytes())
    except FileNotFoundError:
        return None
    return [json.loads(line) for line in data.decode().split("\n") if line.strip()]


def info_of(actions: Iterable[Action]) -> Mapping[str, Any]:
    """Return the `commitInfo` of a commit, or an empty mapping."""
    return next((action["commitInfo"] for action in actions if "commitInfo" in action), {})


def commit_path(version: int) -> str:
    """Return the path of a version's file below the table's folder."""
    return f"_delta_log/{version:020}.json"


# Features without duties for a writer that appends rows of a given schema, or with duties checked below.
_HARMLESS = frozenset(
    {
        *("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "columnMapping"),
        *("identityColumns", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"),
        *("domainMetadata", "typeWidening", "typeWidening-preview", "allowColumnDefaults"),
    }
)
NTZ_FEATURE = "timestampNtz"
# Features by protocol version, in addition to the features of lower versions: a table with features names all.
# https://github.com/delta-io/delta/blob/master/PROTOCOL.md#table-features
_OF_WRITERS = {
    2: ("appendOnly", "invariants"),
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
    5: ("columnMapping",),
    6: ("identityColumns",),
}
_OF_READERS = {2: ("columnMapping",)}
_WITH_READER_FEATURES, _WITH_WRITER_FEATURES = 3, 7
# Most characters of delta-rs' text in an error.
_LONGEST = 500
_COLUMN_RULES = ("delta.generationExpression", "delta.identity.start", "delta.invariants")


class UnfitTable(LakestreamError, Terminal):
    """Delta table with a writer feature unsupported here."""

    def __init__(self, table: str, problem: str, remedy: str) -> None:
        super().__init__(f"{table}: {problem}. Nothing was written. {remedy}")


def unreadable(table: str, error: str) -> UnfitTable:
    """Return the error for a table that delta-rs can't read.

    :param error: the error of delta-rs.
    """
    if "catalog-managed table" in error:
        return UnfitTable(table, "its commits are its catalog's (catalogManaged)", "Land in a table without it.")
    if "does not have the required 'timestampNtz' feature" in error:
        remedy = "Add it: ALTER TABLE ... SET TBLPROPERTIES ('delta.feature.timestampNtz' = 'supported')."
        return UnfitTable(table, f"it has columns of timestamp_ntz without the table feature {NTZ_FEATURE}", remedy)
    if match := re.search(r"Unsupported: (.*)", error):
        return UnfitTable(table, f"delta-rs can't read it: {match[1]}", "Drop it: ALTER TABLE ... DROP FEATURE.")
    # A stack trace may follow.
    text = " ".join(re.split(r"\n\s*(?:\d+: |stack backtrace)", error)[0].split())[:_LONGEST]
    return UnfitTable(table, f"delta-rs can't read it: {text}", "Correct what is named; or land in another table.")


def check_writable(head: DeltaTableHead) -> None:
    """Refuse a table with rules that a plain append would break. Raises UnfitTable."""
    # Only version 7 lists features. The features of lower versions are harmless, or are refused below.
    unknown = sorted(head.features - _HARMLESS) if head.writer_version == 7 else []
    if unknown or head.writer_version > 7:
        problem = f"table features {', '.join(unknown)}" if unknown else f"writer version {head.writer_version}"
        raise UnfitTable(head.table, f"it has {problem}, unknown here", "Drop them: ALTER TABLE ... DROP FEATURE.")
    if head.properties.get("delta.columnMapping.mode", "none") != "none":
        raise UnfitTable(head.table, "it maps columns (delta.columnMapping.mode)", "Land in a table without it.")
    if rules := [key for key in head.properties if key.startswith("delta.constraints.")]:
        raise UnfitTable(head.table, f"it has the constraint {rules[0]}", "Drop it: it would not be checked here.")
    for column in head.fields:
        if rules := [key for key in _COLUMN_RULES if key in column.get("metadata", {})]:
            problem = f"column {column['name']!r} has {rules[0]}"
            raise UnfitTable(head.table, problem, "Land in a table whose columns are plain ones.")


def protocol_of(head: DeltaTableHead | None, fields: Sequence[Mapping[str, Any]]) -> list[Action]:
    """Return the protocol action of a version with these columns; empty if the protocol stays.

    Readers refuse a table with a `timestamp_ntz` column without the feature, so the feature is added with the column.
    """
    # A new table begins with the lowest versions.
    current = DeltaTableHead("", -1, "", pa.schema([]), (), ()) if head is None else head
    reader, writer = current.reader_version, current.writer_version
    readers, writers = current.reader_features, current.writer_features
    if uses_ntz(fields) and not (NTZ_FEATURE in readers and NTZ_FEATURE in writers):
        readers |= {NTZ_FEATURE, *_named(_OF_READERS, reader)}
        writers |= {NTZ_FEATURE, *_named(_OF_WRITERS, writer)}
        reader, writer = _WITH_READER_FEATURES, _WITH_WRITER_FEATURES
    elif head is not None:
        return []
    versions: dict[str, object] = {"minReaderVersion": reader, "minWriterVersion": writer}
    if reader == _WITH_READER_FEATURES:
        versions["readerFeatures"] = sorted(readers)
    if writer == _WITH_WRITER_FEATURES:
        versions["writerFeatures"] = sorted(writers)
    return [{"protocol": versions}]


def _named(features: Mapping[int, Sequence[str]], version: int) -> Iterator[str]:
    """Yield the features of a protocol version that lists no features itself."""
    return (name for needed, names in features.items() if needed <= version <= max(features) for name in names)


def check_removable(head: DeltaTableHead) -> None:
    """Refuse a table if rows must not be removed here. Raises UnfitTable, and CannotReplace for deletion vectors."""
    for key, feature in (
        ("delta.appendOnly", "it is append-only"),
        ("delta.enableChangeDataFeed", "its change data feed would show rows as changed that only move"),
    ):
        if head.properties.get(key, "").lower() == "true":
            raise UnfitTable(head.table, f"{feature} ({key})", f"Unset {key}, or do without replace.")
    check_no_dead_rows(head)


def check_no_dead_rows(head: DeltaTableHead) -> None:
    """Refuse a table with deletion vectors: deleted rows are still in the files. Raises CannotReplace."""
    assert head.delta is not None, "the head was loaded by delta-rs"
    if dead := pa.table(head.delta.deletion_vectors()).num_rows:
        raise CannotReplace(
            f"{head.table} has {dead} files with deletion vectors: their deleted rows would come back. Nothing was "
            "changed. Rewrite them first: REORG TABLE ... APPLY (PURGE), or OPTIMIZE."
        )
