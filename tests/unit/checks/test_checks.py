"""Checks before rows show: each kind, what main and the branch have after it, and what goes wrong in between."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.table import Table

from airflow_lakestream.checks.audit import SqlAuditor
from airflow_lakestream.config.checks import parse_checks
from airflow_lakestream.core.checks import ChecksFailed, LandingChecks, RowCountCheck
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.core.ports import RecordChunk
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.core.sharing.parallel import folder_of, land_pieces, plan_shares, read_share
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.checked import branch as branches
from airflow_lakestream.iceberg.commit import retention
from airflow_lakestream.iceberg.upkeep.expiry import ExpiryRule
from airflow_lakestream.run.job import ExtractConfig, build_job
from tests.support.faults import TIMEOUT, FaultyCatalog, after, applied, before, passed
from tests.support.given_records import GROUP, TOPIC, GivenLake, GivenTopic, Record

SCHEMA = "id bigint, name string"
NO_BAD = {"sql": "SELECT * FROM landing WHERE name = 'bad'"}


def record(number: int, name: str | None = "good", at_ms: int | None = None) -> Record:
    told = "null" if name is None else f'"{name}"'
    at = int(time.time() * 1000) if at_ms is None else at_ms
    return Record(f'{{"id": {number}, "name": {told}}}'.encode(), at_ms=at)


@pytest.fixture
def lake(tmp_path: Path) -> GivenLake:
    return GivenLake(tmp_path)


def ids(lake: GivenLake) -> list[int]:
    return [row["id"] for row in lake.rows()]


def kept(lake: GivenLake) -> list[branches.CheckBranch]:
    return list(branches.kept_branches(lake.iceberg(), GROUP))


def landed(lake: GivenLake) -> int:
    return ledger_store.read_ledger(lake.iceberg(), GROUP).entry(TOPIC).held.width


def rows_of(table: Table, branch: branches.CheckBranch) -> list[int]:
    found: list[int] = table.scan(snapshot_id=branch.snapshot.snapshot_id).to_arrow()["id"].to_pylist()
    return sorted(found)


def parquet_files(lake: GivenLake) -> set[str]:
    return {path.name for path in lake.folder.rglob("*.parquet")}


FAILING: list[tuple[dict[str, Any], str]] = [
    ({"not_null": ["id", "name"]}, "not_null: name: NULL in 1 of the rows\n    given[0] offset 2: name=NULL"),
    ({"not_null": "name"}, "given[0] offset 2: name=NULL"),
    (
        {"unique": "id"},
        "unique: id: equal values in 2 of the rows\n    given[0] offset 0: id=1\n    given[0] offset 3",
    ),
    ({"row_count": {"min": 5}}, "row_count: 4 rows, fewer than 5"),
    ({"row_count": {"max": "3"}}, "row_count: 4 rows, more than 3"),
    ({"freshness": "1h"}, "freshness: the newest record is of 2001-09-09T01:46:40+00:00"),
    ({"sql": "SELECT * FROM landing WHERE id = 2;"}, "    given[0] offset 1: id=2, name=b"),
    (
        {"sql": ["SELECT 1 FROM landing WHERE false", "SELECT name::INT AS n FROM landing"]},
        "it failed: Conversion Error",
    ),
    ({"sql": "SELECT JSON_VALUE('{\"a\": 1}', '$.a') AS a FROM landing"}, "    a=1\n    a=1"),
    ({"sql": "SELECT l.id FROM landing l JOIN landing r USING (id)"}, "it returned rows"),
]


@pytest.mark.parametrize(("checks", "said"), FAILING)
def test_a_failed_check_shows_nothing_and_keeps_the_rows(lake: GivenLake, checks: dict[str, Any], said: str) -> None:
    old = 1_000_000_000_000
    records = [record(1, "a", old), record(2, "b", old), record(3, None, old), record(1, "c", old)]
    with pytest.raises(ChecksFailed) as caught:
        lake.land(records, checks=checks)
    assert said in str(caught.value)
    (branch,) = kept(lake)
    assert caught.value.branch == branch.name
    assert branch.name in str(caught.value)
    assert (ids(lake), landed(lake)) == ([], 0)
    assert rows_of(lake.iceberg(), branch) == [1, 1, 2, 3]


def test_after_the_check_is_mended_each_record_is_there_once(lake: GivenLake) -> None:
    records = [record(1), record(2), record(3, "bad")]
    for _ in range(2):
        with pytest.raises(ChecksFailed):
            lake.land(records, checks=NO_BAD)
        assert len(kept(lake)) == 1
        assert len(parquet_files(lake)) == 1
    # Mended: each record once, and nothing of the branch is left.
    lake.land(records, checks={"sql": "SELECT * FROM landing WHERE id > 3"})
    assert (ids(lake), landed(lake), kept(lake)) == ([1, 2, 3], 3, [])
    assert parquet_files(lake) == {Path(path).name for path in lake.files()}


def test_what_passes_is_one_snapshot_of_main(lake: GivenLake) -> None:
    checks = {
        "sql": ["SELECT * FROM landing WHERE name = 'bad'"],
        "not_null": ["id"],
        "unique": ["id", "name"],
        "row_count": {"min": 1, "max": 10, "min_of_week": 0.5, "max_of_week": 2},
        "freshness": 3600,
    }
    records = [record(1), record(2)]
    first = lake.land(records, checks=checks)
    records += [record(3), record(4)]
    second = lake.land(records, checks=checks)
    assert (ids(lake), landed(lake)) == ([1, 2, 3, 4], 4)
    metadata = lake.iceberg().metadata
    assert list(metadata.refs) == ["main"]
    # The one before the first landing says where the group begins.
    assert [s.snapshot_id for s in metadata.snapshots][1:] == [*first.snapshot_ids, *second.snapshot_ids]
    assert lake.land(records, checks=checks).snapshot_ids == []


def test_the_last_week_tells_how_many_rows_are_usual(lake: GivenLake) -> None:
    records = [record(number) for number in range(10)]
    lake.land(records, checks={"row_count": {"min_of_week": 5}})
    with pytest.raises(ChecksFailed, match=r"1 rows, fewer than 0\.5 times the last week's mean of 10"):
        lake.land([*records, record(10)], checks={"row_count": {"min_of_week": 0.5}})
    with pytest.raises(ChecksFailed, match="21 rows, more than 2 times the last week's mean of 10"):
        lake.land([*records, *map(record, range(10, 31))], checks={"row_count": {"max_of_week": 2}})


def test_a_landing_without_rows_is_asked_for_their_number_only(lake: GivenLake) -> None:
    records = [Record(b"no json"), Record(b"no json either")]
    told: dict[str, Any] = {"schema": SCHEMA, "max_rejected": 1.0}
    with pytest.raises(ChecksFailed, match="there are no rows to look at"):
        lake.land(records, checks={"row_count": {"min": 1}}, **told)
    report = lake.land(records, checks={"not_null": ["id"], "freshness": 1}, **told)
    assert (report.counts.rejected, landed(lake), len(lake.rejected())) == (2, 2, 2)


WRONG = [
    ({"sql": "SELECT * FROM landing WHERE colour = 'red'"}, "checks.sql: DuckDB can't bind .*colour"),
    ({"sql": "SELEC 1"}, "checks.sql: 'SELEC 1': DuckDB does not understand it"),
    ({"sql": "DROP TABLE landing"}, "checks.sql: 'DROP TABLE landing': only a SELECT"),
    ({"sql": "SELECT 1; SELECT 2"}, "several statements"),
    ({"sql": "SELECT * FROM landing WHERE name = 'a\0b'"}, "it has a zero byte"),
    ({"sql": "SELECT * FROM read_csv('/etc/passwd')"}, "checks.sql: DuckDB can't bind .*disabled by configuration"),
    ({"sql": "SELECT * FROM other"}, "checks.sql: DuckDB can't bind .*other"),
    ({"not_null": ["Name"]}, "checks.not_null: there is no column 'Name'. The columns are: id, name, _kafka_topic"),
    ({"unique": ["id", "colour"]}, "checks.unique: there is no column 'colour'"),
]


@pytest.mark.parametrize(("checks", "said"), WRONG)
def test_what_can_never_work_is_said_before_anything_is_read(
    lake: GivenLake, checks: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        land(replace(lake.job([record(1), record(2)], checks=checks, schema=SCHEMA), reader=Unread()))


def test_the_columns_of_a_table_are_asked_before_anything_is_read(lake: GivenLake) -> None:
    lake.land([record(1)])
    with pytest.raises(InvalidArgument, match="there is no column 'colour'"):
        land(replace(lake.job([record(1), record(2)], checks={"unique": ["colour"]}), reader=Unread()))


class Unread:
    """A reader that nobody may ask."""

    def read(self, plan: Plan, cancelled: threading.Event) -> Generator[RecordChunk, None, None]:
        raise AssertionError(f"{plan.ranges} was read")


def test_columns_that_the_records_tell_are_looked_up_once_they_are_known(lake: GivenLake) -> None:
    with pytest.raises(InvalidArgument, match="there is no column 'colour'"):
        lake.land([record(1)], checks={"not_null": ["colour"]})
    assert (ids(lake), landed(lake), kept(lake)) == ([], 0, [])
    assert parquet_files(lake) == set()


NOT_TOLD: list[tuple[object, str]] = [
    ([], r"checks: \[\] is not a mapping"),
    ({"notnull": ["id"]}, "checks: 'notnull' is not one of 'sql', 'not_null'"),
    ({"not_null": {"id": 1}}, "checks.not_null: .* is not a list of texts"),
    ({"unique": ["id", "id"]}, "checks.unique: 'id' is there twice"),
    ({"sql": [" "]}, "checks.sql: a statement is empty"),
    ({"row_count": 5}, "checks.row_count: 5 has no bounds"),
    ({"row_count": {"least": 5}}, "checks.row_count: 'least' is not one of 'min', 'max'"),
    ({"row_count": {"min": 1.5}}, "checks.row_count.min: 1.5 is not a whole number"),
    ({"row_count": {"min": True}}, "checks.row_count.min: True is not"),
    ({"row_count": {"max_of_week": "nan"}}, "checks.row_count.max_of_week: 'nan' is not a number"),
    ({"row_count": {"min": 2, "max": 1}}, "checks.row_count: the least, 2, is more than the most, 1"),
    ({"freshness": "soon"}, "checks.freshness: 'soon' is not a number of seconds"),
]


@pytest.mark.parametrize(("value", "said"), NOT_TOLD)
def test_what_is_no_check_is_said(value: object, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        parse_checks("checks", value)


def test_numbers_may_be_texts_as_templates_render_them() -> None:
    found = parse_checks("checks", {"row_count": {"min": "1", "max": "None", "min_of_week": "0.5"}, "sql": "SELECT 1"})
    assert found is not None
    assert (found.row_count, found.statements) == (RowCountCheck(1, None, 0.5, None), ("SELECT 1",))
    assert parse_checks("checks", {}) is parse_checks("checks", {"not_null": []}) is None


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"table": "lake.{header:kind}"}, "several tables"),
        ({"schema_evolution": "widen"}, "schema_evolution='widen' does not go with checks"),
        ({"metadata_columns": ["topic", "offset"]}, 'checks.freshness: needs "timestamp" in metadata_columns'),
    ],
)
def test_what_checks_do_not_go_with(more: dict[str, Any], said: str) -> None:
    told = {"topic": "t", "table": "lake.events", "consumer_group": "g", "checks": {"freshness": 60}, **more}
    with pytest.raises(InvalidArgument, match=said):
        ExtractConfig(**told)


def test_new_columns_come_with_the_commit_that_passes(lake: GivenLake) -> None:
    lake.land([record(1)])
    more = [record(1), Record(b'{"id": 2, "name": "n", "colour": "red"}')]
    told: dict[str, Any] = {"schema_evolution": "add", "unknown_fields": "evolve"}
    with pytest.raises(ChecksFailed, match="colour=red"):
        lake.land(more, checks={"sql": "SELECT colour FROM landing WHERE colour = 'red'"}, **told)
    assert "colour" not in lake.iceberg().schema().column_names
    lake.land(more, checks={"not_null": ["colour"]}, **told)
    assert [row["colour"] for row in lake.rows()] == [None, "red"]


def test_a_statement_reads_each_type_as_the_table_has_it(lake: GivenLake) -> None:
    value = b"""{"u": "123e4567-e89b-12d3-a456-426614174000", "d": "1.25", "t": "12:00:01", "b": "AAEC", "l": ["a"],
        "ts": "2026-01-01T00:00:00Z", "m": {"k": 1}, "s": {"x": 1, "y y": "z"}, "odd-name": "q"}"""
    schema = """u uuid, d decimal(12,4), t time, b binary, l array<string>, ts timestamp, m map<string,bigint>,
        s struct<x: bigint, `y y`: string>, `odd-name` string"""
    statement = """SELECT * FROM landing WHERE u = '123e4567-e89b-12d3-a456-426614174000'::UUID AND d = 1.25
        AND t = TIME '12:00:01' AND b = '\\x00\\x01\\x02'::BLOB AND l[1] = 'a' AND m['k'] = 1 AND s."y y" = 'z'
        AND ts = TIMESTAMPTZ '2026-01-01 00:00:00Z' AND "odd-name" = 'q'"""
    with pytest.raises(ChecksFailed) as caught:
        lake.land([value], schema=schema, on_error="fail", checks={"sql": statement, "unique": ["u", "l", "m", "s"]})
    (finding,) = caught.value.findings
    assert finding.problem == "it returned rows"
    assert "offset 0: u=123e4567-e89b-12d3-a456-426614174000, d=1.2500, t=12:00:01" in str(finding)


def test_columns_that_differ_in_case_only_are_refused() -> None:
    columns = pa.schema([("id", pa.int64()), ("ID", pa.int64())])
    with pytest.raises(InvalidArgument, match="upper and lower case"):
        SqlAuditor(LandingChecks(not_null=("ID",))).check_columns(columns)


def test_rows_of_partitions_and_several_files(lake: GivenLake) -> None:
    records = [record(number, f"n{number % 3}") for number in range(9)]
    told: dict[str, Any] = {"partition_by": ["name"], "schema": SCHEMA}
    with pytest.raises(ChecksFailed, match="given\\[0\\] offset 7: id=7"):
        lake.land(records, checks={"sql": "SELECT * FROM landing WHERE id = 7"}, **told)
    lake.land(records, checks={"unique": ["id"]}, **told)
    assert len(lake.files()) == 3
    assert sorted(ids(lake)) == list(range(9))


@dataclass(frozen=True)
class OneByOne(GivenTopic):
    """Chunks of one record."""

    def read(self, plan: Plan, cancelled: threading.Event) -> Generator[RecordChunk, None, None]:
        for r in plan.ranges:
            for at in range(r.from_offset, r.until_offset):
                one = replace(plan, ranges=RangeSet([OffsetRange(r.topic, r.partition, at, at + 1)]))
                yield from super().read(one, cancelled)


def one_by_one(lake: GivenLake, records: Sequence[Record], **config: Any) -> LandingJob:
    topic: Any = OneByOne(records)
    return replace(lake.job(records, **config), source=topic, reader=topic)


def test_each_commit_of_a_run_is_checked_on_its_own(lake: GivenLake) -> None:
    records = [record(0), record(1), record(2, "bad"), record(3)]
    told: dict[str, Any] = {"max_batch_bytes": 1}
    with pytest.raises(ChecksFailed) as caught:
        land(one_by_one(lake, records, checks=NO_BAD, **told))
    assert "given[0] [2,3)" in str(caught.value)
    assert (ids(lake), landed(lake), len(kept(lake))) == ([0, 1], 2, 1)
    land(one_by_one(lake, records, **told))
    assert ids(lake) == [0, 1, 2, 3]


def job_of(lake: GivenLake, records: Sequence[Record], catalog: Any, run_id: str = "run", **config: Any) -> LandingJob:
    """Return a job whose sink commits through this catalog."""
    told = {"topic": TOPIC.topic, "table": lake.name, "consumer_group": GROUP, "checks": NO_BAD, **config}
    job = build_job(ExtractConfig(**told), {}, catalog, run_id=run_id)
    topic: Any = GivenTopic(records)
    return replace(job, source=topic, reader=topic)


RECORDS = [record(1), record(2), record(3)]


def _die(folder: str, kind: Callable[..., Any]) -> None:
    lake = GivenLake(Path(folder))
    # The rows are on the branch by the second commit: the first gave the table its first snapshot.
    faults = (passed, passed, kind(lambda: os.kill(os.getpid(), signal.SIGKILL)))
    land(job_of(lake, RECORDS, FaultyCatalog(lake.catalog(), *faults)))


@pytest.mark.long
@pytest.mark.parametrize(("kind", "landed_by_then"), [(before, []), (after, [1, 2, 3])], ids=["before", "after"])
def test_killed_between_audit_and_publish(lake: GivenLake, kind: Callable[..., Any], landed_by_then: list[int]) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_die, args=(str(lake.folder), kind))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    assert ids(lake) == landed_by_then
    assert len(kept(lake)) == (0 if landed_by_then else 1)
    report = land(job_of(lake, RECORDS, lake.catalog()))
    assert report.counts.written == 3
    assert (ids(lake), landed(lake), kept(lake)) == ([1, 2, 3], 3, [])
    assert parquet_files(lake) == {Path(path).name for path in lake.files()}


@pytest.mark.parametrize("at", [1, 2, 3], ids=["create", "branch", "publish"])
def test_a_lost_answer_doubles_and_loses_nothing(lake: GivenLake, at: int) -> None:
    faults = [*[passed] * (at - 1), applied(TIMEOUT)]
    try:
        land(job_of(lake, RECORDS, FaultyCatalog(lake.catalog(), *faults)))
    except type(TIMEOUT):
        assert ids(lake) == []
    land(job_of(lake, RECORDS, lake.catalog()))
    assert (ids(lake), kept(lake)) == ([1, 2, 3], [])
    assert parquet_files(lake) == {Path(path).name for path in lake.files()}


@pytest.mark.parametrize("mode", [{}, {"mode": "ranges", "ranges": [[0, 0, 3]]}], ids=["resume", "ranges"])
def test_a_table_that_somebody_has_made_without_rows(lake: GivenLake, mode: dict[str, Any]) -> None:
    catalog = lake.catalog()
    catalog.create_namespace("lake")
    lake.land(RECORDS[:1])
    schema = lake.iceberg().schema()
    catalog.drop_table(lake.name)
    catalog.create_table(lake.name, schema)
    with pytest.raises(ChecksFailed):
        lake.land(RECORDS, checks={"row_count": {"min": 4}}, **mode)
    assert (ids(lake), landed(lake), len(kept(lake))) == ([], 0, 1)
    lake.land(RECORDS, checks=NO_BAD, **mode)
    assert (ids(lake), kept(lake)) == ([1, 2, 3], [])


def test_a_first_landing_of_ranges_makes_the_table(lake: GivenLake) -> None:
    told: dict[str, Any] = {"mode": "ranges", "ranges": [[0, 1, 2]]}
    with pytest.raises(ChecksFailed):
        lake.land(RECORDS, checks={"row_count": {"min": 4}}, **told)
    lake.land(RECORDS, checks=NO_BAD, **told)
    assert (ids(lake), kept(lake)) == ([2], [])
    assert ledger_store.read_ledger(lake.iceberg(), GROUP).entry(TOPIC).origin == {}


def test_a_failed_first_landing_says_where_the_group_begins(lake: GivenLake) -> None:
    with pytest.raises(ChecksFailed):
        lake.land(RECORDS, checks={"row_count": {"min": 4}})
    entry = ledger_store.read_ledger(lake.iceberg(), GROUP).entry(TOPIC)
    assert (entry.origin, entry.held.width) == ({0: 0}, 0)


def test_another_run_that_lands_first_wins(lake: GivenLake) -> None:
    faults = (passed, passed, before(lambda: lake.land(RECORDS)))
    land(job_of(lake, RECORDS, FaultyCatalog(lake.catalog(), *faults)))
    assert (ids(lake), kept(lake)) == ([1, 2, 3], [])
    assert parquet_files(lake) == {Path(path).name for path in lake.files()}


def test_a_checked_run_that_lands_first_wins(lake: GivenLake) -> None:
    other = before(lambda: land(job_of(lake, RECORDS, lake.catalog(), "other")))
    land(job_of(lake, RECORDS, FaultyCatalog(lake.catalog(), passed, passed, other)))
    assert (ids(lake), kept(lake)) == ([1, 2, 3], [])
    assert parquet_files(lake) == {Path(path).name for path in lake.files()}


def test_a_branch_that_was_dropped_is_not_published(lake: GivenLake) -> None:
    def drop() -> None:
        (branch,) = kept(lake)
        branches.drop(lake.catalog(), lake.name, branch)

    faults = FaultyCatalog(lake.catalog(), passed, passed, before(drop))
    land(job_of(lake, RECORDS, faults))
    # Landed anew, from a second branch.
    assert (ids(lake), kept(lake)) == ([1, 2, 3], [])
    assert faults.commits > 4


def test_others_on_main_do_not_matter(lake: GivenLake) -> None:
    lake.land(RECORDS[:1])
    rows = lake.iceberg().scan().to_arrow()
    foreign = rows.set_column(rows.column_names.index("_kafka_topic"), "_kafka_topic", [["other"]])
    append = before(lambda: lake.iceberg().append(foreign.cast(rows.schema)))
    land(job_of(lake, RECORDS, FaultyCatalog(lake.catalog(), passed, append)))
    assert sorted(ids(lake)) == [1, 1, 2, 3]


def test_a_kept_branch_outlives_expiry_and_its_files_are_known(lake: GivenLake) -> None:
    told: dict[str, Any] = {"table_properties": {retention.KEEP: "1"}}
    records = [record(number) for number in range(4)]
    for count in (1, 2, 3):
        lake.land(records[:count], **told)
    with pytest.raises(ChecksFailed):
        lake.land([*records[:3], record(3, "bad")], checks=NO_BAD, **told)
    (branch,) = kept(lake)
    assert branch.snapshot.snapshot_id not in ExpiryRule(0).expiring(lake.iceberg().metadata)
    # Other offsets, by another group: its landings let snapshots expire.
    other = replace(TOPIC, topic="other")
    for count in (1, 2, 3, 4):
        job = lake.job(records[:count], consumer_group="h", topic="other", **told)
        topic: Any = OtherTopic(records[:count], other)
        land(replace(job, source=topic, reader=topic))
    assert [one.name for one in kept(lake)] == [branch.name]
    assert rows_of(lake.iceberg(), branch) == [3]
    lake.land(records, **told)
    # A landing without checks leaves the branch; the next one with checks drops it.
    assert [one.name for one in kept(lake)] == [branch.name]
    lake.land([*records, record(4)], checks=NO_BAD, **told)
    assert kept(lake) == []
    assert parquet_files(lake) == {Path(path).name for path in lake.files()}


def test_checked_landings_let_snapshots_expire_with_their_files(lake: GivenLake) -> None:
    told: dict[str, Any] = {"table_properties": {retention.KEEP: "1"}, "checks": NO_BAD}
    for count in range(1, 6):
        lake.land([record(number) for number in range(count)], **told)
    table = lake.iceberg()
    assert ids(lake) == list(range(5))
    needed = {m.manifest_path for s in table.snapshots() for m in s.manifests(table.io)}
    needed |= {s.manifest_list for s in table.snapshots()}
    assert {path.name for path in lake.folder.rglob("*.avro")} == {path.rpartition("/")[2] for path in needed}
    assert len(table.snapshots()) <= 3


@dataclass(frozen=True)
class OtherTopic(GivenTopic):
    """The records under another topic's name."""

    topic: Any = None

    def look(self) -> Any:
        return replace(super().look(), identity=self.topic)

    def identity(self) -> Any:
        return self.topic

    def read(self, plan: Plan, cancelled: threading.Event) -> Generator[RecordChunk, None, None]:
        for chunk in super().read(plan, cancelled):
            yield replace(chunk, batch=replace(chunk.batch, topic=self.topic.topic))


