"""What the ledger costs: landings through the sink, and bare PyIceberg appends on a twin of the table, in turn.

The landings are real, Kafka is left out: rows come from memory. The tables' long past is made up, see `seeding`. The
twin is a copy of the table's metadata without any trace of the ledger, so that what a ledger adds to the metadata is
on our side of the scales. Both sides open the table, write one file of the same rows and commit it.

Also run by itself: `python -m dev.bench.commits`.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.serializers import FromInputFile, ToOutputFile
from pyiceberg.table import Table

from airflow_lakestream.core.ledger import Counts, Landing, TopicEntry, TopicIdentity
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.iceberg.commit import retention
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.schema.columns import to_schema
from dev.bench.figures import Figure
from dev.bench.seeding import seed_files, seed_snapshots

GROUP = "bench"
IDENTITY = TopicIdentity("clicks", "AAAAAAAAQACAAAAAAAAAAQ", "cluster-0123456789")
METADATA = pa.schema(
    [
        ("_kafka_topic", pa.string()),
        ("_kafka_partition", pa.int32()),
        ("_kafka_offset", pa.int64()),
        ("_kafka_timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
PAYLOAD = pa.schema([("id", pa.int64()), ("name", pa.string())])
ROWS = 100
COUNTS = (10, 100, 1000)
PAIRS = 9
# A landing each minute: what is there after the first day, and after a year.
DAY, YEAR = 1440, 525_600
# More landings than lie between two expiries or two merges of manifests, so that each side has its share of both.
STEADY = 120
# About what fits into the 8 MB at which Iceberg stops merging manifests.
FILES_PER_MANIFEST = 40_000


class Bookkeeper:
    """Lands made-up records into one table: the same few rows each time, and honest ranges of offsets."""

    def __init__(
        self, folder: Path, *, partitions: int = 4, table: str = "bench.landed", properties: Mapping[str, str] = {}
    ) -> None:
        self.catalog = SqlCatalog(
            "iceberg_default", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse"
        )
        self.name = table
        self.rows = rows()
        self._design = TableDesign(METADATA, schema=to_schema(PAYLOAD), properties=properties)
        self._partitions = partitions
        self._landed = 0

    def land(self) -> None:
        """Make one landing as a run does: look at the table, write, commit."""
        sink = IcebergSink(self.catalog, self.name, GROUP, self._design)
        sink.load(f"run-{self._landed}")
        sink.write(self.rows, IDENTITY)
        sink.commit(self._next())

    def table(self) -> Table:
        """Load the table anew."""
        return self.catalog.load_table(self.name)

    def seed(self, snapshots: int, files: int = 0) -> None:
        """Land once, then make up a past: as if there had been `files` landings, of which `snapshots` are kept."""
        self.land()
        if files:
            seed_files(self.table(), files, FILES_PER_MANIFEST)
        age = max(0, files - snapshots)
        self._landed += age
        landings = [self._next() for _ in range(snapshots - 1)]
        seed_snapshots(self.table(), self.catalog, GROUP, landings, age)

    def metadata_bytes(self) -> int:
        """Return the size of the table's metadata file."""
        return Path(self.table().metadata_location.removeprefix("file://")).stat().st_size

    def _next(self) -> Landing:
        # Partitions grow at different speeds and from different offsets, as real ones do.
        ranges = [
            OffsetRange(IDENTITY.topic, p, at := 1_000_000 * (p + 1) + self._landed * (width := 1000 + p), at + width)
            for p in range(self._partitions)
        ]
        self._landed += 1
        landed = RangeSet(ranges)
        origin = {p: 1_000_000 * (p + 1) for p in range(self._partitions)} if self._landed == 1 else {}
        entry = TopicEntry(
            landed=landed,
            counts=Counts(landed.width, landed.width),
            origin=origin,
            epochs=dict.fromkeys(range(self._partitions), 7),
        )
        return Landing(f"{self._landed:032x}", f"scheduled__2026-01-01T00:{self._landed:06}", {IDENTITY: entry})


