"""A topic lands in a Delta table: the promises that hold for Iceberg, on the same broker."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.delta.commit import committing
from airflow_lakestream.exceptions import BadRecord, InvalidArgument
from tests.support.broker import Producing, Topics
from tests.support.delta_lake import DeltaLake, config_of
from tests.support.delta_table import applied, faulty
from tests.support.faults import OnlyPartitions, SmallChunks
from tests.support.lake import Lake, assert_landed_once, events

pytestmark = pytest.mark.integration

EACH = 40
CONFIG = {"max_batch_bytes": 1_300}


ALL = {0: EACH, 1: EACH}


def test_records_land_once_and_a_second_run_lands_nothing(lake: DeltaLake, filled: str) -> None:
    report = lake.land(filled)
    assert_landed_once(lake, filled, ALL)
    assert report.to_dict()["ranges"] == [[0, 0, EACH], [1, 0, EACH]]
    assert report.to_dict()["snapshot_ids"] == ["0"]

    again = lake.land(filled)

    assert lake.committed_offsets(filled) == ALL

    assert (again.counts.read, again.snapshot_ids) == (0, [])
    assert lake.snapshots() == [0]
    assert not lake.stray()


def test_limits_cut_a_run_into_several_versions(lake: DeltaLake, filled: str) -> None:
    job = lake.job(filled, **CONFIG)
    report = land(replace(job, reader=SmallChunks(job.reader, 10)))
    assert report.snapshot_ids == lake.snapshots() == [0, 1]
    assert_landed_once(lake, filled, ALL)


@pytest.mark.parametrize("has_landed", [False, True], ids=["no table yet", "table there"])
@pytest.mark.parametrize("readers", [[[0, 1]] * 3, [[0], [1], [0, 1]]], ids=["same", "overlapping"])
def test_runs_at_once(
    lake: DeltaLake, filled: str, produce: Producing, monkeypatch: pytest.MonkeyPatch, readers: Any, has_landed: bool
) -> None:
    first = EACH if has_landed else 0
    if has_landed:
        lake.land(filled)
        for partition in (0, 1):
            produce(filled, partition, events(partition, EACH, EACH))
    meet(monkeypatch, len(readers))
    jobs = [lake.job(filled, f"run-{n}") for n in range(len(readers))]
    jobs = [replace(job, reader=OnlyPartitions(job.reader, some)) for job, some in zip(jobs, readers, strict=True)]

    with ThreadPoolExecutor(len(jobs)) as pool:
        reports = list(pool.map(land, jobs))

    assert sum(report.counts.written for report in reports) == 2 * EACH
    assert_landed_once(lake, filled, {0: first + EACH, 1: first + EACH})
    assert not lake.stray()


def meet(monkeypatch: pytest.MonkeyPatch, runs: int) -> None:
    """Let each run's first commit wait, all made, until those of the others are there as well: one base for all."""
    barrier, real, seen = threading.Barrier(runs, timeout=60), committing.put_commit, threading.local()

    def put(*request: Any) -> bool:
        if not getattr(seen, "met", False):
            seen.met = True
            barrier.wait()
        return real(*request)

    monkeypatch.setattr(committing, "put_commit", put)


def test_a_commit_that_was_applied_and_reported_as_failed_is_landed_once(
    lake: DeltaLake, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "put_commit", faulty(applied(OSError("connection reset"))))
    report = lake.land(filled)
    assert report.snapshot_ids == lake.snapshots() == [0]
    assert_landed_once(lake, filled, ALL)
    assert not lake.stray()


def kill_at_commit(real: Callable[..., bool], number: int, *, after: bool) -> Callable[..., bool]:
    left = [number]

    def put(store: Any, version: int, actions: Sequence[Mapping[str, Any]]) -> bool:
        left[0] -= 1
        if left[0] == 0 and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        done = real(store, version, actions)
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    return put


def be_killed(made: Mapping[str, Any], topic: str, number: int, after: bool) -> None:
    lake = DeltaLake(Path(made["folder"]), made["kafka"])
    committing.put_commit = kill_at_commit(committing.put_commit, number, after=after)
    job = lake.job(topic, "r", **CONFIG)
    land(replace(job, reader=SmallChunks(job.reader, 10)))


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("after", [False, True], ids=["before the commit", "after the commit"])
def test_a_killed_run_tried_again_lands_every_record_once_and_reports_all(
    lake: DeltaLake, filled: str, number: int, after: bool
) -> None:
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=be_killed, args=(config_of(lake), filled, number, after))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    landed = number if after else number - 1
    assert len(lake.snapshots()) == landed

    report = lake.land(filled, "r", **CONFIG)

    assert_landed_once(lake, filled, ALL)
    assert report.recovered == landed
    assert report.snapshot_ids == lake.snapshots()
    assert report.counts == Counts(2 * EACH, 2 * EACH)
    assert report.to_dict()["ranges"] == [[0, 0, EACH], [1, 0, EACH]]


def test_the_retry_of_a_run_that_landed_all_returns_its_report(lake: DeltaLake, filled: str) -> None:
    first = lake.land(filled, "r")
    assert lake.land(filled, "r").to_dict() == first.to_dict()
    assert lake.snapshots() == [0]


