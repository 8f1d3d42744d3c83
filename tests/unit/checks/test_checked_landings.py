"""Checked landings: what main and the branch have after them, and what goes wrong between the look and main."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_lakestream.config.sql import landed_through
from airflow_lakestream.core.checks import ChecksFailed
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.core.ports import RecordChunk
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.core.sharing.parallel import folder_of, land_pieces, plan_shares, read_share
from airflow_lakestream.iceberg import checked as branches
from airflow_lakestream.iceberg.commit import retention
from airflow_lakestream.iceberg.upkeep.expiry import ExpiryRule
from tests.support.faults import TIMEOUT, FaultyCatalog, after, applied, before, passed
from tests.support.given_records import GROUP, TOPIC, GivenTopic, Record
from tests.support.killed_process import kill, run_until_killed
from tests.unit.checks.checked import NO_BAD, RECORDS, SCHEMA, CheckedLake, bad, record

FEW: dict[str, Any] = {"row_count": {"min": 4}}


def test_after_the_check_is_mended_each_record_is_there_once(lake: CheckedLake) -> None:
    records = [record(1), record(2), bad(3)]
    for _ in range(2):
        with pytest.raises(ChecksFailed):
            lake.land(records, checks=NO_BAD)
        assert len(lake.kept()) == 1
        assert len(lake.parquet_files()) == 1
    # Where the group begins is settled all the same.
    assert (lake.entry().origin, lake.landed()) == ({0: 0}, 0)
    # Mended: each record once, and nothing of the branch is left.
    lake.land(records, checks={"unique": "id"})
    assert lake.landed() == 3
    lake.assert_only([1, 2, 3])


@dataclass(frozen=True)
class OneByOne(GivenTopic):
    """Chunks of one record."""

    def read(self, plan: Plan, cancelled: threading.Event) -> Generator[RecordChunk, None, None]:
        for r in plan.ranges:
            for at in range(r.from_offset, r.until_offset):
                one = replace(plan, ranges=RangeSet([OffsetRange(r.topic, r.partition, at, at + 1)]))
                yield from super().read(one, cancelled)


def one_by_one(lake: CheckedLake, records: Sequence[Record], **config: Any) -> LandingJob:
    topic: Any = OneByOne(records)
    return replace(lake.job(records, **config), source=topic, reader=topic)


def test_each_commit_of_a_run_is_checked_on_its_own(lake: CheckedLake) -> None:
    records = [record(0), record(1), bad(2), record(3)]
    options: dict[str, Any] = {"max_batch_bytes": 1}
    with pytest.raises(ChecksFailed) as caught:
        land(one_by_one(lake, records, checks=NO_BAD, **options))
    assert "given[0] [2,3)" in str(caught.value)
    assert (lake.ids(), lake.landed(), len(lake.kept())) == ([0, 1], 2, 1)
    land(one_by_one(lake, records, **options))
    assert lake.ids() == [0, 1, 2, 3]


def _die(folder: str, kind: Callable[..., Any]) -> None:
    lake = CheckedLake(Path(folder))
    # The rows are on the branch by the second commit: the first gave the table its first snapshot.
    land(lake.through(FaultyCatalog(lake.catalog(), passed, passed, kind(kill)), RECORDS))


@pytest.mark.long
@pytest.mark.parametrize(("kind", "landed_by_then"), [(before, []), (after, [1, 2, 3])], ids=["before", "after"])
def test_killed_between_audit_and_publish(
    lake: CheckedLake, kind: Callable[..., Any], landed_by_then: list[int]
) -> None:
    run_until_killed(_die, str(lake.folder), kind)
    assert lake.ids() == landed_by_then
    assert len(lake.kept()) == (0 if landed_by_then else 1)
    report = land(lake.through(lake.catalog(), RECORDS))
    assert (report.counts.written, lake.landed()) == (3, 3)
    lake.assert_only([1, 2, 3])


@pytest.mark.parametrize("at", [1, 2, 3], ids=["create", "branch", "publish"])
def test_a_lost_answer_doubles_and_loses_nothing(lake: CheckedLake, at: int) -> None:
    faults = [*[passed] * (at - 1), applied(TIMEOUT)]
    try:
        land(lake.through(FaultyCatalog(lake.catalog(), *faults), RECORDS))
    except type(TIMEOUT):
        assert lake.ids() == []
    land(lake.through(lake.catalog(), RECORDS))
    lake.assert_only([1, 2, 3])


@pytest.mark.parametrize("mode", [{}, {"mode": "ranges", "ranges": [[0, 0, 3]]}], ids=["resume", "ranges"])
def test_a_table_that_somebody_has_made_without_rows(lake: CheckedLake, mode: dict[str, Any]) -> None:
    catalog = lake.catalog()
    catalog.create_namespace("lake")
    lake.land(RECORDS[:1])
    schema = lake.iceberg().schema()
    catalog.drop_table(lake.name)
    catalog.create_table(lake.name, schema)
    with pytest.raises(ChecksFailed):
        lake.land(RECORDS, checks=FEW, **mode)
    assert (lake.ids(), lake.landed(), len(lake.kept())) == ([], 0, 1)
    lake.land(RECORDS, checks=NO_BAD, **mode)
    assert (lake.ids(), lake.kept()) == ([1, 2, 3], [])


def test_a_landing_that_does_not_pass_notes_no_statement(lake: CheckedLake) -> None:
    lake.land(RECORDS[:1])
    schema, catalog = lake.iceberg().schema(), lake.catalog()
    catalog.drop_table(lake.name)
    catalog.create_table(lake.name, schema)
    statement = {"sql": "SELECT * FROM {{ input }}", "sql_input": "decoded", "schema": SCHEMA}
    with pytest.raises(ChecksFailed):
        lake.land(RECORDS, checks=FEW, **statement)
    # The commit of the group's first offsets has no rows of the statement.
    assert landed_through(lake.iceberg().properties, GROUP) is None
    lake.land(RECORDS, checks=NO_BAD, **statement)
    assert landed_through(lake.iceberg().properties, GROUP) == "decoded"


def test_a_first_landing_of_ranges_makes_the_table(lake: CheckedLake) -> None:
    options: dict[str, Any] = {"mode": "ranges", "ranges": [[0, 1, 2]]}
    with pytest.raises(ChecksFailed):
        lake.land(RECORDS, checks=FEW, **options)
    lake.land(RECORDS, checks=NO_BAD, **options)
    assert (lake.ids(), lake.kept()) == ([2], [])
    assert lake.entry().origin == {}


def test_another_run_that_lands_first_wins(lake: CheckedLake) -> None:
    faults = (passed, passed, before(lambda: lake.land(RECORDS)))
    land(lake.through(FaultyCatalog(lake.catalog(), *faults), RECORDS))
    lake.assert_only([1, 2, 3])


def test_a_checked_run_that_lands_first_wins(lake: CheckedLake) -> None:
    other = before(lambda: land(lake.through(lake.catalog(), RECORDS, "other")))
    land(lake.through(FaultyCatalog(lake.catalog(), passed, passed, other), RECORDS))
    lake.assert_only([1, 2, 3])


def test_a_branch_that_was_dropped_is_not_published(lake: CheckedLake) -> None:
    def drop() -> None:
        (branch,) = lake.kept()
        branches.drop(lake.catalog(), lake.name, branch)

    faults = FaultyCatalog(lake.catalog(), passed, passed, before(drop))
    land(lake.through(faults, RECORDS))
    # Landed anew, from a second branch.
    assert (lake.ids(), lake.kept()) == ([1, 2, 3], [])
    assert faults.commits > 4


def test_others_on_main_do_not_matter(lake: CheckedLake) -> None:
    lake.land(RECORDS[:1])
    rows = lake.iceberg().scan().to_arrow()
    foreign = rows.set_column(rows.column_names.index("_kafka_topic"), "_kafka_topic", [["other"]])
    append = before(lambda: lake.iceberg().append(foreign.cast(rows.schema)))
    land(lake.through(FaultyCatalog(lake.catalog(), passed, append), RECORDS))
    assert sorted(lake.ids()) == [1, 1, 2, 3]


def test_a_kept_branch_outlives_expiry_and_its_files_are_known(lake: CheckedLake) -> None:
    options: dict[str, Any] = {"table_properties": {retention.KEEP: "1"}}
    records = [record(number) for number in range(4)]
    for count in (1, 2, 3):
        lake.land(records[:count], **options)
    with pytest.raises(ChecksFailed):
        lake.land([*records[:3], bad(3)], checks=NO_BAD, **options)
    (branch,) = lake.kept()
    assert branch.snapshot.snapshot_id not in ExpiryRule(0).expiring(lake.iceberg().metadata)
    # Other offsets, by another group: its landings let snapshots expire.
    other = replace(TOPIC, topic="other")
    for count in (1, 2, 3, 4):
        job = lake.job(records[:count], consumer_group="h", topic="other", **options)
        topic: Any = OtherTopic(records[:count], other)
        land(replace(job, source=topic, reader=topic))
    assert [one.name for one in lake.kept()] == [branch.name]
    assert lake.kept_ids() == [3]
    lake.land(records, **options)
    # A landing without checks leaves the branch; the next one with checks drops it.
    assert [one.name for one in lake.kept()] == [branch.name]
    lake.land([*records, record(4)], checks=NO_BAD, **options)
    assert lake.kept() == []
    assert lake.parquet_files() == {Path(path).name for path in lake.files()}


def test_checked_landings_let_snapshots_expire_with_their_files(lake: CheckedLake) -> None:
    options: dict[str, Any] = {"table_properties": {retention.KEEP: "1"}, "checks": NO_BAD}
    for count in range(1, 5):
        lake.land([record(number) for number in range(count)], **options)
    table = lake.iceberg()
    assert lake.ids() == list(range(4))
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


def test_files_that_somebody_put_on_main_stay_there(lake: CheckedLake) -> None:
    with pytest.raises(ChecksFailed):
        lake.land([record(1)], checks=FEW)
    (branch,) = lake.kept()
    table = lake.iceberg()
    files = [entry for m in branch.snapshot.manifests(table.io) for entry in m.fetch_manifest_entry(table.io)]
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for entry in files:
            append.append_data_file(entry.data_file)
    branches.drop_superseded(lake.catalog(), lake.name, GROUP, None, branch.ranges, None)
    assert (lake.kept(), lake.ids()) == ([], [1])


def test_a_branch_that_somebody_committed_to_stays(lake: CheckedLake) -> None:
    with pytest.raises(ChecksFailed):
        lake.land([record(1)], checks=FEW)
    (branch,) = lake.kept()
    table = lake.iceberg()
    table.append(table.scan(snapshot_id=branch.snapshot.snapshot_id).to_arrow(), branch=branch.name)
    lake.land([record(1)], checks=NO_BAD)
    assert branch.name in lake.iceberg().metadata.refs
    assert lake.ids() == [1]


def test_what_several_tasks_read_is_checked_by_the_one_that_commits(lake: CheckedLake) -> None:
    lake.land(RECORDS[:1])

    def job(records: Sequence[Record]) -> LandingJob:
        return lake.through(lake.catalog(), records, "group")

    records = [*RECORDS, bad(4)]
    folder = folder_of("group")
    plan = plan_shares(job(records), 2, least_width=1)
    pieces = [piece for share in plan.shares for piece in read_share(job(records), share, folder)]
    for _ in range(2):
        # Clearing the commit alone checks the same files again.
        with pytest.raises(ChecksFailed, match=r"given\[0\] offset 3: name=NULL"):
            land_pieces(job(records), pieces, plan.within, folder)
        assert (lake.ids(), len(lake.kept())) == ([1], 1)
    lenient = lake.through(lake.catalog(), records, "group", checks={"not_null": ["id"]})
    land_pieces(lenient, pieces, plan.within, folder)
    assert (sorted(lake.ids()), lake.kept()) == ([1, 2, 3, 4], [])
    assert lake.parquet_files() == {Path(path).name for path in lake.files()}


REPLACE: dict[str, Any] = {"mode": "ranges", "ranges": [[0, 0, 3]], "replace": True}
ANEW = [record(1), record(5), record(6)]


def test_a_replace_that_does_not_pass_leaves_the_rows_as_they_were(lake: CheckedLake) -> None:
    lake.land(RECORDS)
    for _ in range(2):
        with pytest.raises(ChecksFailed, match=r"the rows of given\[0\] \[0,3\) did not pass") as caught:
            lake.land([record(1), bad(5), record(6)], checks=NO_BAD, **REPLACE)
        assert "given[0] offset 1: name=NULL" in str(caught.value)
        (branch,) = lake.kept()
        assert (lake.ids(), lake.landed(), lake.kept_ids()) == ([1, 2, 3], 3, [1, 5, 6])
    # The group's landings go on, and leave the branch for a look.
    lake.land([*RECORDS, record(4)], checks=NO_BAD)
    assert (lake.ids(), lake.kept()) == ([1, 2, 3, 4], [branch])
    report = lake.land([*ANEW, record(4)], checks=NO_BAD, **REPLACE)
    assert (lake.ids(), lake.landed(), lake.kept()) == ([1, 5, 6, 4], 4, [])
    assert len(report.snapshot_ids) == 1
    assert lake.unreferenced() == set()


def test_a_replace_that_would_leave_no_rows_is_checked(lake: CheckedLake) -> None:
    lake.land(RECORDS)
    with pytest.raises(ChecksFailed, match="0 rows, fewer than 1"):
        lake.land([Record(None)] * 3, checks={"row_count": {"min": 1}}, tombstones="skip", **REPLACE)
    assert lake.ids() == [1, 2, 3]


def test_a_replace_is_made_for_the_head_that_it_finds(lake: CheckedLake) -> None:
    lake.land(RECORDS)
    other = before(lambda: lake.land([*RECORDS, record(4)]))
    land(lake.through(FaultyCatalog(lake.catalog(), passed, other), [*ANEW, record(4)], **REPLACE))
    assert (lake.ids(), lake.landed(), lake.kept()) == ([1, 5, 6, 4], 4, [])
    assert lake.unreferenced() == set()


def _die_replacing(folder: str, kind: Callable[..., Any]) -> None:
    lake = CheckedLake(Path(folder))
    land(lake.through(FaultyCatalog(lake.catalog(), passed, kind(kill)), ANEW, **REPLACE))


@pytest.mark.long
@pytest.mark.parametrize(("kind", "by_then"), [(before, [1, 2, 3]), (after, [1, 5, 6])], ids=["before", "after"])
def test_a_replace_killed_between_audit_and_publish(lake: CheckedLake, kind: Callable[..., Any], by_then: Any) -> None:
    lake.land(RECORDS)
    run_until_killed(_die_replacing, str(lake.folder), kind)
    assert lake.ids() == by_then
    land(lake.through(lake.catalog(), ANEW, **REPLACE))
    assert (lake.ids(), lake.landed(), lake.kept()) == ([1, 5, 6], 3, [])
    assert lake.unreferenced() == set()


# Each landing: so many records more, each of them bad or not; and whether the check is on.
LANDINGS = st.lists(st.tuples(st.lists(st.booleans(), max_size=3), st.booleans()), min_size=1, max_size=3)


@pytest.mark.long
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LANDINGS, st.booleans())
def test_main_never_has_a_row_of_a_failed_landing(
    tmp_path_factory: pytest.TempPathFactory, landings: list[tuple[list[bool], bool]], small: bool
) -> None:
    lake = CheckedLake(tmp_path_factory.mktemp("lake"))
    options: dict[str, Any] = {"schema": SCHEMA, "max_batch_bytes": 1 if small else "1MiB"}
    records: list[Record] = []
    are_bad: list[bool] = []
    on_main = 0
    for more, is_checked in landings:
        records += [record(len(records) + at, None if is_bad else "good") for at, is_bad in enumerate(more)]
        are_bad += more
        checks = NO_BAD if is_checked else {"not_null": ["id"]}
        new = are_bad[on_main:]
        stops = is_checked and any(new)
        try:
            land(one_by_one(lake, records, checks=checks, **options))
            assert not stops
            on_main = len(records)
        except ChecksFailed:
            assert stops
            # Commit by commit, up to the bad record; or all at once.
            on_main += new.index(True) if small else 0
        if records:
            assert lake.ids() == list(range(on_main))
            assert lake.landed() == on_main
            assert len(lake.kept()) == stops
    land(one_by_one(lake, records, checks={"unique": ["id"]}, **options))
    if records:
        lake.assert_only(range(len(records)))
