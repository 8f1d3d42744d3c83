"""Time to live of rows, on real files of both formats: exactly the old rows go, and receipts keep the ledger."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.cli.app import FAILED, run
from airflow_lakestream.core import codec
from airflow_lakestream.core.ledger import Counts, Ledger, TopicEntry
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.delta import old_rows as delta_old_rows
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.upkeep import old_rows
from airflow_lakestream.iceberg.upkeep.compaction import compact
from airflow_lakestream.lakes import lake_of
from airflow_lakestream.operators.maintain import LakestreamMaintainOperator
from airflow_lakestream.tables import retention
from airflow_lakestream.tables.coordinates import COORDINATES
from airflow_lakestream.tables.retention import (
    RemovalReport,
    RemovedPositions,
    RetentionRefused,
    RowRetention,
    within_bound,
)
from tests.support.delete_files import delete_equal, delete_positions
from tests.support.given_records import FORMATS, GROUP, TOPIC, GivenLake
from tests.support.lake import assert_files_are_whole, assert_totals_are_right
from tests.unit.maintenance.test_compaction import RULE

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
Row = dict[str, Any]
SEEDS = int(os.environ.get("LAKESTREAM_SEEDS", "4"))


class OldRowsLake(GivenLake):
    """Lake of one table whose records are kept, to land further ones and to compare."""

    @property
    def records(self) -> list[Row]:
        return self.__dict__.setdefault("_records", [])

    def add(self, rows: Sequence[Row], **config: Any) -> None:
        """Land further records in one commit."""
        self.records.extend(rows)
        given = {"schema": "n bigint, at timestamp, plain timestamp_ntz, day date"} | config
        self.land([json.dumps(row).encode() for row in self.records], **given)

    def remove(self, rule: RowRetention, **arguments: Any) -> RemovalReport:
        arguments = {"now": NOW, **arguments}
        if self.table_format == "iceberg":
            return old_rows.remove_old_rows(self.catalog(), self.name, rule, **arguments)
        storage = DeltaStorage()
        head = storage.open(self.name)
        assert head is not None
        return delta_old_rows.remove_old_rows(storage, head, rule, **arguments)

    def ledger(self) -> Ledger:
        sink: Any = self.job([]).sink
        ledger: Ledger = sink.load("look").ledger
        return ledger

    def numbers(self) -> list[int]:
        return sorted(row["n"] for row in self.rows())

    def rows(self, name: str = "") -> list[Row]:
        """Return the rows in the columns that the files have, and those of partitions."""
        if self.table_format == "iceberg":
            return super().rows(name)
        found = pa.table(DeltaTable(name or self.name).to_pyarrow_table()).to_pylist()
        return sorted(found, key=lambda row: row["_kafka_offset"])

    def assert_clean(self) -> None:
        audit: Any = lake_of(self.name).part("audit")(table=self.name, consumer_group=GROUP)
        lake: Any = self.catalog() if self.table_format == "iceberg" else DeltaStorage()
        result = audit.run(lake)
        assert result.verdict is AuditVerdict.CLEAN, result
        entry = self.ledger().entry(TOPIC)
        assert entry.landed == RangeSet.of(TOPIC.topic, 0, 0, len(self.records))
        offsets = RangeSet.of(TOPIC.topic, 0, 0, 0)
        for row in self.rows():
            offsets |= RangeSet.of(TOPIC.topic, 0, row["_kafka_offset"], row["_kafka_offset"] + 1)
        # Each offset has a row or a receipt; without a replace between, not both.
        assert entry.landed - offsets == entry.forgotten
        assert entry.counts.written == len(self.rows())


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> OldRowsLake:
    return OldRowsLake(tmp_path, request.param)


def row(n: int, age: float | None, **more: Any) -> Row:
    """Return a record of so many days of age."""
    at = None if age is None else NOW - age * DAY
    plain = None if at is None else at.replace(tzinfo=None).isoformat()
    return {"n": n, "at": at and at.isoformat(), "plain": plain, "day": at and at.date().isoformat(), **more}


def rule(text: str) -> RowRetention:
    return RowRetention.parse(text)


def is_old(one: Row, column: str, keep: int) -> bool:
    value = one[column]
    if value is None:
        return False
    before = NOW - keep * DAY
    if column == "day":
        return bool(value < before.date())
    return bool(value.replace(tzinfo=value.tzinfo or UTC) < before)


def files_of(lake: OldRowsLake) -> Iterator[list[int]]:
    for path in lake.files():
        offsets = pq.ParquetFile(path).read(["_kafka_offset"])["_kafka_offset"].to_pylist()
        yield [lake.records[offset]["n"] for offset in offsets]


PARTITIONS: Sequence[Sequence[str]] = ((), ("day(at)",), ("hour(plain)", "bucket(3, n)"), ("month(day)",), ("day",))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_exactly_the_rows_of_the_rule_go_from_random_tables(lake: OldRowsLake, seed: int) -> None:
    rng, ages = random.Random(seed), (0.0, 3.0, 9.5, 10.0, 10.5, 30.0, 400.0, None)
    exact, column, keep = rng.random() < 0.5, rng.choice(["at", "plain", "day"]), rng.choice([1, 10, 40])
    terms = rng.choice(PARTITIONS) if lake.table_format == "iceberg" else rng.choice([(), ("day",), ("n",)])
    config: Row = {"partition_by": list(terms)} if terms else {}
    if rng.random() < 0.3 and lake.table_format == "iceberg":
        # Without statistics only partitions prove ages.
        known = {f"write.metadata.metrics.column.{name}": "full" for name in COORDINATES}
        config["table_properties"] = {"write.metadata.metrics.default": "none", **known}
    given = rule(f"{keep} days of {column}{', exactly' if exact else ''}")
    for _ in range(4):
        for _ in range(rng.randint(1, 4)):
            some = rng.sample(ages, rng.randint(1, 3))
            start = len(lake.records)
            lake.add([row(start + n, rng.choice(some)) for n in range(rng.randint(1, 9))], **config)
        by_n = {one["n"]: one for one in lake.rows()}
        old = {n for n, one in by_n.items() if is_old(one, column, keep)}
        whole = {n for numbers in files_of(lake) if {*numbers} <= old for n in numbers}
        done = lake.remove(given)
        left = {*lake.numbers()}
        assert {*by_n} - left <= old
        if exact:
            assert left == {*by_n} - old
        elif "table_properties" not in config:
            assert left == {*by_n} - whole
        assert done.rows == len(by_n) - len(left)
        assert done.is_whole
        lake.assert_clean()
        # By need: a second run finds nothing.
        assert lake.remove(given).rows == 0
    if lake.table_format == "iceberg" and lake.iceberg().current_snapshot() is not None:
        assert_files_are_whole(lake.iceberg())
        assert_totals_are_right(lake.iceberg())


def test_old_files_go_without_being_opened(lake: OldRowsLake) -> None:
    lake.add([row(n, 100) for n in range(5)])
    lake.add([row(n, 1) for n in range(5, 8)])
    old = [path for path in lake.files() if 0 in pq.ParquetFile(path).read(["n"])["n"].to_pylist()]
    for path in old:
        size = Path(path).stat().st_size
        Path(path).write_bytes(b"\0" * size)
    done = lake.remove(rule("90 days of at"))
    assert (done.rows, done.files, done.rewritten, done.left) == (5, 1, 0, 0)
    assert lake.numbers() == [5, 6, 7]
    lake.assert_clean()


def test_a_file_with_newer_rows_stays_by_default_and_null_stays_in_any_case(lake: OldRowsLake) -> None:
    lake.add([row(0, 100), row(1, 1), row(2, None)])
    done = lake.remove(rule("90 days of at"))
    assert (done.rows, done.files, done.left) == (0, 0, 1)
    done = lake.remove(rule("90 days of at, exactly"))
    assert (done.rows, done.files, done.rewritten) == (1, 0, 1)
    assert lake.numbers() == [1, 2]
    lake.assert_clean()


def test_a_replace_brings_no_removed_row_back(lake: OldRowsLake) -> None:
    lake.add([row(n, 100) for n in range(4)])
    lake.add([row(n, 1) for n in range(4, 8)])
    lake.remove(rule("90 days of at"))
    given = [json.dumps(one | {"n": one["n"] + 100}).encode() for one in lake.records]
    lake.land(given, mode="ranges", ranges=[[0, 0, 8]], replace=True)
    assert lake.numbers() == [104, 105, 106, 107]
    lake.assert_clean()


def test_late_old_records_land_and_go_by_the_next_run(lake: OldRowsLake) -> None:
    lake.add([row(n, 100) for n in range(4)])
    lake.remove(rule("90 days of at"))
    lake.add([row(4, 200), row(5, 200)])
    assert lake.numbers() == [4, 5]
    lake.assert_clean()
    assert lake.remove(rule("90 days of at")).rows == 2
    assert lake.numbers() == []
    lake.assert_clean()


def test_a_landing_in_between_is_kept(lake: OldRowsLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_rows, "FILES_AT_ONCE", 1)
    lake.add([row(n, 100) for n in range(4)])
    lake.add([row(4, 100), row(5, 1)])
    meanwhile: list[Callable[[], object]] = [lambda: lake.add([row(6, 100), row(7, 1)])]

    def is_over() -> bool:
        if meanwhile:
            meanwhile.pop()()
        return False

    lake.remove(rule("90 days of at, exactly"), is_over=is_over)
    assert {5, 7} <= {*lake.numbers()} <= {5, 6, 7}
    lake.assert_clean()
    lake.remove(rule("90 days of at, exactly"))
    assert lake.numbers() == [5, 7]


def test_a_rollback_before_it_has_rows_and_no_receipts(lake: OldRowsLake) -> None:
    lake.add([row(n, 100) for n in range(4)])
    before = lake.iceberg().current_snapshot() if lake.table_format == "iceberg" else None
    version = None if before else DeltaTable(lake.name).version()
    lake.remove(rule("90 days of at"))
    assert lake.ledger().entry(TOPIC).forgotten.width == 4
    if before is not None:
        lake.iceberg().manage_snapshots().rollback_to_snapshot(before.snapshot_id).commit()
    else:
        DeltaTable(lake.name).restore(version)
    assert lake.numbers() == [0, 1, 2, 3]
    lake.assert_clean()
    lake.add([row(4, 1)])
    assert lake.remove(rule("90 days of at")).rows == 4
    assert lake.numbers() == [4]
    lake.assert_clean()


def test_an_end_leaves_newer_files_to_the_next_run(lake: OldRowsLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_rows, "FILES_AT_ONCE", 1)
    for n in range(4):
        lake.add([row(n, 100 + (n * 37) % 4)])
    looks = iter([False, False, *[True] * 9])
    done = lake.remove(rule("90 days of at"), is_over=lambda: next(looks))
    assert (done.rows, done.is_whole) == (2, False)
    # The oldest go first.
    assert sorted(100 + (n * 37) % 4 for n in lake.numbers()) == [100, 101]
    assert lake.remove(rule("90 days of at")).is_whole
    assert lake.numbers() == []
    lake.assert_clean()


def test_receipts_stay_short(lake: OldRowsLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MOST_RANGES", 2)
    config: Row = {"partition_by": ["n"]}
    # Offsets of old and new rows in turns: each old file is a range of its own.
    for n in (0, 1, 2, 3):
        lake.add([row(n, 100 - n), row(9, 1)], **config)
    done = lake.remove(rule("90 days of at"))
    assert (done.rows, done.is_whole) == (2, False)
    assert lake.numbers() == [2, 3, 9, 9, 9, 9]
    lake.assert_clean()
    monkeypatch.setattr(retention, "MOST_RANGES", 0)
    with pytest.raises(
        RetentionRefused, match=r"more than 0 ranges between those of newer rows\. .* [Pp]artition"
    ) as e:
        lake.remove(rule("90 days of at, exactly"))
    # Delta tables have no `lakestream ledger forget --rows`.
    assert ("`lakestream ledger forget`" in str(e.value)) == (lake.table_format == "iceberg")


def test_a_topic_of_any_number_of_partitions_has_a_receipt_in_each() -> None:
    partitions = range(retention.MOST_RANGES + 500)

    def ranges(*bounds: tuple[int, int]) -> RangeSet:
        return RangeSet(OffsetRange(TOPIC.topic, one, *bound) for one in partitions for bound in bounds)

    def length(one: Ledger) -> int:
        return len(codec.encode_property(codec.LedgerProperty(1, one, ())))

    landed = Counts(read=90, written=90)
    ledgers = {GROUP: Ledger(GROUP, topics={TOPIC: TopicEntry(landed=ranges((0, 9)), counts=landed)})}
    # Two files of old rows, and each has some of each partition.
    files = [RemovedPositions(own=ranges((0, 4))), RemovedPositions(own=ranges((4, 5)))]
    chosen, changes = within_bound("lake.t", files, lambda one: one, ledgers, "Do so.")
    assert chosen == files
    after = retention.ledgers_after(ledgers, changes)[GROUP]
    assert after.entry(TOPIC).forgotten == ranges((0, 5))
    assert length(after) < 2.1 * length(ledgers[GROUP])
    # A second range in each is beyond the bound.
    with pytest.raises(RetentionRefused, match=r"more than 2,000 ranges .* Do so\."):
        within_bound("lake.t", [RemovedPositions(own=ranges((0, 4), (6, 7)))], lambda one: one, ledgers, "Do so.")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("90 days", "'90 days' is not an age of a column"),
        ("some of at", "'some' is not a number of seconds"),
        ("0 days of at", "all rows would be old"),
        ("-3 days of at", "is not a number of seconds"),
        ("90 days of ", "is not an age of a column"),
    ],
)
def test_a_wrong_rule_is_refused_by_name(text: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        RowRetention.parse(text)


def test_rules_are_read() -> None:
    assert rule("90 days of event_time") == RowRetention("event_time", 90 * 86_400)
    assert rule(" 2 weeks  of my time , exactly") == RowRetention("my time", 14 * 86_400, exact=True)
    assert rule("36h of a.b") == RowRetention("a.b", 36 * 3600)


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        ("n", "column 'n' is of type int64, which is not a time"),
        ("gone", "there is no column 'gone'.*Columns with times: at,"),
    ],
)
def test_a_column_without_times_is_refused(lake: OldRowsLake, column: str, problem: str) -> None:
    lake.add([row(0, 100)])
    with pytest.raises(RetentionRefused, match=problem):
        lake.remove(RowRetention(column, 1))


def test_rows_of_other_writers_go_without_a_receipt(lake: OldRowsLake) -> None:
    lake.add([row(0, 1)])
    schema = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    foreign = pa.table({"n": [7], "at": [NOW - 100 * DAY]}, schema)
    if lake.table_format == "iceberg":
        lake.iceberg().append(foreign)
    else:
        write_deltalake(lake.name, foreign, mode="append", schema_mode="merge")
    assert lake.remove(rule("90 days of at")).rows == 1
    assert lake.numbers() == [0]
    lake.assert_clean()


def test_deleted_rows_and_equality_deletes_are_counted_right(tmp_path: Path) -> None:
    lake = OldRowsLake(tmp_path)
    lake.add([row(n, 100) for n in range(4)])
    lake.add([row(n, 100 if n % 2 else 1) for n in range(4, 10)])
    files = sorted(lake.iceberg().scan().plan_files(), key=lambda one: one.file.record_count)
    delete_positions(lake.iceberg(), files[0].file.file_path, [0])
    delete_equal(lake.iceberg(), "n", [1, 5], 0)
    done = lake.remove(rule("90 days of at, exactly"))
    assert (done.rows, done.files, done.rewritten) == (4, 1, 1)
    compact(lake.catalog(), lake.name, RULE)
    assert lake.numbers() == [4, 6, 8]


def test_a_mirror_and_offsets_of_several_landings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RetentionRefused, match="a row of a mirror"):
        retention.rule_of("lake.m", {"lakestream.mirror": "{}"}, rule("1 day of at"))
    assert retention.rule_of("lake.m__rejected", {}, rule("1 day of at")) is None
    assert retention.rule_of("lake.m", {}, None) is None
    lake = OldRowsLake(tmp_path)
    lake.add([row(0, 100)])
    lake.land([json.dumps(row(0, 100)).encode()], consumer_group="other", allow_group_overlap=True)
    with pytest.raises(RetentionRefused, match=r"given\[0\] \[0,1\) was landed by several groups"):
        lake.remove(rule("90 days of at"))
    assert lake.numbers() == [0, 0]


def test_several_groups_get_their_receipts(lake: OldRowsLake) -> None:
    lake.add([row(0, 100)])
    lake.land(
        [json.dumps(row(n, 100)).encode() for n in range(3)], consumer_group="other", mode="ranges", ranges=[[0, 1, 3]]
    )
    assert lake.remove(rule("90 days of at")).rows == 3
    assert lake.numbers() == []
    lake.assert_clean()


@pytest.fixture
def connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/w"}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "iceberg", "extra": extra}))


@pytest.mark.usefixtures("connection")
def test_the_command_and_the_operator_follow_the_table(lake: OldRowsLake, capsys: pytest.CaptureFixture[str]) -> None:
    conn = ["--iceberg-conn", "lake"] if lake.table_format == "iceberg" else []
    config: Row = {"table_properties": {retention.RETENTION: "90 days of at"}}
    now = datetime.now(UTC)
    times = [(now - age * DAY).isoformat() for age in (100, 100, 1)]
    lake.add([{"n": 0, "at": times[0]}, {"n": 1, "at": times[1]}], **config)
    lake.add([{"n": 2, "at": times[2]}, {"n": 3, "at": times[0]}], **config)
    lake.add([{"n": 4, "at": times[0]}], **config)
    assert run(["maintain", lake.name, "--dry-run", "--retention", "--json", *conn]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert (found["removed_rows"], found["removed_files"], found["kept_files"], found["after"]) == (3, 2, 1, None)
    assert run(["maintain", lake.name, "--dry-run", "--retention", *conn]) == 0
    assert "3 old rows of 2 files would go, 1 file with some old rows kept" in capsys.readouterr().out
    assert lake.numbers() == [0, 1, 2, 3, 4]
    operator = LakestreamMaintainOperator(task_id="t", tables=lake.name, iceberg_conn_id="lake")
    [found] = operator.execute({})
    assert (found["removed_rows"], found["removed_files"], found["kept_files"]) == (3, 2, 1)
    assert lake.numbers() == [2, 3]
    lake.assert_clean()
    assert run(["maintain", lake.name, "--keep", "90 days of at, exactly", *conn]) == 0
    assert "1 old row of 1 file removed" in capsys.readouterr().out
    assert lake.numbers() == [2]
    lake.assert_clean()
    assert run(["maintain", lake.name, "--keep", "90 days", *conn]) == FAILED
    assert "--keep: '90 days' is not an age of a column." in capsys.readouterr().err
    if lake.table_format == "iceberg":
        with lake.iceberg().transaction() as transaction:
            transaction.set_properties({retention.RETENTION: "for ever"})
        assert run(["maintain", lake.name, "--retention", *conn]) == FAILED
        assert "lakestream.retention: 'for ever' is not an age of a column" in capsys.readouterr().err


def test_a_landing_refuses_a_wrong_rule_for_its_table(lake: OldRowsLake) -> None:
    with pytest.raises(InvalidArgument, match="'long' is not an age of a column"):
        lake.add([row(0, 1)], table_properties={retention.RETENTION: "long"})