def test_files_that_somebody_put_on_main_stay_there(lake: GivenLake) -> None:
    with pytest.raises(ChecksFailed):
        lake.land([record(1, "bad")], checks=NO_BAD)
    (branch,) = kept(lake)
    table = lake.iceberg()
    files = [entry for m in branch.snapshot.manifests(table.io) for entry in m.fetch_manifest_entry(table.io)]
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for entry in files:
            append.append_data_file(entry.data_file)
    branches.drop_superseded(lake.catalog(), lake.name, GROUP, None, branch.ranges, None)
    assert (kept(lake), ids(lake)) == ([], [1])


def test_a_branch_that_somebody_committed_to_stays(lake: GivenLake) -> None:
    with pytest.raises(ChecksFailed):
        lake.land([record(1, "bad")], checks=NO_BAD)
    (branch,) = kept(lake)
    table = lake.iceberg()
    table.append(table.scan(snapshot_id=branch.snapshot.snapshot_id).to_arrow(), branch=branch.name)
    lake.land([record(1)], checks=NO_BAD)
    assert branch.name in lake.iceberg().metadata.refs
    assert ids(lake) == [1]


def test_what_several_tasks_read_is_checked_by_the_one_that_commits(lake: GivenLake) -> None:
    lake.land(RECORDS[:1])

    def job(records: Sequence[Record]) -> LandingJob:
        return job_of(lake, records, lake.catalog(), "group")

    records = [*RECORDS, record(4, "bad")]
    folder = folder_of("group")
    plan = plan_shares(job(records), 2, least_width=1)
    pieces = [piece for share in plan.shares for piece in read_share(job(records), share, folder)]
    for _ in range(2):
        # Clearing the commit alone checks the same files again.
        with pytest.raises(ChecksFailed, match=r"given\[0\] offset 3: id=4"):
            land_pieces(job(records), pieces, plan.within, folder)
        assert (ids(lake), len(kept(lake))) == ([1], 1)
    lenient = job_of(lake, records, lake.catalog(), "group", checks={"not_null": ["id"]})
    land_pieces(lenient, pieces, plan.within, folder)
    assert (sorted(ids(lake)), kept(lake)) == ([1, 2, 3, 4], [])
    assert parquet_files(lake) == {Path(path).name for path in lake.files()}


