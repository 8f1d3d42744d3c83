"""What the page of streams says of real runs is what the ledger has, and what the sensors have seen."""

from __future__ import annotations

from typing import Any

import pytest

from dev.sources.clickstream import produce_clickstream
from tests.support.airflow_home import DAGS, AirflowHome, Connections

DAG = "clickstream_to_lake"


TABLE = "lake.page_clicks"


def shown(dag_id: str = DAG, table: str = TABLE) -> dict[str, Any]:
    """Return the stream of the DAG in a table, as the page has it."""
    from airflow.utils.session import create_session

    from airflow_lakestream.ui.page.streams import StreamsPage

    readable = {dag_id, "supervise_lakestream"}
    with create_session() as session:
        hours = [one for one in StreamsPage().hours(session, readable)["streams"] if one["dag_id"] == dag_id]
        found = StreamsPage().one(session, (dag_id, "land"), readable, table)
    assert found is not None
    return {**found, "hours": next((one["rows"] for one in hours if one["table"] == table), [])}


def unpause(dag_id: str = DAG) -> None:
    """Switch the DAG on, as a person does."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import update

    with create_session() as session:
        session.execute(update(DagModel).where(DagModel.dag_id == dag_id).values(is_paused=False))


@pytest.mark.integration
def test_the_page_has_the_numbers_of_the_ledger_and_of_the_sensors(
    airflow: AirflowHome, connections: Connections, kafka: Any, topic: Any
) -> None:
    from airflow_lakestream.iceberg.ledger_store import read_ledger

    name, table = topic(), TABLE
    # `dag.test()` keeps what the run before was given.
    conf = {"topic": name, "table": table, "max_records": None}
    dag = airflow.dag(DAGS / f"{DAG}.py")

    # Landing, bit by bit: what the limit leaves is told. It is young, so that the stream is not behind.
    produce_clickstream(kafka.client_config(), name, count=300, rate=0)
    first = airflow.run(dag, {**conf, "max_records": 100})
    unpause()
    one = shown()
    assert (one["topic"], one["table"], one["consumer_group"], one["state"]) == (name, table, DAG, "landing")
    assert (one["landing"]["run_id"], one["landing"]["rows"]) == (first.run_id, first.task().xcom["rows"])
    assert one["landing"]["lag"] == first.task().xcom["remaining_lag"] > 0
    hours = sum(one["hours"])

    second = airflow.run(dag, conf)
    one = shown()
    assert (one["state"], one["landing"]["lag"]) == ("landing", 0)
    ledger = read_ledger(connections.catalog.load_table(table), DAG)
    # Other tests of this Airflow have run the bundled DAG, too.
    rows = {landing["run_id"]: landing["rows"] for landing in one["landings"]}
    assert rows[first.run_id] + rows[second.run_id] == 300
    assert sum(one["hours"]) - hours == rows[second.run_id]
    bars = [bar for bar in one["offsets"] if bar["topic"] == name]
    landed = {(bar["partition"], *span) for bar in bars for span in bar["landed"]}
    [entry] = [entry for identity, entry in ledger.topics.items() if identity.topic == name]
    assert landed == {(r.partition, r.from_offset, r.until_offset) for r in entry.landed}
    assert [bar["holes"] for bar in bars if bar["holes"]] == []

    # Idle: the newest landing stays the one that it was.
    newest = one["landing"]
    airflow.run(dag, conf)
    assert (shown()["state"], shown()["landing"]) == ("idle", newest)

    # What waits is known by the sensors alone.
    produce_clickstream(kafka.client_config(), name, count=50, rate=0)
    supervise = airflow.dag(DAGS / "supervise_lakestream.py")
    supervise.deadline = None
    stream = {"table": table, "consumer_group": DAG, "max_age": "1ms", "max_lag_seconds": "1ms"}
    run = airflow.run(supervise, {"streams": [stream]})
    one = shown()
    assert (one["supervised"]["run_id"], one["supervised"]["looks"]["lag"]["value"]["lag"]) == (run.run_id, 50)
    assert one["state"] == "stalled"
    assert one["supervised"]["looks"]["retention"]["well"] is True
    contents = one["contents"]
    assert (contents["run_id"], contents["task_id"], contents["map_index"]) == (run.run_id, "looks_inside", 0)
    landed_by = connections.catalog.load_table(table)
    assert contents["document"]["files"]["rows"] == 300
    assert contents["document"]["snapshots"]["count"] == len(landed_by.snapshots())
    assert contents["document"]["rejects"] == {"count": 0, "looked_at": 0, "kinds": 0, "reasons": []}

    # Failing.
    airflow.run(dag, {**conf, "topic": "no-such-topic-anywhere"})
    assert (shown()["state"], shown()["why"][0]["cause"]) == ("failing", "failed run")
