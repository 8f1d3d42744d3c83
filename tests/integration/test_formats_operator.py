"""Formats through the operator on a real Airflow: a registry that asks for credentials, which show nowhere."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG

from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator
from airflow_lakestream.operators.kafka_extract_group import kafka_extract_group
from airflow_lakestream.registry.client import RegistryUnavailable
from dev.services.kafka import Kafka
from dev.services.registry import Registry
from tests.integration.test_formats import avro_bytes, framed, record
from tests.support.airflow_home import AirflowHome, Connections
from tests.support.broker import Producing, Topics
from tests.support.loopback import LoopbackHandler, LoopbackServer

pytestmark = [pytest.mark.integration, pytest.mark.airflow]

WORD = "a-registry-passphrase-4711"
ORDER = record("Order", id="long")


class Front(LoopbackServer):
    """Stands before the real registry, and lets nobody in without the word; `status` is what it answers otherwise."""

    def __init__(self, behind: Registry) -> None:
        super().__init__(Guard)
        self.behind = behind
        self.status: int | None = None


class Guard(LoopbackHandler):
    def respond(self, _: bytes) -> None:
        given = self.headers["Authorization"] or ""
        known = f"Basic {base64.b64encode(f'me:{WORD}'.encode()).decode()}"
        status, body = self.server.status or 401, b'{"error_code": 40101, "message": "no"}'
        if given == known and self.server.status is None:
            try:
                with urllib.request.urlopen(f"{self.server.behind.url}{self.path}", timeout=30) as answer:
                    status, body = answer.status, answer.read()
            except urllib.error.HTTPError as error:
                status, body = error.code, error.read()
        self.reply(status, body)


@pytest.fixture
def front(registry: Registry) -> Iterator[Front]:
    with Front(registry) as server:
        yield server


@pytest.fixture
def orders(topic: Topics, produce: Producing, registry: Registry) -> str:
    """Give a topic of three orders in Avro, whose columns the registry tells."""
    name = topic(1)
    schema_id = registry.register(f"{name}-value", json.dumps(ORDER))
    produce(name, 0, [framed(schema_id, avro_bytes(ORDER, {"id": n})) for n in range(3)], keys=["a", "b", None])
    return name


def landed(connections: Connections) -> list[dict[str, Any]]:
    found = connections.catalog.load_table("lake.t").scan().to_arrow().sort_by("_kafka_offset")
    return found.select(["id", "_key"]).to_pylist()


ROWS = [{"id": 0, "_key": "a"}, {"id": 1, "_key": "b"}, {"id": 2, "_key": None}]


@pytest.mark.parametrize("way", ["http connection", "kafka connection", "group"])
def test_credentials_come_from_a_connection_and_show_nowhere(
    way: str,
    airflow: AirflowHome,
    connections: Connections,
    kafka: Kafka,
    front: Front,
    orders: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    arguments: dict[str, Any] = {"topic": orders, "table": "lake.t", "format": "avro", "key_format": "string"}
    if way == "kafka connection":
        settings = {"schema.registry.url": front.url, "schema.registry.basic.auth.user.info": f"me:{WORD}"}
        connections.kafka({**kafka.client_config(), **settings})
    else:
        connection = {"conn_type": "http", "host": front.url, "login": "me", "password": WORD}
        monkeypatch.setenv("AIRFLOW_CONN_MY_REGISTRY", json.dumps(connection))
        arguments["schema_registry"] = "{{ 'my' ~ '_registry' }}"
    with DAG(f"registry_by_{way.replace(' ', '_')}", schedule=None) as dag:
        if way == "group":
            kafka_extract_group("land", tasks=2, **arguments)
        else:
            KafkaExtractOperator(task_id="land", **arguments)
    run = airflow.run(dag)
    assert (run.state, run.errors) == ("success", [])
    assert landed(connections) == ROWS
    task = run.task("land.commit" if way == "group" else "land")
    assert task.rendered["format"] == "avro"
    for shown in ("".join(capfd.readouterr()), json.dumps(task.rendered), json.dumps(task.xcom)):
        assert WORD not in shown


def test_a_registry_that_is_down_is_tried_again_and_one_that_refuses_is_not(
    airflow: AirflowHome, connections: Connections, front: Front, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = {"conn_type": "http", "host": front.url, "login": "me", "password": WORD, "extra": {"retries": 0}}
    monkeypatch.setenv("AIRFLOW_CONN_MY_REGISTRY", json.dumps(connection))
    with DAG("registry_down", schedule=None) as dag:
        KafkaExtractOperator(
            task_id="land",
            topic=orders,
            table="lake.t",
            format="avro",
            key_format="string",
            schema_registry="my_registry",
            retries=1,
            retry_delay=timedelta(0),
        )
    front.status = 503
    run = airflow.run(dag)
    assert (run.state, run.task().tries, [type(error) for error in run.errors]) == (
        "failed",
        2,
        [RegistryUnavailable] * 2,
    )
    front.status = 403
    run = airflow.run(dag)
    assert (run.state, run.task().tries, [type(error) for error in run.errors]) == ("failed", 1, [AirflowFailException])
    assert "Check the credentials of schema_registry" in str(run.errors[0])
    assert connections.catalog.list_namespaces() == []
    front.status = None
    assert airflow.run(dag).state == "success"
    assert landed(connections) == ROWS