REPLACE: dict[str, Any] = {"mode": "ranges", "ranges": [[0, 0, 3]], "replace": True}
ANEW = [record(1), record(5), record(6)]


def unreferenced(lake: GivenLake) -> set[str]:
    known = lake.iceberg().inspect.all_data_files()["file_path"].to_pylist()
    return parquet_files(lake) - {Path(path).name for path in known}


def test_a_replace_that_does_not_pass_leaves_the_rows_as_they_were(lake: GivenLake) -> None:
    lake.land(RECORDS)
    bad = [record(1), record(5, "bad"), record(6)]
    for _ in range(2):
        with pytest.raises(ChecksFailed, match=r"the rows of given\[0\] \[0,3\) did not pass") as caught:
            lake.land(bad, checks=NO_BAD, **REPLACE)
        assert "given[0] offset 1: id=5, name=bad" in str(caught.value)
        (branch,) = kept(lake)
        assert (ids(lake), landed(lake), rows_of(lake.iceberg(), branch)) == ([1, 2, 3], 3, [1, 5, 6])
    # The group's landings go on, and leave the branch for a look.
    lake.land([*RECORDS, record(4)], checks=NO_BAD)
    assert (ids(lake), kept(lake)) == ([1, 2, 3, 4], [branch])
    report = lake.land([*ANEW, record(4)], checks=NO_BAD, **REPLACE)
    assert (ids(lake), landed(lake), kept(lake)) == ([1, 5, 6, 4], 4, [])
    assert len(report.snapshot_ids) == 1
    assert unreferenced(lake) == set()


