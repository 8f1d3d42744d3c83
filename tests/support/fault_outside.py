"""What others do in a sequence of the fault harness: producers, retention, and other tools that write the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    Transform,
    TruncateTransform,
)

from airflow_lakestream.run.damaged import ReceiptWriter
from tests.support.fault_log import EPOCH_MS, HOSTILE_MS, READABLE, Entry, Kind, ModelReader, ModelSource, Shape
from tests.support.fault_oracle import GROUP
from tests.support.fault_topics import Topic
from tests.support.lake import compact

if TYPE_CHECKING:
    from tests.support.fault_world import World

PARTITIONINGS: Sequence[tuple[str, Transform[Any, Any]]] = (
    ("n", BucketTransform(2)),
    ("n", TruncateTransform(10)),
    ("s.a", IdentityTransform()),
    ("_kafka_topic", IdentityTransform()),
    ("_kafka_partition", IdentityTransform()),
    ("_kafka_timestamp", DayTransform()),
    ("_kafka_timestamp", HourTransform()),
)
# What Java takes or shrugs off, and PyIceberg, too, which is the other tool of a sequence.
ODD_PROPERTIES = (
    {"write.parquet.compression-codec": "lz4", "write.avro.compression-codec": "zstd"},
    {"write.parquet.row-group-limit": "1", "write.parquet.page-row-limit": "1"},
    {"write.target-file-size-bytes": "1", "write.summary.partition-limit": "0"},
    {"write.metadata.metrics.default": "none", "write.object-storage.enabled": "TRUE"},
)


class Outside:
    """The others, who know nothing of any run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.random
        self._clock = 0

    # The topics

    def produce(self, topic: Topic | None = None) -> None:
        topic = topic or self._world.topic()
        partition = self._random.randrange(len(topic.log.partitions))
        kinds = self._random.choices([Kind.DATA, Kind.TOMBSTONE], [6, 1], k=self._random.randint(1, 6))
        topic.append(partition, self._entries(topic, kinds))
        self._world.tell(f"produce {len(kinds)} to {topic.log.name}[{partition}], which ends at {topic.end(partition)}")

    def produce_in_transaction(self) -> None:
        """Begin a transaction, or end the one that is open."""
        topic = self._world.topic()
        if topic.transaction is not None:
            commits = self._random.random() < 0.5
            self._world.tell(f"{'commit' if commits else 'abort'} the transaction of {topic.log.name}")
            topic.end_transaction(commits, self.now())
            return
        partition = self._random.randrange(len(topic.log.partitions))
        topic.begin_transaction(partition, self._entries(topic, [Kind.OPEN] * self._random.randint(1, 3)))
        self._world.tell(f"begin a transaction in {topic.log.name}[{partition}]")
        if self._random.random() < 0.6:
            self._end_transaction(topic)

    def _end_transaction(self, topic: Topic) -> None:
        commits = self._random.random() < 0.5
        self._world.tell(f"{'commit' if commits else 'abort'} it")
        topic.end_transaction(commits, self.now())

    def _entries(self, topic: Topic, kinds: Sequence[Kind]) -> list[Entry]:
        shapes = self._random.choices(list(Shape), [8, 2, 2], k=len(kinds))
        return [
            Entry(kind, self._stamp(), None if kind is Kind.TOMBSTONE else topic.number(), shape)
            for kind, shape in zip(kinds, shapes, strict=True)
        ]

    def now(self) -> int:
        return EPOCH_MS + self._clock

    def _stamp(self) -> int:
        self._clock += self._random.randint(2, 15)
        if self._random.random() < 0.1:
            return self._random.choice(HOSTILE_MS)
        # Late and early ones among those in order.
        return EPOCH_MS + max(0, self._clock + self._random.choice([0, 0, 0, 0, -30, -120, 60]))

    def add_partition(self) -> None:
        topic = self._world.topic()
        if len(topic.log.partitions) < 4:
            topic.add_partition()
            self._world.tell(f"{topic.log.name} gets partition {len(topic.log.partitions) - 1}")

    def trim(self) -> None:
        topic = self._world.topic()
        partition = self._random.randrange(len(topic.log.partitions))
        log = topic.log.partitions[partition]
        if log.low < log.end:
            topic.trim(partition, self._random.randint(log.low + 1, log.end))
            self._world.tell(f"retention: {topic.log.name}[{partition}] begins at {log.low}")

    def trim_midway(self, topic: Topic) -> None:
        for partition, log in enumerate(topic.log.partitions):
            if log.low < log.end:
                topic.trim(partition, (log.low + log.end + 1) // 2)
                self._world.tell(f"retention: {topic.log.name}[{partition}] begins at {log.low}")

    def compact_log(self) -> None:
        topic = self._world.topic()
        partition = self._random.randrange(len(topic.log.partitions))
        log = topic.log.partitions[partition]
        there = [o for o in range(log.low, log.end) if log.entries[o].kind in READABLE]
        if there and topic.can_compact:
            gone = self._random.sample(there, self._random.randint(1, len(there)))
            topic.compact(partition, gone)
            self._world.tell(f"compaction of the log takes {sorted(gone)} of {topic.log.name}[{partition}]")

    def damage(self) -> None:
        """Damage a batch: some offsets that are no part of another one. Without a table there are no receipts."""
        topic = self._world.topic()
        partition = self._random.randrange(len(topic.log.partitions))
        log = topic.log.partitions[partition]
        if log.low < log.end and topic.can_damage and self._world.table() is not None:
            first = self._random.randrange(log.low, log.end)
            end = self._random.randint(first + 1, min(log.end, first + 4))
            if log.damage_at(first, end) is None:
                topic.damage(partition, first, end, is_refused := self._random.random() < 0.5)
                told = ", which the broker refuses" if is_refused else ""
                self._world.tell(f"damage: {topic.log.name}[{partition}] [{first},{end}){told}")

    # The table

    def forget_damaged(self, topic: Topic | None = None) -> None:
        """Write receipts for what nobody can read of a topic."""
        topic = topic or self._world.topic()
        if self._world.table() is not None:
            forgetting = ReceiptWriter(self._world.catalog, self._world.name, GROUP, {}, "the model")
            receipt = forgetting.write_receipt(ModelSource(topic.log), ModelReader(topic.log, 4))
            self._world.tell(f"receipts for damage of {topic.log.name}: {receipt and receipt.ranges}")

    def evolve(self) -> None:
        """Change how the table is partitioned from here on."""
        table = self._world.table()
        if table is None:
            return
        column, transform = self._random.choice(PARTITIONINGS)
        name = f"{column}_{transform}".translate(str.maketrans("[]", "__"))
        is_there = name in {one.name for one in table.spec().fields}
        with table.update_spec() as update:
            if is_there:
                update.remove_field(name)
            else:
                update.add_field(column, transform, name)
        self._world.tell(f"the table is {'no longer ' if is_there else ''}partitioned by {transform} of {column}")

    def roll_back(self) -> None:
        """Set main to one of the snapshots that are there, an ancestor or not."""
        table = self._world.table()
        if table is None:
            return
        self._world.oracle.check_books()
        ids = sorted((s.snapshot_id for s in table.snapshots()), key=lambda s: table.snapshot_by_id(s).sequence_number)
        at = self._random.randrange(len(ids))
        table.manage_snapshots().set_current_snapshot(snapshot_id=ids[at]).commit()
        self._world.rollbacks += 1
        self._world.tell(f"roll back to snapshot {at + 1} of {len(ids)}")

    def expire(self) -> None:
        """Let all snapshots expire but main's head, or some of them."""
        table = self._world.table()
        if table is None:
            return
        kept = {table.metadata.current_snapshot_id, *(ref.snapshot_id for ref in table.metadata.refs.values())}
        ids = [s.snapshot_id for s in table.snapshots() if s.snapshot_id not in kept]
        doomed = [s for s in ids if self._random.random() < self._random.choice([0.5, 1])]
        if doomed:
            table.maintenance.expire_snapshots().by_ids(doomed).commit()
            self._world.tell(f"{len(doomed)} of {len(ids) + 1} snapshots expire")
            self._world.leftovers = True

    def compact(self) -> None:
        table = self._world.table()
        if table is not None and table.current_snapshot() is not None:
            compact(table)
            self._world.tell("compact the table")
            self._world.leftovers = True

    def append_foreign(self) -> None:
        """Append rows of another writer, of no topic or with coordinates that no record has."""
        table = self._world.table()
        if table is not None and _can_write(table):
            name = self._world.topic().log.name
            odd = [(None, None, None), (name, 0, -1), (name, -1, 0), (name, None, 0), (name, 0, None), ("zz", 0, 0)]
            places = self._random.choices(odd, [6, 1, 1, 1, 1, 1], k=self._random.randint(1, 3))
            rows = [
                {"n": -1, "s": {"a": 0}, "_kafka_topic": topic, "_kafka_partition": partition, "_kafka_offset": offset}
                for topic, partition, offset in places
            ]
            table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
            self._world.foreign[table.metadata.current_snapshot_id] = len(rows)
            self._world.tell(f"foreign rows of {places}")


def _can_write(table: Table) -> bool:
    """Return whether PyIceberg can write a table: not if two partition fields have one column, as Java's may."""
    columns = [field.source_id for field in table.spec().fields]
    return len(columns) == len(set(columns))
