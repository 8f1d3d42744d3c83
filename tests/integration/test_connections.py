"""Through SASL_SSL, and all that can be wrong with a connection or an argument: said soon, and without a trace."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal, Transient
from airflow_lakestream.kafka.errors import (
    KafkaMisconfigured,
    KafkaRefused,
    KafkaUnavailable,
    StalledPartition,
    TopicMissing,
)
from dev.services.kafka import Kafka
from dev.stack import Stack
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.faults import InterposedReader
from tests.support.lake import Lake
from tests.support.lake_reading import at, numbers

pytestmark = pytest.mark.integration

SOON = 30
WRONG_PASSWORD = "wrong-but-secret"  # a made-up one


@pytest.fixture
def secure(tmp_path: Path, kafka: Kafka) -> Lake:
    return Lake(tmp_path, kafka.secure_client_config())


def everything_said(error: BaseException, caplog: pytest.LogCaptureFixture) -> str:
    """Return the text of the whole chain of exceptions, and of every log record."""
    chain, at_error = [], error
    while at_error is not None:
        chain.append(f"{at_error!r} {at_error} {at_error.args}")
        at_error = at_error.__cause__ or at_error.__context__
    return "\n".join([*chain, *traceback.format_exception(error), caplog.text])


# Through SASL_SSL


def test_a_topic_lands_through_sasl_ssl_with_scram(
    secure: Lake, kafka: Kafka, topic_of: TopicOf, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic_of(numbers(3), numbers(2))

    with caplog.at_level(logging.DEBUG):
        secure.land(name)

    assert secure.offsets() == at(0, range(3)) + at(1, range(2))
    assert kafka.password not in caplog.text


# What is refused is said at once


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        ({"sasl.password": WRONG_PASSWORD}, KafkaRefused, ["invalid credentials", "sasl.password"]),
        ({"sasl.username": "nobody"}, KafkaRefused, ["invalid credentials", "sasl.username"]),
        ({"sasl.mechanism": "PLAIN"}, KafkaRefused, ["SCRAM-SHA-256", "sasl.mechanism"]),
        ({"ssl.ca.location": "probe"}, KafkaRefused, ["certificate", "ssl.ca.location"]),
        ({"ssl.ca.location": "/no/such/file"}, KafkaMisconfigured, ["ssl.ca.location"]),
        ({"sasl.password": None}, KafkaMisconfigured, ["sasl.password"]),
        ({"security.protocol": "SECURE"}, KafkaMisconfigured, ["security.protocol", "SECURE"]),
        ({"no.such.setting": "1"}, KafkaMisconfigured, ["no.such.setting"]),
        ({"bootstrap.servers": None}, KafkaMisconfigured, ["bootstrap.servers"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_that_are_refused_are_named_at_once_and_secrets_are_not(
    secure: Lake,
    kafka: Kafka,
    topic: Topics,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, Any],
    kind: type[LakestreamError],
    words: list[str],
) -> None:
    if settings.get("ssl.ca.location") == "probe":
        settings = {"ssl.ca.location": str(_another_ca(tmp_path))}
    changed = {**kafka.secure_client_config(), **settings}
    lake = Lake(tmp_path, {key: value for key, value in changed.items() if value is not None})
    name = topic(partitions=1)
    job = lake.job(name)
    started = time.monotonic()

    with caplog.at_level(logging.DEBUG), pytest.raises(kind) as caught:
        land(job)

    assert time.monotonic() - started < 10
    assert isinstance(caught.value, Terminal)
    for word in ["the Kafka connection: ", *words]:
        assert word in str(caught.value)
    said = everything_said(caught.value, caplog)
    assert kafka.password not in said
    assert WRONG_PASSWORD not in said
    assert lake.has_nothing()


def _another_ca(folder: Path) -> Path:
    """Write a certificate that did not sign the broker's: one of the well-known ones that Python ships with."""
    import certifi

    text = Path(certifi.where()).read_text()
    end = "-----END CERTIFICATE-----\n"
    path = folder / "another-ca.pem"
    path.write_text(text[text.index("-----BEGIN") : text.index(end) + len(end)])
    return path


def test_a_missing_topic_is_named_with_the_remedy(lake: Lake) -> None:
    with pytest.raises(TopicMissing, match=r"'no-such-topic' does not exist.*Create it first") as caught:
        lake.land("no-such-topic")
    assert isinstance(caught.value, Terminal)
    assert lake.has_nothing()