def test_a_replace_that_would_leave_no_rows_is_checked(lake: GivenLake) -> None:
    lake.land(RECORDS)
    with pytest.raises(ChecksFailed, match="0 rows, fewer than 1"):
        lake.land([Record(None)] * 3, checks={"row_count": {"min": 1}}, tombstones="skip", **REPLACE)
    assert ids(lake) == [1, 2, 3]


def test_a_replace_is_made_for_the_head_that_it_finds(lake: GivenLake) -> None:
    lake.land(RECORDS)
    other = before(lambda: lake.land([*RECORDS, record(4)]))
    land(job_of(lake, [*ANEW, record(4)], FaultyCatalog(lake.catalog(), passed, other), **REPLACE))
    assert (ids(lake), landed(lake), kept(lake)) == ([1, 5, 6, 4], 4, [])
    assert unreferenced(lake) == set()


def _die_replacing(folder: str, kind: Callable[..., Any]) -> None:
    lake = GivenLake(Path(folder))
    faults = (passed, kind(lambda: os.kill(os.getpid(), signal.SIGKILL)))
    land(job_of(lake, ANEW, FaultyCatalog(lake.catalog(), *faults), **REPLACE))


@pytest.mark.long
@pytest.mark.parametrize(("kind", "by_then"), [(before, [1, 2, 3]), (after, [1, 5, 6])], ids=["before", "after"])
def test_a_replace_killed_between_audit_and_publish(lake: GivenLake, kind: Callable[..., Any], by_then: Any) -> None:
    lake.land(RECORDS)
    process = multiprocessing.get_context("spawn").Process(target=_die_replacing, args=(str(lake.folder), kind))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    assert ids(lake) == by_then
    land(job_of(lake, ANEW, lake.catalog(), **REPLACE))
    assert (ids(lake), landed(lake), kept(lake)) == ([1, 5, 6], 3, [])
    assert unreferenced(lake) == set()


