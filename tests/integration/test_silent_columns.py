"""Fields whose names are not quite those of columns, on the real broker: each way to land refuses or names them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from airflow_lakestream.core.column_use import NoFieldHasColumn
from airflow_lakestream.core.names import REJECTED
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.exceptions import Terminal
from airflow_lakestream.run.replay import RejectReplay
from airflow_lakestream.run.summary import last_line
from airflow_lakestream.run.topics import land_run
from airflow_lakestream.watching.streams import delta as delta_streams
from airflow_lakestream.watching.streams.landings import BranchHistory, IcebergStreams
from tests.support.broker import Producing
from tests.support.cdc import change
from tests.support.delta_lake import EACH_FORMAT, DeltaLake
from tests.support.lake import GROUP, TABLE, Lake
from tests.support.lake_reading import one_partition
from tests.support.mirror_lake import MirrorLake
from tests.support.parallel_run import ParallelRun
from tests.support.shared_run import SharedRun

pytestmark = pytest.mark.integration

name = one_partition

SCHEMA = "orderid bigint, name string"


def lost(count: int, start: int = 0) -> list[str]:
    return [f'{{"orderId": {n}}}' for n in range(start, start + count)]


def kept(count: int, start: int = 0, **more: Any) -> list[str]:
    return [json.dumps({"orderid": n, "name": "x", **more}) for n in range(start, start + count)]


def history_of(lake: Lake) -> BranchHistory:
    """Return what `lakestream status` knows of the group's landings."""
    if isinstance(lake, DeltaLake):
        head = DeltaStorage().open(lake.place)
        assert head is not None
        return delta_streams.look_back(head, DeltaStorage().store(lake.place), GROUP)
    return IcebergStreams(lake.table()).history(GROUP)


@EACH_FORMAT
def test_records_of_which_no_field_has_a_column_land_nothing(lake: Lake, name: str, produce: Producing) -> None:
    produce(name, 0, lost(1000))
    with pytest.raises(NoFieldHasColumn, match="'orderid' is almost called as the field 'orderId'") as caught:
        lake.land(name, schema=SCHEMA)
    assert isinstance(caught.value, Terminal)
    assert caught.value.foreign.count == 1000
    assert lake.scan().num_rows == 0
    # The way out that the error names.
    rename = 'SELECT "orderId" AS orderid FROM {{ input }}'
    report = lake.land(name, sql=rename, sql_input="decoded", schema="orderId bigint")
    assert report.counts.written == 1000
    assert lake.column("orderid") == list(range(1000))


@EACH_FORMAT
def test_a_table_that_is_there_keeps_its_rows_and_the_next_run_lands_what_was_refused(
    lake: Lake, name: str, produce: Producing
) -> None:
    produce(name, 0, kept(20))
    lake.land(name, schema=SCHEMA)
    produce(name, 0, lost(20))
    with pytest.raises(NoFieldHasColumn):
        lake.land(name)
    assert lake.offsets() == [(0, n) for n in range(20)]
    report = lake.land(name, unknown_fields="rescue")
    assert report.counts.written == 20
    assert lake.column("_rescued")[-1] == '{"orderId":19}'
    lake.assert_whole()


@EACH_FORMAT
def test_silent_columns_are_in_the_report_the_last_line_and_the_status(
    lake: Lake, name: str, produce: Producing
) -> None:
    schema = "orderid bigint, name string, note string, other string"
    produce(name, 0, kept(20, note="n"))
    config = lake.settings(name, schema=schema)
    first = land_run(config, lake.kafka, lake.catalog(), run_id="one")
    assert first.to_dict()["silent_columns"] == ["other"]
    assert history_of(lake).silent == {"other": ""}

    produce(name, 0, [json.dumps({"orderId": n, "name": "x"}) for n in range(20)])
    second = land_run(config, lake.kafka, lake.catalog(), run_id="two")
    told = ["note", "orderid (the records have a field 'orderId')"]
    assert second.to_dict()["silent_columns"] == told
    assert f"Silent columns, without a value in this run: {', '.join(told)}." in last_line(second, config)
    history = history_of(lake)
    assert history.silent == {"note": "", "orderid": "orderId"}
    assert "silent columns: no record of the last run had a value for note; orderid (" in str(history.reasons(0)[0])
    # A retry of the run finds the same in its snapshot.
    again = land_run(config, lake.kafka, lake.catalog(), run_id="two")
    assert again.recovered == 1
    assert again.to_dict()["silent_columns"] == told

    produce(name, 0, kept(20, note="n", other="o"))
    third = land_run(config, lake.kafka, lake.catalog(), run_id="three")
    assert third.to_dict()["silent_columns"] == []
    assert history_of(lake).silent == {}


