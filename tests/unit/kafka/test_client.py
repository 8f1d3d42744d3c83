"""What is forced on every client, and what is made of librdkafka's own voice."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from confluent_kafka import Consumer, IsolationLevel, KafkaError
from confluent_kafka.admin import AdminClient

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.kafka import client
from airflow_lakestream.kafka.client import ClientErrors, admin_config, consumer_config, isolation_level, open_client
from airflow_lakestream.kafka.errors import KafkaMisconfigured

# A port that nobody listens on: making a client connects to nothing.
BROKER = {"bootstrap.servers": "127.0.0.1:1"}

# What a connection made for other consumers may say, and must not reach ours.
OTHERS = {
    "group.id": "shared",
    "group.instance.id": "static",
    "enable.auto.commit": True,
    "enable.auto.offset.store": True,
    "auto.offset.reset": "earliest",
    "auto.commit.interval.ms": 100,
}


def test_a_consumer_never_commits_never_resets_and_sees_the_ends() -> None:
    config = consumer_config({**BROKER, **OTHERS}, "g", ClientErrors())
    assert config["group.id"] == "g"
    assert config["enable.auto.commit"] is False
    assert config["enable.auto.offset.store"] is False
    assert config["auto.offset.reset"] == "error"
    assert config["enable.partition.eof"] is True
    assert config["isolation.level"] == "read_committed"
    assert config["check.crcs"] is True
    assert "group.instance.id" not in config
    open_client(Consumer, config, "here").close()


def test_an_admin_client_takes_nothing_of_groups() -> None:
    config = admin_config({**BROKER, **OTHERS, "isolation.level": "read_uncommitted"}, ClientErrors())
    assert not set(config) & {*OTHERS, "isolation.level"}
    open_client(AdminClient, config, "here")


def test_what_the_connection_says_of_sizes_times_and_isolation_stands() -> None:
    said = {"isolation.level": "read_uncommitted", "queued.max.messages.kbytes": 64, "check.crcs": False}
    assert consumer_config({**BROKER, **said}, "g", ClientErrors()).items() >= said.items()


def test_a_connection_whose_producers_send_large_records_is_taken() -> None:
    config = consumer_config({**BROKER, "message.max.bytes": 32 * 2**20}, "g", ClientErrors())
    open_client(Consumer, config, "here").close()


@pytest.mark.parametrize(
    ("said", "level"),
    [
        ({}, IsolationLevel.READ_COMMITTED),
        ({"isolation.level": "read_committed"}, IsolationLevel.READ_COMMITTED),
        ({"isolation.level": "read_uncommitted"}, IsolationLevel.READ_UNCOMMITTED),
    ],
)
def test_isolation_levels(said: dict[str, str], level: IsolationLevel) -> None:
    assert isolation_level(said) is level


def test_an_unknown_isolation_level_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"^isolation\.level: 'serializable'"):
        isolation_level({"isolation.level": "serializable"})


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({}, "bootstrap.servers is missing"),
        ({"bootstrap.servers": ""}, "bootstrap.servers is missing"),
        ({**BROKER, "no.such.setting": 1}, "no.such.setting"),
        ({**BROKER, "security.protocol": "SECURE"}, "security.protocol"),
        ({**BROKER, "socket.timeout.ms": "soon"}, "socket.timeout.ms"),
    ],
)
def test_settings_that_make_no_client_name_the_connection(config: dict[str, Any], word: str) -> None:
    with pytest.raises(KafkaMisconfigured, match=r"^Kafka connection 'k': .*Correct them") as caught:
        open_client(AdminClient, config, "Kafka connection 'k'")
    assert word in str(caught.value)


# librdkafka's voice

REFUSED = "[thrd:b:9092/1]: b:9092/1: Connect to ipv4#10.0.0.1:9092 failed: refused (after %dms in state CONNECT)"


def fail(errors: ClientErrors, text: str) -> None:
    errors.log(logging.ERROR, "%s [%s] %s", "FAIL", "rdkafka#consumer-1", text)


def test_the_cause_is_kept_though_all_brokers_are_down_afterwards() -> None:
    errors = ClientErrors()
    errors(KafkaError(KafkaError._TRANSPORT, "refused"))
    errors(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert errors.last == "_TRANSPORT: refused"


def test_without_a_cause_all_brokers_down_is_said() -> None:
    errors = ClientErrors()
    errors(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert errors.last == "_ALL_BROKERS_DOWN: 1/1 brokers are down"


def test_brokers_that_are_all_down_are_waited_for_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(client.time, "monotonic", lambda: now)
    errors = ClientErrors()
    now += 60
    assert not errors.are_all_down
    errors(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    now += 4.9
    errors(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert not errors.are_all_down
    now += 0.1
    assert errors.are_all_down


def test_a_cause_that_is_only_logged_is_kept_too() -> None:
    errors = ClientErrors()
    fail(errors, REFUSED % 0)
    assert errors.last.startswith("b:9092/1: Connect to")


@pytest.mark.parametrize(
    ("error", "is_fatal"),
    [
        (KafkaError(KafkaError._AUTHENTICATION, "bad password"), True),
        (KafkaError(KafkaError._SSL, "error:0A000086:SSL routines::certificate verify failed"), True),
        (KafkaError(KafkaError._SSL, "connection reset"), False),
        (KafkaError(KafkaError._TRANSPORT, "refused"), False),
    ],
)
def test_what_no_retry_mends_is_fatal(error: KafkaError, is_fatal: bool) -> None:
    errors = ClientErrors()
    errors(error)
    assert (errors.fatal is error) == is_fatal


def test_a_line_that_comes_again_and_again_is_passed_on_now_and_then(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(client.time, "monotonic", lambda: now)
    errors = ClientErrors()
    with caplog.at_level(logging.DEBUG, "airflow_lakestream"):
        for attempt in range(200):
            fail(errors, REFUSED % attempt)
            now += 0.1
        fail(errors, "[thrd:b:9092/2]: b:9092/2: another broker's trouble (after 5ms in state CONNECT)")

    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert "more" not in lines[0]
    assert lines[1].endswith("times more)")
    assert "another broker" in lines[2]
    assert all(record.levelno == logging.DEBUG for record in caplog.records)
