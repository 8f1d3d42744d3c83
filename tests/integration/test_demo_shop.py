"""What the demo offers besides the clickstream: tables of a real database whose changes Debezium sends."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from rich.console import Console

from dev.demo_summary import print_mirror, print_more
from dev.services.connect import Connect
from dev.services.kafka import Kafka
from dev.services.postgres import Postgres
from dev.sources.shop import CAPTURE, count, open_shop, trade
from tests.support.airflow_home import DAGS, AirflowHome, Connections
from tests.support.broker import poll_until

pytestmark = pytest.mark.integration


def sent(kafka: Kafka, topic: str) -> int:
    consumer = Consumer({**kafka.client_config(), "group.id": "look", "log_level": 0})
    try:
        if topic not in consumer.list_topics(timeout=15).topics:
            return 0
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=15)[1])
    finally:
        consumer.close()


def test_a_shop_that_trades_sends_its_tables_and_their_changes_and_its_customers_are_mirrored(
    postgres: Postgres,
    connect: Connect,
    kafka: Kafka,
    airflow: AirflowHome,
    connections: Connections,
    capsys: pytest.CaptureFixture[str],
) -> None:
    open_shop(postgres, connect)
    stop = threading.Event()
    with postgres.connect() as sql, ThreadPoolExecutor(1) as beside:
        trading = beside.submit(trade, postgres, rate=100, stop=stop)
        try:
            poll_until(lambda: sent(kafka, "shop.public.orders") > 1_100, "a hundred changes of orders", 120)
            poll_until(lambda: sent(kafka, "shop.public.customers") > 1_010, "ten changes of customers", 120)
        finally:
            stop.set()
        assert trading.result() > 0
        assert sql.execute("select min(id) > 1, max(id) > 1000 from orders").fetchone() == (True, True), (
            "old ones are gone"
        )
        assert sql.execute("select 1 from orders where state <> 'new'").fetchone()
        customers = sql.execute("select id, name, city from customers order by id").fetchall()
        assert len(customers) == 1_000

    def mirrored() -> list[tuple[object, ...]]:
        assert airflow.run(airflow.dag(DAGS / "customers_mirror.py")).state == "success"
        rows = connections.catalog.load_table("lake.customers").scan().to_arrow().sort_by("id").to_pylist()
        return [(row["id"], row["name"], row["city"]) for row in rows]

    # The last changes may still be on their way.
    poll_until(lambda: mirrored() == customers, "the mirror of the customers", 120)
    mirror, topic = connections.catalog.load_table("lake.customers"), "shop.public.customers"
    capsys.readouterr()
    print_mirror(Console(width=120), mirror, kafka, group="customers_mirror", topic=topic, rows=count(postgres))
    told = capsys.readouterr().out
    assert f"lake.customers mirrors {topic}: 1,000 rows, 1,000 in PostgreSQL" in told
    assert "Merges" in told
    assert str(mirror.current_snapshot().snapshot_id) in told
    connect.release(CAPTURE)


def test_each_dag_that_the_demo_names_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    dags = {path.stem for path in (Path(__file__).parents[2] / "dags").glob("*.py")}
    for cdc, named_dags in ((False, 11), (True, 13)):
        print_more(Console(width=200), cdc=cdc)
        lines = capsys.readouterr().out.splitlines()
        named = [word for line in lines if (word := line.strip().partition(" ")[0]).islower() and "_" in word]
        assert (len(named), {*named} - dags) == (named_dags, set())