# Each landing: so many records more, each of them bad or not; and whether the check is on.
LANDINGS = st.lists(st.tuples(st.lists(st.booleans(), max_size=4), st.booleans()), min_size=1, max_size=4)


@pytest.mark.long
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LANDINGS, st.booleans())
def test_main_never_has_a_row_of_a_failed_landing(
    tmp_path_factory: pytest.TempPathFactory, landings: list[tuple[list[bool], bool]], small: bool
) -> None:
    lake = GivenLake(tmp_path_factory.mktemp("lake"))
    told: dict[str, Any] = {"schema": SCHEMA, "max_batch_bytes": 1 if small else "1MiB"}
    records: list[Record] = []
    are_bad: list[bool] = []
    on_main = 0
    for more, is_checked in landings:
        records += [record(len(records) + at, "bad" if is_bad else "good") for at, is_bad in enumerate(more)]
        are_bad += more
        checks = NO_BAD if is_checked else {"not_null": ["id"]}
        new = are_bad[on_main:]
        stops = is_checked and any(new)
        try:
            land(one_by_one(lake, records, checks=checks, **told))
            assert not stops
            on_main = len(records)
        except ChecksFailed:
            assert stops
            # Commit by commit, up to the bad record; or all at once.
            on_main += new.index(True) if small else 0
        if records:
            assert ids(lake) == list(range(on_main))
            assert landed(lake) == on_main
            assert len(kept(lake)) == stops
    land(one_by_one(lake, records, checks={"unique": ["id"]}, **told))
    if records:
        assert ids(lake) == list(range(len(records)))
        assert kept(lake) == []
        assert parquet_files(lake) == {Path(path).name for path in lake.files()}
