"""KafkaConnectOperator on a real Airflow and a real Connect: the documented DAG, what is refused, and a source."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.connect.client import ConnectorState
from airflow_lakestream.connect.configuration import ConfigRefused
from airflow_lakestream.core.ledger import LandingEngine
from airflow_lakestream.iceberg.ledger_store import landing_of, live_ancestors
from airflow_lakestream.operators.kafka_connect import KafkaConnectOperator
from airflow_lakestream.triggers.kafka_connect import KafkaConnectTrigger
from dev.services.connect import SECRETS, Connect
from dev.services.postgres import Postgres
from tests.support.airflow_home import DAGS, AirflowHome
from tests.support.broker import Producing, TopicOf, poll_until
from tests.support.connecting import PATIENCE, SCHEMA, Sinks, sink_config
from tests.support.lake import TABLE, Lake, events
from tests.support.spark_stream import kill_the_worker, mark

pytestmark = pytest.mark.airflow

PAGE = (DAGS.parent / "docs" / "connect.md").read_text()


def documented(airflow: AirflowHome, name: str, **arguments: Any) -> Any:
    """Return the DAG of the page, its operator with other arguments."""
    [snippet] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    dag = airflow.dag(airflow.write(name, snippet))
    for argument, value in {"poll_interval": "0.5s", **arguments}.items():
        setattr(dag.task_dict["sink"], argument, value)
    return dag


@pytest.mark.parametrize("deferrable", [False, True])
def test_the_documented_dag_lands_its_topic_until_the_connector_is_stopped(
    sinks: Sinks,
    lake: Lake,
    connected: None,
    airflow: AirflowHome,
    topic_of: TopicOf,
    produce: Producing,
    deferrable: bool,
) -> None:
    topic = topic_of(events(0, 0, 5), events(1, 0, 5))
    dag = documented(
        airflow,
        f"by_connect_{deferrable}",
        connector=sinks.name,
        config=sink_config(lake, topic),
        publish_interval="2s",
        deferrable=deferrable,
    )
    lake.land(topic, schema=SCHEMA, consumer_group=dag.dag_id)
    failures: list[BaseException] = []

    def act() -> None:
        try:
            sinks.await_running()
            for upto in (105, 205):
                produce(topic, 0, events(0, upto - 100, 100))
                poll_until(lambda upto=upto: len(lake.offsets()) >= upto + 5, f"{upto} rows", PATIENCE, every=0.5)  # type: ignore[misc]  # of a lambda's default
        except BaseException as e:  # noqa: BLE001  # a thread's error is told below
            failures.append(e)
        finally:
            # Without that the task would go on for ever.
            sinks.await_running()
            sinks.client.stop(sinks.name)

    acting = threading.Thread(target=act)
    acting.start()
    task = airflow.run(dag).task("sink")
    acting.join()
    assert failures == []
    assert task.state == "success"
    assert {name: task.xcom[name] for name in ("connector", "topic", "table", "read", "rows", "restarts")} == {
        "connector": sinks.name,
        "topic": topic,
        "table": TABLE,
        "read": 200,
        "rows": 200,
        "restarts": 0,
    }
    assert task.xcom["ranges"] == [[0, 5, 205]]
    assert task.xcom["batches"] >= 2
    assert lake.landed(topic, dag.dag_id) == {0: [(0, 205)], 1: [(0, 5)]}
    assert lake.audit(group=dag.dag_id).verdict is AuditVerdict.CLEAN
    newest = next(live_ancestors(lake.table().metadata))
    landing = landing_of(newest, dag.dag_id)
    assert landing is not None
    assert landing.engine is LandingEngine.CONNECT


_DAG = """
from airflow.sdk import DAG
from airflow_lakestream.operators.kafka_connect import KafkaConnectOperator

with DAG({dag_id!r}, schedule=None) as dag:
    KafkaConnectOperator(task_id="sink", **{arguments!r})