def test_after_a_restore_the_next_run_lands_again_what_went_with_it(
    lake: DeltaLake, filled: str, produce: Producing
) -> None:
    lake.land(filled)
    produce(filled, 0, events(0, EACH, 10))
    lake.land(filled)
    produce(filled, 0, events(0, EACH + 10, 10))
    lake.land(filled)
    DeltaTable(lake.place).restore(0)
    assert_landed_once(lake, filled, ALL)

    report = lake.land(filled)

    assert report.to_dict()["ranges"] == [[0, EACH, EACH + 20]]
    assert_landed_once(lake, filled, {0: EACH + 20, 1: EACH})
    assert DeltaTable(lake.place).to_pyarrow_table().num_rows == 2 * EACH + 20


def test_ranges_out_of_order_are_not_skipped_and_can_be_replaced(lake: DeltaLake, filled: str) -> None:
    for ranges in ([[0, 20, 40]], [[1, 0, 40]], [[0, 0, 20]]):
        lake.land(filled, mode="ranges", ranges=ranges)
    assert_landed_once(lake, filled, ALL)

    report = lake.land(filled, mode="ranges", ranges=[[0, 10, 30]], replace=True)

    assert report.counts == Counts(20, 20)
    assert_landed_once(lake, filled, ALL)
    assert not lake.stray()


def test_bad_records_go_into_a_delta_table_beside(lake: DeltaLake, topic: Topics, produce: Producing) -> None:
    name = topic(1)
    produce(name, 0, [*events(0, 0, 5), "not json", *events(0, 6, 4), '{"id":"x"}'])
    schema = "id bigint, name string, score double"

    report = lake.land(name, schema=schema)

    assert (report.counts.written, report.counts.rejected) == (9, 2)
    assert lake.rejected("_kafka_offset", "value", "consumer_group") == [
        (5, b"not json", "g"),
        (10, b'{"id":"x"}', "g"),
    ]
    # Landed again after a RESTORE to before, they are there once.
    produce(name, 0, ["bad again"])
    lake.land(name, schema=schema)
    DeltaTable(lake.place).restore(0)
    lake.land(name, schema=schema)
    lake.land(name, schema=schema)
    assert [offset for (offset,) in lake.rejected("_kafka_offset")] == [5, 10, 11]


def test_rejected_records_are_replaced_with_their_ranges(lake: DeltaLake, topic: Topics, produce: Producing) -> None:
    name = topic(1)
    produce(name, 0, ['{"id":1,"name":"a"}', '{"id":2.5,"name":"b"}', '{"id":3,"name":"c"}'])
    lake.land(name, schema="id bigint, name string")
    assert [offset for (offset,) in lake.rejected("_kafka_offset")] == [1]

    again = {"mode": "ranges", "ranges": [[0, 0, 3]], "replace": True}
    lake.land(name, schema="id bigint, name string", sql="SELECT 7 AS id, 'b' AS name FROM {{ input }}", **again)

    assert lake.rejected("_kafka_offset") == []
    entry = next(iter(lake.ledger().topics.values()))
    assert entry.counts == Counts(3, 3)
    assert lake.all_rows()["id"].to_pylist() == [7, 7, 7]


