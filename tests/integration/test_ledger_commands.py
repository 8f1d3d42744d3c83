"""`lakestream plan` and `lakestream ledger ...` against a real broker and a real catalog."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_lakestream.cli.app import run
from airflow_lakestream.core.landing import land
from airflow_lakestream.core.ledger import Ledger
from airflow_lakestream.core.report import LandingReport
from airflow_lakestream.extract import ExtractConfig, build_job
from airflow_lakestream.iceberg.ledger_store import read_ledger
from dev.services.kafka import Kafka
from tests.support.airflow_home import Connections
from tests.support.broker import Producing, Topics
from tests.support.lake_reading import numbers

pytestmark = pytest.mark.integration

TABLE, GROUP = "lake.t", "g"
ON = ("--table", TABLE, "--group", GROUP)

Land = Callable[..., LandingReport]
Told = Callable[..., tuple[int, str]]


@pytest.fixture
def land_it(connections: Connections, kafka: Kafka) -> Land:
    def go(topic: str, run_id: str = "", group: str = GROUP, **options: Any) -> LandingReport:
        config = ExtractConfig(topic=topic, table=TABLE, consumer_group=group, **options)
        return land(build_job(config, kafka.client_config(), connections.catalog, run_id=run_id or group))

    return go


@pytest.fixture
def landed(topic: Topics, produce: Producing, land_it: Land) -> str:
    """Give a topic of two partitions with 20 and 5 records, landed by the runs r1 and r2."""
    name = topic(partitions=2)
    produce(name, 0, numbers(20))
    land_it(name, "r1")
    produce(name, 1, numbers(5))
    land_it(name, "r2")
    return name


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """Give `told(*arguments)`: the exit code and what was printed, errors included."""

    def go(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = run(arguments)
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return go


def ledger(connections: Connections, group: str = GROUP) -> Ledger:
    return read_ledger(connections.catalog.load_table(TABLE), group)


def offsets(connections: Connections) -> list[tuple[int, int]]:
    rows = connections.catalog.load_table(TABLE).scan().to_arrow()
    return sorted(zip(rows["_kafka_partition"].to_pylist(), rows["_kafka_offset"].to_pylist(), strict=True))


# plan


def test_a_plan_says_what_the_next_run_lands_and_writes_nothing(
    connections: Connections, landed: str, produce: Producing, land_it: Land, told: Told
) -> None:
    produce(landed, 0, ['{"n": 1}'] * 1500)
    before = connections.catalog.load_table(TABLE).metadata_location

    code, text = told("plan", *ON, "--topic", landed, "--max-batch-bytes", "4000", "--json")

    plan = json.loads(text)
    assert code == 0
    assert plan["ranges"] == [[0, 20, 1520]]
    assert plan["records_at_most"] == 1500
    assert (plan["bytes_estimated"], plan["offsets_sampled"]) == (1500 * len('{"n": 1}'), 500)
    assert plan["commits_at_least"] == 3
    assert f"{landed}[0] [20,1520): 1500 offsets" in told("plan", *ON, "--topic", landed)[1]
    assert connections.catalog.load_table(TABLE).metadata_location == before
    assert land_it(landed, "r3").to_dict()["ranges"] == plan["ranges"]
    assert "nothing to do" in told("plan", *ON, "--topic", landed)[1]


def test_a_plan_for_a_table_that_is_not_there_says_where_it_begins(
    connections: Connections, topic: Topics, produce: Producing, told: Told
) -> None:
    name = topic(partitions=1)
    produce(name, 0, numbers(4))
    code, text = told("plan", *ON, "--topic", name, "--max-records", "3", "--json")
    plan = json.loads(text)
    assert (code, plan["ranges"], plan["origin"], plan["records_at_most"]) == (0, [[0, 0, 4]], {"0": 0}, 3)
    assert connections.catalog.list_namespaces() == []


def test_a_plan_fails_as_the_run_would(
    connections: Connections, landed: str, produce: Producing, admin: AdminClient, told: Told
) -> None:
    produce(landed, 0, numbers(10))
    admin.delete_records([TopicPartition(landed, 0, 25)])[TopicPartition(landed, 0, 25)].result(30)

    code, text = told("plan", *ON, "--topic", landed)
    assert code == 2
    assert f"{landed}[0] [20,25)" in text
    assert told("plan", *ON, "--topic", "no-such-topic")[0] == 2
    assert told("plan", *ON, "--topic", landed, "--start-offset", "then")[0] == 2

    code, text = told("plan", *ON, "--topic", landed, "--on-data-loss", "record", "--json")
    assert (code, json.loads(text)["lost"]) == (0, [[0, 20, 25]])


# show, history


def test_show_prints_the_ledger(connections: Connections, landed: str, told: Told) -> None:
    code, text = told("ledger", "show", *ON)
    assert code == 0
    for line in (f"topic {landed}, id ", "25 records read, 25 rows", "[0] from 0:", "landed [0,20)", "landed [0,5)"):
        assert line in text
    code, text = told("ledger", "show", *ON, "--json")
    [entry] = json.loads(text)["topics"]
    assert (code, entry["topic"], entry["landed"]) == (0, landed, [[0, 0, 20], [1, 0, 5]])
    assert (entry["origin"], entry["counts"]["written"]) == ({"0": 0, "1": 0}, 25)

    assert told("ledger", "show", "--table", TABLE, "--group", "nobody")[0] == 2


def test_history_says_which_landing_wrote_which_file(connections: Connections, landed: str, told: Told) -> None:
    code, text = told("ledger", "history", *ON, "--json")
    newest, oldest = json.loads(text)
    table = connections.catalog.load_table(TABLE)
    files = {task.file.record_count: task.file.file_path for task in table.scan().plan_files()}
    assert code == 0
    assert (newest["run_id"], newest["files"]) == ("r2", [files[5]])
    assert (oldest["run_id"], oldest["files"]) == ("r1", [files[20]])
    assert newest["snapshot_id"] == str(table.current_snapshot().snapshot_id)
    assert newest["topics"][0]["landed"] == [[1, 0, 5]]

    table.maintenance.expire_snapshots().by_id(int(oldest["snapshot_id"])).commit()

    code, text = told("ledger", "history", *ON)
    assert code == 0
    assert "run r1: 20 rows" in text
    assert "its snapshot has expired" in text
    assert files[5] in text
    assert files[20] not in text
