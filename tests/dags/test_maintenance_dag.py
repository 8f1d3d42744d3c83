"""lake_maintenance, run by `dag.test()`: tables that an extract DAG has landed into."""

from __future__ import annotations

from typing import Any

from dev.services.kafka import Kafka
from dev.sources.clickstream import produce_clickstream
from tests.dags.test_dags import landed
from tests.support.airflow_home import DAGS, AirflowHome, Connections


def test_small_files_become_one_and_landings_go_on(
    airflow: AirflowHome,
    connections: Connections,
    kafka: Kafka,
    topic: Any,
) -> None:
    name, land = topic(1), airflow.dag(DAGS / "clickstream_to_lake.py")
    produce_clickstream(kafka.client_config(), name, rate=0, count=600)
    for _ in range(6):
        assert airflow.run(land, {"topic": name, "max_records": 100}).state == "success"
    before = connections.catalog.load_table("lake.clickstream")
    assert len(before.snapshots()) == len(list(before.scan().plan_files())) == 6

    dag = airflow.dag(DAGS / "lake_maintenance.py")
    run = airflow.run(dag, {"tables": ["lake.click*"], "expire_older_than": "0d"})
    assert (run.state, run.errors) == ("success", [])
    after = connections.catalog.load_table("lake.clickstream")
    assert len(list(after.scan().plan_files())) == 1
    assert not {one.snapshot_id for one in before.snapshots()} & {one.snapshot_id for one in after.snapshots()}
    assert sum(landed(after).values()) == len(landed(after)) == 600
    [report] = run.task("maintain").xcom
    assert (report["rewritten"], report["new"], report["is_whole"]) == (6, 1, True)
    again = airflow.run(land, {"topic": name}).task("land").xcom
    assert (again["rows"], again["remaining_lag"]) == (0, 0)


def test_an_age_of_orphans_within_a_run_is_refused_before_anything_starts(
    airflow: AirflowHome, connections: Connections
) -> None:
    run = airflow.run(airflow.dag(DAGS / "lake_maintenance.py"), {"longest_run": "4d"})
    assert run.state == "failed"
    assert "3d is not beyond longest_run, 4d" in str(run.errors[0])