def test_columns_that_got_values_before_are_known_from_the_ledger_after_expiry_and_rollback(
    lake: Lake, name: str, produce: Producing
) -> None:
    schema = "a bigint, b bigint, c bigint"
    for values in ([json.dumps({"a": 1, "b": 2})], [json.dumps({"a": 1, "b": 2, "c": 3})]):
        produce(name, 0, values * 20)
        lake.land(name, schema=schema)
    assert lake.ledger().filled == {"a", "b", "c"}
    lake.roll_back(lake.snapshots()[0])
    assert lake.ledger().filled == {"a", "b"}
    report = lake.land(name, schema=schema)
    assert report.to_dict()["silent_columns"] == []
    lake.table().maintenance.expire_snapshots().by_ids(lake.snapshots()[:-1]).commit()
    produce(name, 0, [json.dumps({"a": 1})] * 20)
    assert lake.land(name).to_dict()["silent_columns"] == ["b", "c"]


@EACH_FORMAT
def test_reader_processes_and_a_group_of_tasks_refuse_and_name_alike(lake: Lake, name: str, produce: Producing) -> None:
    produce(name, 0, kept(40))
    lake.land(name, schema=SCHEMA)
    produce(name, 0, lost(40))
    with pytest.raises(NoFieldHasColumn):
        ParallelRun(lake, name).land()
    group = SharedRun(lake, name, {})
    plan = group.plan()
    with pytest.raises(NoFieldHasColumn):
        group.commit(plan, group.read_all(plan))
    assert not group.files()
    assert lake.offsets() == [(0, n) for n in range(40)]
    lake.assert_whole()
    produce(name, 0, [json.dumps({"orderId": n, "name": "x"}) for n in range(40)])
    report = ParallelRun(lake, name).land()
    assert report["silent_columns"] == ["orderid (the records have a field 'orderId')"]


@pytest.mark.parametrize("mirror_lake", ["iceberg", "delta"], indirect=True)
def test_a_column_that_a_mirrors_source_dropped_is_named(
    mirror_lake: MirrorLake, name: str, produce: Producing
) -> None:
    produce(name, 0, [change("c", {"id": n, "v": n, "w": n}, n + 1) for n in range(5)])
    assert mirror_lake.land(name).to_dict()["silent_columns"] == []
    # Of deleted rows the key alone is known.
    produce(name, 0, [change("d", {"id": 0}, 6)])
    assert mirror_lake.land(name).to_dict()["silent_columns"] == []
    produce(name, 0, [change("u", {"id": n, "v": n}, n + 10) for n in range(1, 5)])
    assert mirror_lake.land(name).to_dict()["silent_columns"] == ["w"]
    assert history_of(mirror_lake).silent == {"w": ""}


@EACH_FORMAT
def test_a_replay_is_no_run_of_the_topic_whose_silent_columns_would_alarm(
    lake: Lake, name: str, produce: Producing
) -> None:
    produce(name, 0, [*kept(20), *(json.dumps({"orderid": n, "more": 1}) for n in range(20, 40))])
    lake.land(name, schema=SCHEMA, unknown_fields="fail", max_rejected=1.0)
    landed = history_of(lake)
    opened = DeltaStorage() if isinstance(lake, DeltaLake) else lake.catalog()
    assert RejectReplay(table=lake.name, consumer_group=GROUP).run(opened).counts.written == 20
    assert lake.column("name") == ["x"] * 20 + [None] * 20
    # A replay adds a file, and no landing of the topic.
    assert replace(history_of(lake), files=landed.files) == landed
    assert (landed.silent, len(landed.recent)) == ({}, 1)


def test_rejected_records_that_a_replay_would_make_empty_rows_of_stay_rejected(
    lake: Lake, name: str, produce: Producing
) -> None:
    produce(name, 0, [*kept(30), *lost(12)])
    lake.land(name, schema="orderid bigint not null, name string")
    assert lake.scan(REJECTED).num_rows == 12
    # Somebody takes the requirement for the reason, and the columns for other ones.
    with lake.table().update_schema() as update:
        update.make_column_optional("orderid")
    with pytest.raises(NoFieldHasColumn):
        RejectReplay(table=TABLE, consumer_group=GROUP).run(lake.catalog())
    assert len(lake.counting()) == 12
