"""Looks at a table after a commit: location, columns, and files of the commit."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_lakestream.core.policies import TableFormat
from airflow_lakestream.lakes import lake_of
from airflow_lakestream.lineage.facts import CatalogName, LineageColumn, TablePlace
from airflow_lakestream.lineage.names import of_catalog

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType

    from airflow_lakestream.delta.storage import DeltaStorage

log = logging.getLogger(__name__)

# Keys of an Iceberg snapshot's summary.
_SIZE = "added-files-size"
_FILES = ("added-data-files", "added-delete-files")


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """A table, and the files of some commits; `rows` are by table, if a home table has the rows of other tables."""

    place: TablePlace
    size: int | None = None
    files: int | None = None
    rows: Mapping[str, int] = field(default_factory=dict)


def look(lake: Any, table: str, snapshots: Sequence[str] = ()) -> CommitFacts | None:
    """Return the facts of a table in the present state, and of the given commits.

    Returns None for a missing table, or after an error, which is logged: the rows are landed in any case.

    :param lake: a catalog, or the store of Delta tables.
    :param snapshots: the commits whose files are counted, and whose rows by table are added up. If one of them has
        expired, nothing is counted.
    """
    try:
        facts: CommitFacts | None = lake_of(table).part("facts")(lake, table, snapshots)
        return facts
    except Exception as e:  # noqa: BLE001  # the commit is done; a missing fact is not a reason to fail the run
        log.warning("%s could not be looked at for its lineage: %s", table, e)
        return None


def look_at_iceberg(catalog: Any, name: str, snapshots: Sequence[str]) -> CommitFacts:
    """Look at commits of an Iceberg table."""
    from airflow_lakestream.iceberg import ledger_store
    from airflow_lakestream.iceberg.fan_out.books import ROWS

    table = catalog.load_table(name)
    properties = {key: catalog.properties.get(key) for key in ("uri", "warehouse")}
    kind = str(catalog.properties.get("type") or type(catalog).__name__.removesuffix("Catalog")).lower()
    place = TablePlace(
        location=table.location(),
        format=TableFormat.ICEBERG.value,
        columns=_columns(table.schema()),
        catalog=CatalogName(catalog.name, kind, of_catalog(catalog.name, kind, properties)),
    )
    found = [table.metadata.snapshot_by_id(int(one)) for one in snapshots]
    summaries = [ledger_store.summary_of(one) for one in found if one is not None]
    if not snapshots or len(summaries) < len(snapshots):
        # No commit to count, or an expired snapshot.
        return CommitFacts(place)
    rows: Counter[str] = Counter()
    for summary in summaries:
        rows.update(json.loads(summary.get(ROWS, "{}")))
    return CommitFacts(place, _sum(summaries, _SIZE), _sum(summaries, *_FILES), rows)


def look_at_delta(storage: DeltaStorage, table: str, snapshots: Sequence[str]) -> CommitFacts | None:
    """Look at commits of a Delta table."""
    from airflow_lakestream.delta.commit.log import read_commit
    from airflow_lakestream.delta.storage import location

    head = storage.open(table)
    if head is None:
        return None
    columns = tuple(LineageColumn(one.name, str(one.type)) for one in head.schema)
    place = TablePlace(location(table), TableFormat.DELTA.value, columns)
    store = storage.store(table)
    commits = [read_commit(store, int(version)) for version in snapshots]
    if not commits or None in commits:
        return CommitFacts(place)
    sizes = [int(one["add"].get("size", 0)) for actions in commits for one in actions or () if "add" in one]
    return CommitFacts(place, sum(sizes), len(sizes))


def _sum(summaries: Iterable[Mapping[str, str]], *names: str) -> int:
    return sum(int(summary.get(name, 0)) for summary in summaries for name in names)


def _columns(schema: Schema) -> tuple[LineageColumn, ...]:
    return tuple(_column(one.name, one.field_type) for one in schema.fields)


def _column(name: str, kind: IcebergType) -> LineageColumn:
    from pyiceberg.types import StructType

    if isinstance(kind, StructType):
        return LineageColumn(name, "struct", tuple(_column(one.name, one.field_type) for one in kind.fields))
    return LineageColumn(name, str(kind))
