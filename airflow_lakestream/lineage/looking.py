"""Facts of a run in the worker or of a driver's stream, by looks at a table after a commit: place, columns, files."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_lakestream.core.landing.job import CommittedLanding
from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.core.policies import TableFormat
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.core.routing import is_pattern
from airflow_lakestream.driver.progress import DriverProgress
from airflow_lakestream.lakes import lake_of
from airflow_lakestream.lineage.facts import CatalogName, LineageColumn, LineageFacts, TablePlace, of_catalog

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
    """Place of a table, and the files of some commits. Sizes and numbers are None if unknown.

    :param size: bytes of the files.
    :param files: the number of files.
    :param rows: by table the number of rows, for commits of a home table, which has the rows of a fan-out's tables.
    """

    place: TablePlace
    size: int | None = None
    files: int | None = None
    rows: Mapping[str, int] = field(default_factory=dict)


def look(lake: Any, table: str, snapshots: Sequence[str] = ()) -> CommitFacts | None:
    """Return the facts of a table in the present state, and of the given commits.

    Returns None for a missing table, or after an error, which is logged: the rows are landed in any case.

    :param lake: a catalog, or the store of Delta tables.
    :param snapshots: the commits whose files are counted, and whose rows by table are added up. If a commit has
        expired, nothing is counted.
    """
    try:
        facts: CommitFacts | None = lake_of(table).part("facts")(lake, table, snapshots)
        return facts
    except Exception as e:  # noqa: BLE001  # the commit is done; a missing fact is not a reason to fail the run
        log.warning("%s could not be looked at for its lineage: %s", table, e)
        return None


def look_at_iceberg(catalog: Any, name: str, snapshots: Sequence[str]) -> CommitFacts:
    """Return the facts of an Iceberg table and of some commits."""
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
    existing = [table.metadata.snapshot_by_id(int(snapshot_id)) for snapshot_id in snapshots]
    summaries = [ledger_store.summary_of(snapshot) for snapshot in existing if snapshot is not None]
    if not snapshots or len(summaries) < len(snapshots):
        # No commit to count, or an expired snapshot.
        return CommitFacts(place)
    rows: Counter[str] = Counter()
    for summary in summaries:
        rows.update(json.loads(summary.get(ROWS, "{}")))
    return CommitFacts(place, _sum(summaries, _SIZE), _sum(summaries, *_FILES), rows)


def look_at_delta(storage: DeltaStorage, table: str, snapshots: Sequence[str]) -> CommitFacts | None:
    """Return the facts of a Delta table and of some commits, or None for a missing table."""
    from airflow_lakestream.delta.protocol import read_commit
    from airflow_lakestream.delta.storage import location

    head = storage.open(table)
    if head is None:
        return None
    columns = tuple(LineageColumn(column.name, str(column.type)) for column in head.schema)
    place = TablePlace(location(table), TableFormat.DELTA.value, columns)
    store = storage.store(table)
    commits = [read_commit(store, int(version)) for version in snapshots]
    if not commits or None in commits:
        return CommitFacts(place)
    sizes = [int(action["add"].get("size", 0)) for actions in commits for action in actions or () if "add" in action]
    return CommitFacts(place, sum(sizes), len(sizes))


def _sum(summaries: Iterable[Mapping[str, str]], *names: str) -> int:
    """Return the sum of these entries of summaries."""
    return sum(int(summary.get(name, 0)) for summary in summaries for name in names)


def _columns(schema: Schema) -> tuple[LineageColumn, ...]:
    return tuple(_column(field.name, field.field_type) for field in schema.fields)


def _column(name: str, kind: IcebergType) -> LineageColumn:
    from pyiceberg.types import StructType

    if isinstance(kind, StructType):
        return LineageColumn(name, "struct", tuple(_column(field.name, field.field_type) for field in kind.fields))
    return LineageColumn(name, str(kind))


def add_batches(
    facts: LineageFacts, progress: DriverProgress, before: Mapping[str, Any], names: Mapping[str, Any]
) -> None:
    """Add a driver's landings since `before` to the facts.

    The counts of a topic are known only if the batches read a single topic, and the snapshots of a table only if they
    wrote a single table.

    :param before: the sums at an earlier time, in the form of `DriverProgress.sums`.
    :param names: the stream's `topic` and `table`, if known, in case the driver reports no ranges or no rows by table.
    """
    since = progress.since(before)
    ranges: dict[str, list[OffsetRange]] = {}
    for topic, partition, begin, end in since["landed"]:
        ranges.setdefault(topic, []).append(OffsetRange(topic, partition, begin, end))
    if not ranges and names.get("topic") and not is_pattern(str(names["topic"])):
        facts.topic(str(names["topic"]))
    for topic, landed in ranges.items():
        read = facts.topic(topic)
        read.ranges = RangeSet(landed)
        read.counts = _counts(since) if len(ranges) == 1 else None
    for table, rows in _rows(since, names).items():
        facts.table(table).rows = rows
    if len(facts.tables) == 1:
        _add_snapshots(facts, progress, since["batches"])


def look_at_tables(facts: LineageFacts, lake: Any) -> None:
    """Add place, size and files to the facts' tables, by a look at each table.

    Tables chosen by records have no snapshots here, and so neither size nor files.
    """
    for table, written in facts.tables.items():
        commit = look(lake, table, written.snapshots)
        if commit is None:
            continue
        written.place = commit.place
        if written.knows_all:
            written.size, written.files = commit.size, commit.files


def _add_snapshots(facts: LineageFacts, progress: DriverProgress, batches: int) -> None:
    """Add the snapshots of the last batches to the only table."""
    [written] = facts.tables.values()
    last_batches = progress.last[-batches:] if batches else ()
    with_rows = (batch for batch in last_batches if batch.rows_in)
    written.snapshots = list(dict.fromkeys(snapshot for batch in with_rows for snapshot in batch.snapshot_ids))
    # The progress keeps only the last batches.
    written.knows_all = len(last_batches) == batches


def _counts(since: Mapping[str, Any]) -> Counts:
    """Return the counts of a driver's records, by its sums since a time."""
    not_written = {name: since[name] for name in ("rejected", "skipped", "filtered")}
    # A function may make more rows than records came, or fewer.
    written = max(0, since["rows_in"] - sum(not_written.values()))
    return Counts(read=written + sum(not_written.values()), written=written, **not_written)


