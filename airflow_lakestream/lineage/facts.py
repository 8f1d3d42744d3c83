"""Facts about the landings of a try of a task: plain values, without an open connection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.core.ranges import RangeSet


@dataclass(frozen=True, slots=True)
class LineageColumn:
    """A column of a table; `fields` are the fields of a struct."""

    name: str
    type: str
    fields: tuple[LineageColumn, ...] = ()


@dataclass(frozen=True, slots=True)
class CatalogName:
    """Name of a catalog, without secrets. `namespace` is the namespace of the tables' names."""

    name: str
    kind: str
    namespace: str


@dataclass(frozen=True, slots=True)
class TablePlace:
    """Location, format and columns of a table at the newest commit. A Delta table has no catalog."""

    location: str
    format: str
    columns: tuple[LineageColumn, ...]
    catalog: CatalogName | None = None


@dataclass(slots=True)
class TopicRead:
    """Records read from a topic. `lost` are removed offsets with a receipt in the ledger.

    `counts` are None if only the counts of several topics together are known.
    """

    counts: Counts | None = Counts()
    ranges: RangeSet = field(default_factory=RangeSet)
    lost: RangeSet = field(default_factory=RangeSet)


@dataclass(slots=True)
class TableOutput:
    """Rows written to a table. `size` (bytes) and `files` are None if unknown; `snapshots` are in the order of commits.

    `knows_all` is False if there were more snapshots than are listed.
    """

    rows: int = 0
    size: int | None = None
    files: int | None = None
    snapshots: list[str] = field(default_factory=list)
    place: TablePlace | None = None
    knows_all: bool = True

    def add(self, rows: int, size: int | None, files: int | None, snapshot: str | None) -> None:
        """Count a commit. A commit of unknown size makes the sum unknown."""
        first = not self.snapshots
        self.rows += rows
        self.size = size if first else _sum(self.size, size)
        self.files = files if first else _sum(self.files, files)
        if snapshot is not None:
            self.snapshots.append(snapshot)


@dataclass(slots=True)
class LineageFacts:
    """All facts about the landings of a try.

    :param brokers: the Kafka connection's `bootstrap.servers`.
    :param recovered: snapshots of the run's earlier tries, which emitted the rows.
    :param statement: the SQL that made the rows, if any.
    :param columns: by column of the table, the fields of the topic that it is made of, if certain.
    """

    brokers: str
    consumer_group: str
    topics: dict[str, TopicRead] = field(default_factory=dict)
    tables: dict[str, TableOutput] = field(default_factory=dict)
    landings: list[str] = field(default_factory=list)
    recovered: list[str] = field(default_factory=list)
    statement: str | None = None
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def topic(self, name: str) -> TopicRead:
        """Return the records read from a topic, for adding."""
        return self.topics.setdefault(name, TopicRead())

    def table(self, name: str) -> TableOutput:
        """Return the rows written to a table, for adding."""
        return self.tables.setdefault(name, TableOutput())

    def knows(self, topics: Iterable[str], tables: Mapping[str, TablePlace | None]) -> None:
        """Note the topics and tables of a run, even without a landing.

        :param tables: by table, its place if known; a known place is kept.
        """
        for topic in topics:
            self.topic(topic)
        for table, place in tables.items():
            written = self.table(table)
            written.place = written.place or place


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