"""


def test_a_worker_of_airflow_that_is_killed_leaves_the_connector_and_the_retry_adopts_it(
    sinks: Sinks, lake: Lake, connected: None, airflow: AirflowHome, topic_of: TopicOf, produce: Producing
) -> None:
    topic = topic_of(events(0, 0, 5), events(1, 0, 5))
    lake.land(topic, schema=SCHEMA, consumer_group="adopts")
    arguments = {"connector": sinks.name, "config": sink_config(lake, topic), "publish_interval": "1s"}
    more = {"poll_interval": "0.3s", "retries": 3, "retry_delay": 0}
    file = airflow.write("adopts", _DAG.format(dag_id="adopts", arguments=arguments | more))
    run = airflow.start(airflow.dag(file))
    with airflow.process(run, file, "sink") as process:
        poll_until(lambda: "it begins at" in process.log, "the connector to begin", PATIENCE)
        sinks.await_running()
        made = sinks.tasks_made()
        produce(topic, 0, events(0, 5, 300))
        # While its rows are on the branch, and on their way to main.
        branch = sinks.sink(topic).branch
        head = lake.table().refs()[branch]
        poll_until(lambda: lake.table().refs()[branch] != head, "a commit of the sink", PATIENCE)
        kill_the_worker(process)
    assert sinks.client.status(sinks.name).all_run
    produce(topic, 1, events(1, 5, 40))
    with airflow.process(run, file, "sink") as process:
        poll_until(lambda: "it is configured as required" in process.log, "the retry to adopt it", PATIENCE)
        poll_until(lambda: len(lake.offsets()) >= 350, "all rows", PATIENCE, every=0.5)
        assert sinks.tasks_made() == made
        mark(run, "failed", "sink")
        process.wait(PATIENCE)
    assert f"The task is failed by now: the connector {sinks.name} was stopped" in process.log
    assert sinks.client.status(sinks.name).state is ConnectorState.STOPPED
    assert lake.landed(topic, "adopts") == {0: [(0, 305)], 1: [(0, 45)]}
    assert lake.offsets() == [(0, n) for n in range(305)] + [(1, n) for n in range(45)]
    assert lake.audit(group="adopts").verdict is AuditVerdict.CLEAN


def test_what_connect_itself_lets_pass_is_refused_before_anything_is_made(
    sinks: Sinks, lake: Lake, topic_of: TopicOf
) -> None:
    topic = topic_of(events(0, 0, 5))
    sinks.extract(topic)
    for settings, told in (
        ({"iceberg.hadoop-conf-dirs": "/x"}, "Is iceberg.hadoop-conf-dir meant"),
        ({"tasks.maxx": "3"}, r"Is tasks.max"),
        ({"value.converter": "no.Such"}, "Connect refuses value.converter"),
        ({"transforms.lakestreamPosition.ofset.field": "x"}, "offset.field meant"),
    ):
        driving = sinks.driving(topic, **{key.replace(".", "_"): value for key, value in settings.items()})
        with pytest.raises(ConfigRefused, match=told):
            driving.begin()
    assert sinks.client.config(sinks.name) is None


def test_a_source_is_supervised_and_its_secrets_stay_with_the_workers(
    connect: Connect, connected: None, postgres: Postgres, sinks: Sinks, airflow: AirflowHome, caplog: Any
) -> None:
    secrets = Path(connect.folder) / SECRETS / "database.properties"
    secrets.write_text(f"password={postgres.password}\n")
    with postgres.connect() as sql:
        sql.execute(f'create table "{sinks.name}" (id bigint primary key); insert into "{sinks.name}" values (1)')
    slot = sinks.name.replace("-", "_")
    config = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "database.hostname": postgres.host,
        "database.port": postgres.port,
        "database.dbname": postgres.database,
        "database.user": postgres.username,
        "database.password": f"${{file:{secrets}:password}}",
        "topic.prefix": sinks.name,
        "slot.name": slot,
        "publication.name": slot,
        "publication.autocreate.mode": "filtered",
        "table.include.list": f"public.{sinks.name}",
        "topic.creation.default.replication.factor": 1,
        "topic.creation.default.partitions": 1,
    }
    dag = documented(
        airflow, "source", connector=sinks.name, kind="source", config=config, kafka_conn_id=None, deferrable=False
    )

    def act() -> None:
        sinks.await_running()
        sinks.client.stop(sinks.name)

    acting = threading.Thread(target=act)
    acting.start()
    task = airflow.run(dag).task("sink")
    acting.join()
    assert (task.state, task.xcom["connector"]) == ("success", sinks.name)
    assert postgres.password not in caplog.text
    kept = sinks.client.config(sinks.name)
    assert kept is not None
    assert kept["database.password"] == config["database.password"]


async def _killed(trigger: KafkaConnectTrigger) -> None:
    await trigger.on_kill()


def test_a_person_who_clears_a_waiting_task_stops_or_pauses_its_connector(
    sinks: Sinks, lake: Lake, connected: None, topic_of: TopicOf
) -> None:
    import asyncio

    topic = topic_of(events(0, 0, 5), events(1, 0, 5))
    sinks.extract(topic)
    driving = sinks.driving(topic)
    for action, state in (("leave", "running"), ("pause", "paused"), ("stop", "stopped")):
        driving.begin()
        sinks.await_running()
        trigger = KafkaConnectTrigger(
            checkpoint_location=sinks.name,
            generation=0,
            limits={},
            history={},
            poll_interval=1,
            on_kill_action=action,
            connect={"connect_conn_id": "kafka_connect_default", "connector": sinks.name},
            handed_on=driving.to_hand_on(),
        )
        path, arguments = trigger.serialize()
        assert path == "airflow_lakestream.triggers.kafka_connect.KafkaConnectTrigger"
        asyncio.run(_killed(KafkaConnectTrigger(**arguments)))
        poll_until(
            lambda state=state: sinks.client.status(sinks.name).state.lower() == state,  # type: ignore[misc]  # likewise
            f"the connector to be {state}",
            PATIENCE,
        )


def test_arguments_that_can_never_work_fail_where_the_dag_is_parsed() -> None:
    for arguments, told in (
        ({"kind": "zink"}, "kind"),
        ({"publish_interval": "0s"}, "publish_interval"),
        ({"config": {"topics": "a,b", "iceberg.tables": "a.b", "iceberg.catalog.type": "rest"}}, "topics has 2"),
        ({"checkpoint_location": "/x"}, "checkpoint_location"),
        ({"on_kill_action": "graceful"}, "on_kill_action"),
    ):
        given = {"connector": "c", "config": {"connector.class": "x"}, "kind": "sink", **arguments}
        if "config" in arguments:
            given["kind"] = "iceberg_sink"
        with pytest.raises(ValueError, match=told):
            KafkaConnectOperator(task_id="t", **given)