def _rows(since: Mapping[str, Any], names: Mapping[str, Any]) -> Mapping[str, int]:
    """Return the number of rows by table; empty if the tables are unknown."""
    if since["tables"]:
        return {str(table): int(rows) for table, rows in since["tables"].items()}
    table = str(names.get("table") or "")
    # A table chosen by records or topics is not known before it has rows.
    return {table: since["rows_out"]} if table and "{" not in table else {}


class FactsKeeper:
    """Collector of the facts of each commit of a try, without commits of earlier tries, which emitted their own facts.

    :param lake: the catalog or store of the run's tables.
    """

    def __init__(self, facts: LineageFacts, lake: Any) -> None:
        self.facts = facts
        self._lake = lake
        self._committed: set[str] = set()

    def __call__(self, committed: CommittedLanding) -> None:
        """Add the facts of a commit: offsets and counts of topics, rows and files of tables."""
        landing, snapshot = committed.landing, str(committed.snapshot_id)
        self.facts.landings.append(landing.landing_id)
        self._committed.add(snapshot)
        for identity, entry in landing.topics.items():
            read = self.facts.topic(identity.topic)
            read.counts = (read.counts or Counts()) + entry.counts
            read.ranges |= entry.landed | entry.replaced
            read.lost |= entry.lost
        commit = look(self._lake, committed.table, [snapshot])
        # The commit of a home table has the rows of the tables that records chose.
        if commit is not None and commit.rows:
            self._add_targets(commit)
            return
        written = self.facts.table(committed.table)
        if commit is None:
            written.add(landing.rows, None, None, snapshot)
            return
        written.add(landing.rows, commit.size, commit.files, snapshot)
        written.place = commit.place

    def ended(self, topics: Iterable[str], tables: Mapping[str, int], snapshots: Iterable[str]) -> None:
        """Note topics, tables and snapshots of the whole run, also of a run without new records.

        :param tables: the run's rows by table; only the names are used here.
        :param snapshots: the snapshots of all tries; those not committed by this try become `recovered`.
        """
        for topic in topics:
            self.facts.topic(topic)
        for name in sorted(tables.keys() - self.facts.tables.keys()):
            self.facts.table(name).place = _place(look(self._lake, name))
        self.facts.recovered = [snapshot for snapshot in snapshots if snapshot not in self._committed]

    def _add_targets(self, home: CommitFacts) -> None:
        """Add the rows of tables chosen by records: only the home table's commit has the rows of each table."""
        for name, rows in home.rows.items():
            written = self.facts.table(name)
            written.add(rows, None, None, None)
            written.place = written.place or _place(look(self._lake, name))


def _place(commit: CommitFacts | None) -> TablePlace | None:
    return None if commit is None else commit.place
