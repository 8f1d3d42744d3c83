"""Rejected records land again after a fix: once each, from the reject table, whatever became of the topic."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_lakestream.cli.app import run as command
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.iceberg.commit.committing import CommitOutcomeUnknown
from airflow_lakestream.iceberg.reject_table import pending_in
from airflow_lakestream.run.job import build_job
from airflow_lakestream.run.replay import CannotReplay, RejectReplay, RejectSelection, ReplayResult
from airflow_lakestream.tables.rejects.settlement import rejects_of
from dev.services.kafka import Kafka
from tests.integration.test_rejects import FailingMain
from tests.support.airflow_home import Connections
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.delta_lake import EACH_FORMAT, DeltaLake
from tests.support.faults import before, passed
from tests.support.lake import GROUP, TABLE, Lake
from tests.support.lake_reading import at

pytestmark = pytest.mark.integration

# With unknown_fields="fail" 1, 3 and 4 are bad; with "ignore" only 3 is.
VALUES = ['{"n": 0}', '{"n": 1, "x": 1}', '{"n": 2}', "broken", '{"n": 4, "y": 1}']


@pytest.fixture
def name(lake: Lake, topic: Topics, produce: Producing) -> str:
    """Give a topic whose records 1, 3 and 4 are rejected; Kafka has it no more."""
    # The records are years old by their timestamps.
    made = topic(partitions=1, retention_ms=-1)
    keys = [f"k{n}".encode() for n in range(5)]
    produce(made, 0, VALUES, keys=keys, headers=[("h", b"1")], timestamps=[1_700_000_000_000 + n for n in range(5)])
    metadata = ["topic", "partition", "offset", "timestamp", "key", "headers"]
    lake.land(made, schema="n bigint", unknown_fields="fail", metadata_columns=metadata)
    topic.delete(made)
    return made


def replay(catalog: Any, *chosen: Any, **decoding: Any) -> Counts:
    return (
        RejectReplay(table=TABLE, consumer_group=GROUP, chosen=RejectSelection(*chosen), decoding=decoding)
        .run(catalog)
        .counts
    )


def rejected(lake: Lake) -> dict[int, str]:
    """Return the reason by offset of all that stands in the reject table and counts; nothing else may stand there."""
    found = lake.counting()
    reasons = {row["_kafka_offset"]: row["error"] for row in found}
    assert len(reasons) == len(found)
    return reasons


@pytest.mark.parametrize(("kind", "named"), [("CreateTime", "create_time"), ("LogAppendTime", "log_append_time")])
def test_the_type_of_a_timestamp_lands_and_a_reject_table_has_not_kept_it(
    lake: Lake, topic: Topics, produce: Producing, kind: str, named: str
) -> None:
    name = topic(partitions=1, message_timestamp_type=kind)
    produce(name, 0, VALUES[:3])
    metadata = ["topic", "partition", "offset", "timestamp_type"]
    lake.land(name, schema="n bigint", unknown_fields="fail", metadata_columns=metadata)
    assert lake.column("_kafka_timestamp_type") == [named, named]
    assert replay(lake.catalog()).written == 1
    assert lake.column("_kafka_timestamp_type") == [named, None, named]


def test_what_fits_now_is_a_row_and_the_rest_stays_with_its_new_reason(lake: Lake, name: str) -> None:
    before = rejected(lake)
    assert sorted(before) == [1, 3, 4]

    assert replay(lake.catalog()) == Counts(read=3, written=2, rejected=1)

    assert lake.offsets() == at(0, [0, 1, 2, 4])
    assert lake.column("n") == [0, 1, 2, 4]
    again = lake.records()[1]
    assert (again["_kafka_key"], again["_kafka_timestamp"].timestamp()) == (b"k1", 1_700_000_000.001)
    assert again["_kafka_headers"] == [{"key": "h", "value": b"1"}]
    assert list(rejected(lake)) == [3]
    assert lake.entry(name).counts == Counts(read=5, written=4, rejected=1)
    assert lake.landed(name) == {0: [(0, 5)]}
    # Superseded ones are gone for good, not only left out.
    assert lake.table(rejects_of(TABLE)).scan().to_arrow().num_rows == 1

    assert replay(lake.catalog()) == Counts(read=1, rejected=1)
    assert lake.offsets() == at(0, [0, 1, 2, 4])
    assert lake.entry(name).counts == Counts(read=5, written=4, rejected=1)


@EACH_FORMAT
def test_a_replay_commits_only_rows_and_new_reasons(lake: Lake, topic_of: TopicOf) -> None:
    lake.land(topic_of(VALUES), schema="n bigint", unknown_fields="fail")
    landed, stored = lake.snapshots(), lake.counting()
    opened = DeltaStorage() if isinstance(lake, DeltaLake) else lake.catalog()

    def again(**decoding: Any) -> ReplayResult:
        return RejectReplay(table=lake.name, consumer_group=GROUP, decoding=decoding).run(opened)

    same = again(unknown_fields="fail")
    assert (same.counts, same.snapshot_ids) == (Counts(read=3, rejected=3), ())
    assert "Nothing was committed: each of them is bad as before." in same.note
    assert (lake.snapshots(), lake.counting()) == (landed, stored)

    other = again(format="csv")
    assert (other.counts, len(other.snapshot_ids), other.note) == (Counts(read=3, rejected=3), 1, "")
    reasons = {row["_kafka_offset"]: row["error"] for row in lake.counting()}
    assert sorted(reasons) == [1, 3, 4]
    assert not set(reasons.values()) & {row["error"] for row in stored}

    assert again().counts == Counts(read=3, written=2, rejected=1)
    assert lake.column("n") == [0, 1, 2, 4]


@pytest.mark.parametrize(
    ("chosen", "taken"),
    [
        ((None, "x", None), [1]),
        (("decode", None, None), [1, 4]),
        (("route", None, None), []),
        ((None, None, 1), [1]),
        ((None, "nothing like that", None), []),
    ],
)
def test_only_the_chosen_ones(lake: Lake, name: str, chosen: tuple[Any, ...], taken: list[int]) -> None:
    reasons = rejected(lake)
    replay(lake.catalog(), *chosen)
    assert [offset for _, offset in lake.offsets()] == sorted({0, 2, *taken})
    left = rejected(lake)
    assert sorted(left) == sorted({1, 3, 4} - set(taken))
    if chosen[0] is None and chosen[1] is not None:
        assert left == {offset: reason for offset, reason in reasons.items() if offset in left}


@pytest.mark.parametrize("applies", [False, True])
def test_a_replay_that_ends_between_the_two_commits(lake: Lake, name: str, applies: bool) -> None:
    with pytest.raises(CommitOutcomeUnknown):
        replay(FailingMain(lake.catalog(), applies=applies))
    assert lake.offsets() == at(0, [0, 1, 2, 4] if applies else [0, 2])
    assert sorted(rejected(lake)) == ([3] if applies else [1, 3, 4])

    replay(lake.catalog())
    assert lake.offsets() == at(0, [0, 1, 2, 4])
    assert sorted(rejected(lake)) == [3]
    assert lake.entry(name).counts == Counts(read=5, written=4, rejected=1)


@pytest.mark.parametrize("commits", [0, 1], ids=["before the reject table's commit", "before the table's"])
def test_two_replays_at_once(lake: Lake, name: str, commits: int) -> None:
    other: list[Counts] = []
    meanwhile = before(lambda: other.append(replay(lake.catalog())))
    replay(lake.failing(*[passed] * commits, meanwhile))
    assert other == [Counts(read=3, written=2, rejected=1)]
    assert lake.offsets() == at(0, [0, 1, 2, 4])
    assert sorted(rejected(lake)) == [3]
    assert lake.entry(name).counts == Counts(read=5, written=4, rejected=1)


def test_a_new_column_by_the_way(lake: Lake, name: str) -> None:
    assert replay(lake.catalog(), schema="n bigint, x int, y int", schema_evolution="add").written == 2
    assert lake.column("x") == [None, 1, None, None]
    assert lake.column("y") == [None, None, None, 1]


def test_a_group_that_was_renamed_keeps_its_rejected_records(
    connections: Connections, landed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["ledger", "rename", "--table", TABLE, "--group", GROUP, "--to", "second"]) == 0
    assert command(["ledger", "rename", "--table", TABLE, "--group", "second", "--to", "third"]) == 0
    capsys.readouterr()
    for group, count in ((GROUP, 0), ("second", 0), ("third", 5)):
        assert command(["rejects", "show", "--table", TABLE, "--group", group, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["rejected"] == count
    assert command(["audit", "--table", TABLE, "--group", "third", "--full"]) == 0
    assert command(["rejects", "replay", "--table", TABLE, "--group", "third"]) == 0
    assert command(["audit", "--table", TABLE, "--group", "third", "--full"]) == 0
    assert connections.catalog.load_table(rejects_of(TABLE)).scan().to_arrow().num_rows == 3


def test_a_fan_out_is_refused(lake: Lake, topic_of: TopicOf) -> None:
    made = topic_of(['{"n": 1, "kind": "a"}', "broken"])
    settings = {"table": "lake.{kind}", "home_table": "lake.home", "new_tables": "create"}
    lake.land(made, schema="n bigint, kind string", **settings)
    with pytest.raises(CannotReplay, match="fan-out"):
        RejectReplay(table="lake.home", consumer_group=GROUP).run(lake.catalog())


# The commands


@pytest.fixture
def landed(connections: Connections, kafka: Kafka, topic_of: TopicOf) -> str:
    made = topic_of([*VALUES, '{"n": "six"}', '{"n": "seven"}'])
    config = ExtractConfig(topic=made, table=TABLE, consumer_group=GROUP, schema="n bigint", unknown_fields="fail")
    land(build_job(config, kafka.client_config(), connections.catalog, run_id="the-run"))
    return made


def test_show_and_replay(connections: Connections, landed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["rejects", "show", "--table", TABLE]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{TABLE}: 5 rejected records\n")
    assert f"{landed}[0] offset 3: " in text

    assert command(["rejects", "show", "--table", TABLE, "--group", GROUP, "--limit", "1", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["rejected"] == 5
    # Those that differ in the value only are of one kind.
    assert max(one["records"] for one in shown["reasons"]) == 2
    assert {len(one["examples"]) for one in shown["reasons"]} == {1}
    [broken] = [e for one in shown["reasons"] for e in one["examples"] if e["offset"] == 3]
    assert (broken["value"], broken["run_id"]) == ("broken", "the-run")
    assert command(["rejects", "show", "--table", TABLE, "--group", "nobody", "--json"]) == 2
    assert f"Groups with a ledger there: {GROUP}." in capsys.readouterr().err

    options = ["rejects", "replay", "--table", TABLE, "--group", GROUP]
    assert command([*options, "--reason", "x", "--unknown-fields", "ignore", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["replayed"], done["still_rejected"]) == (done["rows"] + done["still_rejected"], done["still_rejected"])
    assert done["rows"] >= 1
    assert command(options) == 0
    assert "records replayed: " in capsys.readouterr().out
    offsets = connections.catalog.load_table(TABLE).scan().to_arrow()["_kafka_offset"].to_pylist()
    assert sorted(offsets) == [0, 1, 2, 4]
    assert len(pending_in(connections.catalog.load_table(rejects_of(TABLE)))) <= 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["replay", "--table", TABLE, "--group", GROUP, "--limit", "0"], "--limit"),
        (["replay", "--table", TABLE, "--group", GROUP, "--format", "xml"], "format"),
        (["show", "--table", "lake.none"], "lake.none"),
    ],
)
def test_wrong_arguments_are_one_line(
    connections: Connections, landed: str, capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    assert command(["rejects", *arguments]) == 2
    assert problem in capsys.readouterr().err


def test_the_command_takes_what_says_how_records_are_decoded(
    connections: Connections, kafka: Kafka, topic_of: TopicOf
) -> None:
    made = topic_of(["a;1", "b;2"])
    # The wrong delimiter.
    config = {"topic": made, "table": TABLE, "consumer_group": GROUP, "format": "csv", "max_rejected": 1.0}
    given = ExtractConfig(**config, schema="name string, n bigint")
    land(build_job(given, kafka.client_config(), connections.catalog, run_id="the-run"))

    replaying = ["rejects", "replay", "--table", TABLE, "--group", GROUP, "--format", "csv"]
    assert command([*replaying, "--csv-delimiter", ";", "--schema", "n bigint, name string"]) == 0
    assert connections.catalog.load_table(TABLE).scan().count() == 0
    assert command([*replaying, "--csv-delimiter", ";"]) == 0
    rows = connections.catalog.load_table(TABLE).scan().to_arrow().sort_by("n")
    assert rows.select(["name", "n"]).to_pylist() == [{"name": "a", "n": 1}, {"name": "b", "n": 2}]
    # An option that goes with no such format is refused, whatever its name.
    assert command(["rejects", "replay", "--table", TABLE, "--group", GROUP, "--writer-schemas", "{}"]) == 2
