"""What one try of a task has landed. Plain values, for which nothing is opened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.core.ranges import RangeSet


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; `fields` are those of a struct."""

    name: str
    type: str
    fields: tuple[Column, ...] = ()


@dataclass(frozen=True, slots=True)
class CatalogName:
    """What a catalog is called, without any secret. `namespace` is that of its tables' names."""

    name: str
    kind: str
    namespace: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table lies, and what it is at its newest commit. A Delta table has no catalog."""

    location: str
    format: str
    columns: tuple[Column, ...]
    catalog: CatalogName | None = None


@dataclass(slots=True)
class Read:
    """What was read of one topic. `lost` are offsets that retention removed, and the ledger notes.

    `counts` are None where only those of several topics together are known.
    """

    counts: Counts | None = Counts()
    ranges: RangeSet = field(default_factory=RangeSet)
    lost: RangeSet = field(default_factory=RangeSet)


@dataclass(slots=True)
class Written:
    """What was written to one table. `size` and `files` are None where nobody knows; `snapshots` are in their order.

    `knows_all`: these are all snapshots.
    """

    rows: int = 0
    size: int | None = None
    files: int | None = None
    snapshots: list[str] = field(default_factory=list)
    place: Place | None = None
    knows_all: bool = True

    def add(self, rows: int, size: int | None, files: int | None, snapshot: str | None) -> None:
        """Count a commit. One of unknown size makes the sum unknown."""
        first = not self.snapshots
        self.rows += rows
        self.size = size if first else _sum(self.size, size)
        self.files = files if first else _sum(self.files, files)
        if snapshot is not None:
            self.snapshots.append(snapshot)


@dataclass(slots=True)
class Facts:
    """All that one try landed.

    :param brokers: the Kafka connection's `bootstrap.servers`.
    :param recovered: snapshots of the run's earlier tries, whose rows those tries have told.
    :param statement: the SQL that made the rows, if any.
    :param columns: by column of the table, the topic's fields that it is made of, as far as that is certain.
    """

    brokers: str
    consumer_group: str
    topics: dict[str, Read] = field(default_factory=dict)
    tables: dict[str, Written] = field(default_factory=dict)
    landings: list[str] = field(default_factory=list)
    recovered: list[str] = field(default_factory=list)
    statement: str | None = None
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def topic(self, name: str) -> Read:
        """Return what was read of a topic, to be added to."""
        return self.topics.setdefault(name, Read())

    def table(self, name: str) -> Written:
        """Return what was written to a table, to be added to."""
        return self.tables.setdefault(name, Written())

    def knows(self, topics: Iterable[str], tables: Mapping[str, Place | None]) -> None:
        """Note what a run reads and writes even if it found nothing to land."""
        for topic in topics:
            self.topic(topic)
        for table, place in tables.items():
            written = self.table(table)
            written.place = written.place or place


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