# What does not answer is said after the clients' own time-outs


@dataclass
class Outcome:
    error: LakestreamError
    seconds: float
    lines: list[str]
    traces: bool


class Gathering(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


@pytest.fixture(scope="module")
def unanswered(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Outcome]]:
    """Run the three cases at once, since each takes its whole time-out."""
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        ports = {"nobody listens": free_port(), "silent": silent.getsockname()[1], "plain": kafka.ports["sasl_ssl"]}
        gathering = Gathering()
        logger = logging.getLogger("airflow_lakestream")
        logger.addHandler(gathering)
        level = logger.level
        logger.setLevel(logging.INFO)

        def run(port: int) -> Outcome:
            lake = Lake(tmp_path_factory.mktemp("lake"), {"bootstrap.servers": f"127.0.0.1:{port}"})
            started = time.monotonic()
            with pytest.raises(LakestreamError) as caught:
                lake.land("any")
            lines = [line for line in gathering.lines if f":{port}" in line]
            return Outcome(caught.value, time.monotonic() - started, lines, not lake.has_nothing())

        with ThreadPoolExecutor(len(ports)) as pool:
            yield dict(zip(ports, pool.map(run, ports.values()), strict=True))
        logger.removeHandler(gathering)
        logger.setLevel(level)


@pytest.mark.parametrize(
    ("case", "cause"),
    [
        ("nobody listens", "Connection refused"),
        ("silent", "Timed out"),
        ("plain", "closed by peer"),
    ],
)
def test_no_answer_is_said_within_30_seconds_with_the_cause_and_the_remedy(
    unanswered: dict[str, Outcome], case: str, cause: str
) -> None:
    outcome = unanswered[case]
    assert isinstance(outcome.error, KafkaUnavailable)
    assert isinstance(outcome.error, Transient)
    assert outcome.seconds < SOON
    for word in ("the Kafka connection: ", cause, "Check bootstrap.servers, security.protocol"):
        assert word in str(outcome.error)
    assert not outcome.traces


@pytest.mark.parametrize("case", ["nobody listens", "silent", "plain"])
def test_no_line_of_the_client_stands_above_the_error(unanswered: dict[str, Outcome], case: str) -> None:
    assert unanswered[case].lines == []


# Arguments that only the table can judge


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("partition_by", ["fortnight(at)"]),
        ("partition_by", ["day(n)"]),
        ("partition_by", ["day(missing)"]),
        ("sort_order", ["missing desc"]),
        ("schema", "n no_such_type"),
    ],
)
@pytest.mark.parametrize("schema", ["n bigint, at timestamp", None], ids=["given", "inferred"])
def test_a_design_that_can_not_be_is_refused_and_nothing_half_made_stays(
    lake: Lake, topic_of: TopicOf, argument: str, value: Any, schema: str | None
) -> None:
    name = topic_of(['{"n": 1, "at": "2026-11-20T05:05:00Z"}'])

    with pytest.raises(InvalidArgument) as caught:
        lake.land(name, **{"schema": schema, argument: value})

    assert caught.value.argument == argument
    assert lake.has_nothing()


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("schema", "n string"),
        ("schema", "n bigint, more double"),
        ("partition_by", ["bucket(4, n)"]),
        ("sort_order", ["n"]),
        ("metadata_columns", ["topic", "partition", "offset", "timestamp", "key"]),
    ],
)
def test_what_contradicts_the_table_is_refused_and_the_table_stays(
    lake: Lake, topic_of: TopicOf, produce: Producing, argument: str, value: Any
) -> None:
    name = topic_of(numbers(2))
    lake.land(name)
    files = sorted(lake.files())
    produce(name, 0, numbers(2, 2))

    with pytest.raises(InvalidArgument, match=r"lake\.events") as caught:
        lake.land(name, **{argument: value})

    assert caught.value.argument == argument
    assert sorted(lake.files()) == files
    assert lake.offsets() == at(0, range(2))


# A broker that forbids, and one that falls silent


