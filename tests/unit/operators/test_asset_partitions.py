"""AssetPartitionsOperator: what it refuses where the DAG is parsed, and what it knows of what was told."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import Asset, AssetAlias

from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import AirflowTooOld, InvalidArgument, UnknownValue
from airflow_lakestream.operators import asset_partitions
from airflow_lakestream.operators.asset_partitions import AssetPartitionsOperator
from airflow_lakestream.watching.partition_emission import EmittedPartitions

GIVEN = {"task_id": "tell", "table": "lake.clicks", "since": "2026-01-01T00:00:00Z"}
NAME = "lake.clicks/g/hour"


def test_its_asset_is_the_tables_unless_another_is_given() -> None:
    task = AssetPartitionsOperator(**GIVEN)
    assert [one.uri for one in task.outlets] == ["iceberg://lake/clicks", "lakestream://told/lake.clicks"]
    assert task.inlets == task.outlets[1:]
    assert task.max_active_tis_per_dag == 1
    hours, other = Asset("hours"), Asset("other")
    task = AssetPartitionsOperator(**GIVEN, outlets=hours, inlets=[other])
    assert (task.outlets[0], task.inlets) == (hours, [other, task.outlets[1]])


def test_times_are_taken_as_objects_too() -> None:
    more: dict[str, Any] = {"since": datetime(2026, 1, 1, tzinfo=UTC), "idle_after": timedelta(minutes=5)}
    task = AssetPartitionsOperator(**{**GIVEN, **more})
    assert (task.since, task.idle_after) == ("2026-01-01T00:00:00+00:00", 300.0)


@pytest.mark.parametrize(
    ("wrong", "argument"),
    [
        ({"table": "nowhere"}, "table"),
        ({"table": "s3://bucket/clicks"}, "table"),
        ({"table": "{{ params.table }}"}, "outlets"),
        ({"outlets": [Asset("a"), Asset("b")]}, "outlets"),
        ({"outlets": [AssetAlias("a")]}, "outlets"),
        ({"since": "soon"}, "since"),
        ({"idle_after": "long"}, "idle_after"),
        ({"consumer_group": "a b\n"}, "consumer_group"),
        ({"max_active_tis_per_dag": 2}, "max_active_tis_per_dag"),
    ],
    ids=["table", "delta", "template", "two", "alias", "since", "idle_after", "group", "parallel"],
)
def test_what_can_not_work_is_refused_where_the_dag_is_parsed(wrong: dict[str, Any], argument: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{argument}"):
        AssetPartitionsOperator(**{**GIVEN, **wrong})


def test_other_lengths_are_refused() -> None:
    with pytest.raises(UnknownValue, match="every"):
        AssetPartitionsOperator(**GIVEN, every="minute")


def test_an_older_airflow_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asset_partitions, "AIRFLOW_V_3_3_PLUS", False)
    with pytest.raises(AirflowTooOld, match=r"needs Airflow 3\.3 .* IcebergSnapshotFreshnessSensor"):
        AssetPartitionsOperator(**GIVEN)


class Event:
    def __init__(self, at: datetime, extra: dict[str, Any] | None) -> None:
        self.timestamp, self.extra = at, extra


class Events:
    """An asset's events, asked for as Airflow's accessor is."""

    def __init__(self, events: list[Event]) -> None:
        self.events = events

    def ascending(self, rising: bool) -> Events:
        assert not rising
        return Events(sorted(self.events, key=lambda one: one.timestamp, reverse=True))

    def after(self, at: str) -> Events:
        return Events([one for one in self.events if one.timestamp >= datetime.fromisoformat(at)])

    def limit(self, most: int) -> Events:
        return Events(self.events[:most])

    def __iter__(self) -> Any:
        return iter(self.events)


class World:
    """Airflow's memory of one asset, and the task that asks it."""

    def __init__(self) -> None:
        self.task = AssetPartitionsOperator(**GIVEN)
        self.events: list[Event] = []
        self.kept: dict[str, Any] = {}
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def told(self, name: str = NAME) -> EmittedPartitions:
        return self.task._emitted({"asset_state_store": {self._asset: self}, "inlet_events": self}, name)

    @property
    def _asset(self) -> Asset:
        return self.task.outlets[1]

    def __getitem__(self, asset: Asset) -> Events:
        assert asset == self._asset
        return Events(list(self.events))

    def get(self, key: str) -> Any:
        return json.loads(json.dumps(self.kept.get(key)))

    def set(self, key: str, value: Any) -> None:
        self.kept[key] = value

    def store(self, extra: dict[str, Any] | None, times: int = 1) -> None:
        for _ in range(times):
            self.now += timedelta(seconds=1)
            self.events.append(Event(self.now, extra))


@pytest.mark.parametrize("seed", range(20))
def test_the_newest_telling_is_known_whatever_else_is_told_of_the_asset_or_forgotten(seed: int) -> None:
    rng, world, truth = random.Random(seed), World(), EmittedPartitions()
    for _ in range(40):
        assert world.told() == truth
        step = rng.choice(["tell", "tell", "other", "state lost", "events cleaned"])
        if step == "tell":
            start = truth.number * 3_600_000
            landed = {("clicks", "id"): RangeSet.of("clicks", 0, 0, truth.number + 1)}
            truth = EmittedPartitions(truth.number + 1, ((start, start + 3_600_000),), landed, {5: truth.number})
            world.store({"lakestream_partitions": {"name": NAME, **truth.to_json()}}, rng.randint(1, 3))
        elif step == "other":
            strange = rng.choice([None, {"rows": 5}, {"lakestream_partitions": {"name": "lake.t/g/day", "number": 99}}])
            world.store(strange, rng.randint(1, 30))
        elif step == "state lost":
            # Airflow forgets the state of an asset that no DAG has any more.
            world.kept.clear()
        elif world.kept:
            # `airflow db clean` removes old events; what a run has seen stays known.
            world.told()
            world.events.clear()
            assert world.told() == truth
            world.store({"lakestream_partitions": {"name": NAME, **truth.to_json()}} if truth.number else None)


def test_tables_with_long_names_that_begin_alike_keep_what_was_told_apart() -> None:
    world, told = World(), EmittedPartitions(1, ((0, 3_600_000),))
    one, other = (f"{'namespace.' * 60}{table}/g/hour" for table in ("clicks", "orders"))
    world.store({"lakestream_partitions": {"name": one, **told.to_json()}})
    assert (world.told(one), world.told(other)) == (told, EmittedPartitions())