def test_a_commit_that_came_to_nothing_leaves_no_rejected_record_that_counts(
    lake: DeltaLake, topic: Topics, produce: Producing, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(1)
    produce(name, 0, [*events(0, 0, 5), "not json"])
    real = committing.put_commit

    def down(store: Any, version: int, actions: Sequence[Mapping[str, Any]]) -> bool:
        if not any("rejects.pending" in str(action) for action in actions):
            raise OSError("down")
        return real(store, version, actions)

    monkeypatch.setattr(committing, "put_commit", down)
    monkeypatch.setattr(committing, "RETRY_PAUSE", 0)
    with pytest.raises(committing.CommitOutcomeUnknown):
        lake.land(name)
    monkeypatch.undo()
    lake.land(name)
    # The next look finds the note of the first try, whose offsets another landing has.
    lake.land(name)
    assert [offset for (offset,) in lake.rejected("_kafka_offset")] == [5]


def test_max_rejected_fails_the_run_and_leaves_nothing(lake: DeltaLake, topic: Topics, produce: Producing) -> None:
    name = topic(1)
    produce(name, 0, ["bad"] * 3)
    with pytest.raises(Exception, match="max_rejected"):
        lake.land(name, schema="id bigint", max_rejected=2)
    assert not Path(lake.place).exists()
    with pytest.raises(BadRecord):
        lake.land(name, schema="id bigint", on_error="fail")


def test_new_fields_become_columns_in_the_commit_of_their_rows(
    lake: DeltaLake, topic: Topics, produce: Producing
) -> None:
    name = topic(1)
    produce(name, 0, ['{"id":1,"place":{"city":"Ulm"}}'])
    lake.land(name, unknown_fields="evolve", schema_evolution="add")
    produce(name, 0, ['{"id":2,"place":{"city":"Bonn","zip":"53111"},"more":true}', '{"id":3}'])

    report = lake.land(name, unknown_fields="evolve", schema_evolution="add")

    assert report.schema_changes == ["add column place.zip string", "add column more boolean"]
    found = DeltaTable(lake.place).to_pyarrow_table().sort_by("id")
    assert found["more"].to_pylist() == [None, True, None]
    assert found["place"].to_pylist() == [
        {"city": "Ulm", "zip": None},
        {"city": "Bonn", "zip": "53111"},
        None,
    ]
    assert lake.snapshots() == [0, 1]


MIXED = [
    '{"id":1,"at":"2026-01-02T03:04:05.678901Z","price":"12.50","tags":["a",null],"place":{"lat":1.5},"by":"x"}',
    '{"id":2,"at":"1969-12-31T23:59:59.999999+02:00","price":"-0.01","tags":[],"place":null,"by":null}',
    '{"id":null,"at":null,"price":null,"tags":null,"place":{"lat":null},"by":"ü\\u0000z"}',
    '{"id":9223372036854775807,"day":"2026-02-03","raw":"AAEC","flag":true}',
    '{"id":1.5}',
    '{"id":9223372036854775808}',
    "null",
    "[1]",
    "",
    '{"id":4,"price":"1.234"}',
]
WIDE = (
    "id bigint, at timestamp, price decimal(10,2), tags array<string>, place struct<lat: double>, by string, "
    "day date, raw binary, flag boolean, local timestamp_ntz"
)


def test_the_same_records_give_the_same_rows_and_rejects_as_in_iceberg(
    lake: DeltaLake, topic: Topics, produce: Producing, tmp_path: Path
) -> None:
    name = topic(1)
    produce(name, 0, MIXED)
    columns = ["topic", "partition", "offset", "timestamp", "key", "headers"]
    iceberg = Lake(tmp_path, lake.kafka)

    delta_report = lake.land(name, schema=WIDE, metadata_columns=columns)
    iceberg_report = iceberg.land(name, schema=WIDE, metadata_columns=columns)

    assert delta_report.counts == iceberg_report.counts
    there = iceberg.table().scan().to_arrow().sort_by("_kafka_offset")
    here = DeltaTable(lake.place).to_pyarrow_table().sort_by("_kafka_offset")
    assert here.column_names == there.column_names
    for column in there.column_names:
        # PyIceberg reads a null list of structs as an empty one.
        assert [one or None for one in here[column].to_pylist()] == [one or None for one in there[column].to_pylist()]
    rejects = iceberg.table("lake.events__rejected").scan().to_arrow().sort_by("_kafka_offset")
    own = ("value", "stage", "error", "_kafka_offset", "_kafka_headers")
    theirs = zip(*(rejects[name].to_pylist() for name in own), strict=True)
    assert [(*row[:-1], row[-1] or None) for row in lake.rejected(*own)] == [
        (*row[:-1], row[-1] or None) for row in theirs
    ]


def test_partitioned_and_sorted(lake: DeltaLake, topic: Topics, produce: Producing) -> None:
    name = topic(1)
    produce(name, 0, [f'{{"id":{n},"kind":{k}}}' for n, k in [(3, '"a"'), (1, '"b"'), (2, '"a"'), (4, "null")]])
    lake.land(name, schema="id bigint, kind string", partition_by=["kind"], sort_order=["id desc"])
    found = DeltaTable(lake.place).to_pyarrow_table()
    assert sorted(zip(found["id"].to_pylist(), found["kind"].to_pylist(), strict=True)) == [
        (1, "b"),
        (2, "a"),
        (3, "a"),
        (4, None),
    ]
    only = DeltaTable(lake.place).to_pyarrow_table(filters=[("kind", "=", "a")])
    assert only["id"].to_pylist() == [3, 2]


@pytest.mark.parametrize(
    ("settings", "argument"),
    [
        ({"partition_by": ["day(at)"]}, "partition_by"),
        ({"schema_evolution": "widen"}, "schema_evolution"),
        ({"table_properties": {"delta.columnMapping.mode": "name"}}, "table_properties"),
        ({"table_properties": {"lakestream.ledger.g": "x"}}, "table_properties"),
        ({"table": "lake.events"}, "table"),
        ({"table": "/lake/{topic}"}, "table"),
        ({"table": "/lake/{field}"}, "table"),
        ({"home_table": "lake.home"}, "home_table"),
        ({"schema": "id bigint, at time"}, "schema"),
        ({"schema": "id bigint, who uuid"}, "schema"),
        ({"schema": "id bigint, `two words` string"}, "schema"),
        ({"schema": "id bigint", "partition_by": ["nope"]}, "partition_by"),
        ({"schema": "id bigint", "sort_order": ["bucket(4, id)"]}, "sort_order"),
        ({"table_format": "hudi"}, "table_format"),
    ],
)
def test_what_a_delta_table_can_not_have_is_refused_by_name(
    lake: DeltaLake, filled: str, settings: dict[str, Any], argument: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        lake.land(filled, **settings)
    assert caught.value.argument == argument
    assert not Path(lake.place).exists()