@pytest.fixture(scope="module")
def strict() -> Iterator[Kafka]:
    """Give a broker of its own: with ACLs, and free to be stopped."""
    acls = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # The plain listener's clients, this broker's controller among them.
        "super.users": "User:ANONYMOUS",
        # It is stopped for longer than the 9 s after which a controller gives a broker up.
        "broker.session.timeout.ms": "120000",
    }
    with Stack.owned("tests-strict") as stack:
        yield stack.up_kafka(overrides=acls)


@pytest.fixture(scope="module")
def strict_topic(strict: Kafka) -> Topics:
    return Topics(AdminClient({**strict.client_config(), "log_level": 2}))


def allow(kafka: Kafka, resource: ResourceType, name: str, *operations: AclOperation) -> None:
    admin = AdminClient({**kafka.client_config(), "log_level": 2})
    user, allowed = f"User:{kafka.username}", AclPermissionType.ALLOW
    acls = [AclBinding(resource, name, ResourcePatternType.LITERAL, user, "*", each, allowed) for each in operations]
    for result in admin.create_acls(acls).values():
        result.result(30)


@pytest.mark.own_parts
def test_a_forbidden_topic_is_refused_and_named(strict: Kafka, strict_topic: Topics, tmp_path: Path) -> None:
    name = strict_topic(partitions=1)
    lake = Lake(tmp_path, strict.secure_client_config())

    with pytest.raises((KafkaRefused, TopicMissing), match=name):
        lake.land(name)
    assert lake.has_nothing()


@pytest.mark.own_parts
def test_a_topic_that_may_be_described_and_not_read_is_refused(
    strict: Kafka, strict_topic: Topics, tmp_path: Path
) -> None:
    name = strict_topic(partitions=1)
    Producing(strict.client_config())(name, 0, numbers(2))
    allow(strict, ResourceType.TOPIC, name, AclOperation.DESCRIBE)
    lake = Lake(tmp_path, strict.secure_client_config())

    with pytest.raises(KafkaRefused, match=rf"{name}.*ACLs"):
        lake.land(name)
    assert lake.has_nothing()


@pytest.mark.own_parts
def test_a_forbidden_group_only_warns(
    strict: Kafka, strict_topic: Topics, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = strict_topic(partitions=1)
    Producing(strict.client_config())(name, 0, numbers(2))
    allow(strict, ResourceType.TOPIC, name, AclOperation.DESCRIBE, AclOperation.READ)
    lake = Lake(tmp_path, strict.secure_client_config())

    with caplog.at_level(logging.WARNING, "airflow_lakestream"):
        lake.land(name)

    assert lake.offsets() == at(0, range(2))
    assert "committed offsets of group 'g'" in caplog.text
    assert "Nothing is lost" in caplog.text


@pytest.mark.own_parts
def test_a_partition_that_falls_silent_is_a_stall_that_says_what_is_missing(
    strict: Kafka, strict_topic: Topics, tmp_path: Path
) -> None:
    name = strict_topic(partitions=2)
    produce = Producing(strict.client_config())
    # Random, because compressed records would all fit into the first fetch. Together more than one consume() can hand
    # out (500): the first chunk fills, and the broker is stopped, when many are still on its side for certain.
    large = [f'{{"n": {n}, "s": "{secrets.token_urlsafe(75_000)}"}}' for n in range(350)]
    produce(name, 0, large)
    produce(name, 1, large)
    # A client that fetches little ahead, so that the broker falls silent while most is still on its side.
    little = {"queued.max.messages.kbytes": 1024, "max.partition.fetch.bytes": 2**20, "fetch.max.bytes": 2**20}
    lake = Lake(tmp_path, {**strict.client_config(), **little, "message.max.bytes": 2**20})
    job = lake.job(name, poll_timeout=3)
    try:
        silence = InterposedReader(job.reader, lambda: os.kill(strict.pid, signal.SIGSTOP))
        with pytest.raises(StalledPartition) as caught:
            land(replace(job, reader=silence))
    finally:
        os.kill(strict.pid, signal.SIGCONT)

    stall = caught.value
    assert isinstance(stall, Transient)
    assert stall.missing
    for partition, (start, end) in stall.missing.items():
        assert 0 <= start < end == 350
        assert f"{name}[{partition}] [{start},350)" in str(stall)
    assert "poll_timeout" in str(stall)
    assert lake.has_nothing()

    lake.land(name)
    assert lake.offsets() == at(0, range(350)) + at(1, range(350))