class Twin:
    """A copy of a table as it stands, without its ledger, to which rows are appended by PyIceberg alone."""

    def __init__(self, original: Table, catalog: SqlCatalog, name: str) -> None:
        metadata = FromInputFile.table_metadata(original.io.new_input(original.metadata_location))
        for snapshot in metadata.snapshots:
            summary = snapshot.summary.additional_properties if snapshot.summary else {}
            for key in [key for key in summary if key.startswith("lakestream.")]:
                del summary[key]
        kept = {key: value for key, value in metadata.properties.items() if not key.startswith("lakestream.")}
        location = f"{original.location()}/metadata/00000-{name}.metadata.json"
        ToOutputFile.table_metadata(
            metadata.model_copy(update={"properties": kept, "metadata_log": []}), original.io.new_output(location)
        )
        self.name = f"bench.{name}"
        self.catalog = catalog
        catalog.register_table(self.name, location)

    def append(self, rows: pa.Table) -> None:
        """Append as a script without us would."""
        self.catalog.load_table(self.name).append(rows)


def rows() -> pa.Table:
    """Make the rows of one landing."""
    numbers = pa.array(range(ROWS), pa.int64())
    columns = {
        "_kafka_topic": pa.repeat(pa.scalar(IDENTITY.topic), ROWS),
        "_kafka_partition": pa.repeat(pa.scalar(0, pa.int32()), ROWS),
        "_kafka_offset": numbers,
        "_kafka_timestamp": numbers.cast(pa.timestamp("us", tz="UTC")),
        "id": numbers,
        "name": numbers.cast(pa.string()),
    }
    return pa.table(columns, schema=pa.schema([*METADATA, *PAYLOAD]))


def measure(folder: Path, say: Callable[[str], None]) -> Iterator[Figure]:
    """Measure all of it; yield the figures."""
    folder.mkdir(parents=True, exist_ok=True)
    for count in COUNTS:
        yield from measure_commit(folder, count)
        say(f"commits at {count} snapshots measured")
    wide = Bookkeeper(folder, partitions=200, table="bench.wide", properties=ALL)
    wide.seed(COUNTS[-1] - 1)
    wide.land()
    size = wide.metadata_bytes() / 1e6
    yield Figure("200 partitions", "metadata after 1,000 landings", size, "MB", "< 3", size < 3)
    yield from measure_year(folder)
    say("commits after a year measured")


ALL = {retention.KEEP: "all"}


def measure_commit(folder: Path, count: int) -> Iterator[Figure]:
    """Land and append in turn on two tables of `count` snapshots."""
    keeper = Bookkeeper(folder, table=f"bench.landed{count}", properties=ALL)
    keeper.seed(count - PAIRS // 2)
    twin = Twin(keeper.table(), keeper.catalog, f"twin{count}")
    landings, appends = in_turn(keeper.land, lambda: twin.append(keeper.rows), PAIRS)
    landing, append = statistics.median(landings), statistics.median(appends)
    case, ratio = f"commit at {count} snapshots", landing / append
    yield Figure(case, "landing", landing * 1000, "ms")
    yield Figure(case, "bare append", append * 1000, "ms")
    yield Figure(case, "landing / bare append", ratio, "ratio", "<= 1.3", ratio <= 1.3)


def measure_year(folder: Path) -> Iterator[Figure]:
    """Land in turn on a table at the end of its first day and on one at the end of its first year."""
    keep = 1000
    day = Bookkeeper(folder, table="bench.day")
    day.seed(keep, DAY)
    year = Bookkeeper(folder, table="bench.year")
    year.seed(keep, YEAR)
    first, last = in_turn(day.land, year.land, STEADY)
    ratio, typical = sum(last) / sum(first), statistics.median(last) / statistics.median(first)
    growth = year.metadata_bytes() / day.metadata_bytes()
    case = "a landing each minute"
    yield Figure(case, "snapshots after a year", len(year.table().snapshots()), "snapshots")
    yield Figure(case, "median commit, year / day", typical, "ratio", "<= 1.1", typical <= 1.1)
    yield Figure(case, "mean commit, year / day", ratio, "ratio", "<= 1.3", ratio <= 1.3)
    yield Figure(case, "slowest commit after a year", max(last) * 1000, "ms")
    yield Figure(case, "metadata, year / day", growth, "ratio", "<= 1.1", growth <= 1.1)


def in_turn(one: Callable[[], None], other: Callable[[], None], times: int) -> tuple[list[float], list[float]]:
    """Time two things one after the other, so that both see the same machine."""
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(times):
        for side, act in zip(took, (one, other), strict=True):
            began = time.perf_counter()
            act()
            side.append(time.perf_counter() - began)
    return took


def main() -> int:
    """Measure and print; 1 when a bound does not hold."""
    with tempfile.TemporaryDirectory() as folder:
        figures = []
        for figure in measure(Path(folder), lambda text: None):
            print(figure, flush=True)
            figures.append(figure)
    return 1 if any(f.holds is False for f in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
