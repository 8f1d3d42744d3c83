"""`lakestream doctor` on real parts, each broken in turn: what it says, its exit code, and that it leaves no trace."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation, AdminClient, ResourceType
from pyiceberg.catalog.sql import SqlCatalog

from airflow_lakestream.cli.app import run
from airflow_lakestream.onramp.doctor.finding import DoctorFinding, PartHealth
from airflow_lakestream.onramp.doctor.lake import check_catalog, check_store
from airflow_lakestream.onramp.doctor.machine import check_packages
from dev.ports import LOOPBACK, free_ports
from dev.services.kafka import Kafka
from dev.services.registry import Registry
from dev.stack import Stack
from tests.integration.test_connections import allow
from tests.support.airflow_home import Connections
from tests.support.broker import Producing, Topics

pytestmark = pytest.mark.integration

Examine = Callable[..., dict[str, list[DoctorFinding]]]


@pytest.fixture
def examine(capsys: pytest.CaptureFixture[str]) -> Examine:
    """Give a function that runs the command, and returns the findings by part; `code` is the expected exit code."""

    def examined(*options: str, code: int) -> dict[str, list[DoctorFinding]]:
        capsys.readouterr()
        done = run(["doctor", *options, "--json"])
        said = capsys.readouterr()
        assert done == code, said
        found: dict[str, list[DoctorFinding]] = {}
        for one in json.loads(said.out)["findings"]:
            finding = DoctorFinding(one["part"], PartHealth(one["health"]), one["text"])
            found.setdefault(finding.part, []).append(finding)
        return found

    return examined


def one(found: dict[str, list[DoctorFinding]], part: str) -> tuple[PartHealth, str]:
    [finding] = found[part]
    return finding.health, finding.text


def files_in(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def test_all_is_well_and_no_trace_is_left(
    examine: Examine,
    connections: Connections,
    kafka: Kafka,
    registry: Registry,
    topic: Topics,
    produce: Producing,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = topic(2)
    produce(name, 1, ['{"id": 1}'])
    connections.kafka({**kafka.secure_client_config(), "schema.registry.url": registry.url})
    connections.catalog.create_namespace("lake")
    connections.warehouse.mkdir()
    before = files_in(tmp_path)
    options = ["--topic", name, "--checkpoint", str(tmp_path / "checkpoints" / "here")]
    found = examine(*options, code=0)
    assert {finding.health for part in found.values() for finding in part} <= {PartHealth.OK, PartHealth.NOTE}
    assert one(found, "brokers") == (
        PartHealth.OK,
        f"Kafka connection 'kafka_default': 1 broker answers, by SASL_SSL as {kafka.username}.",
    )
    assert one(found, "topic") == (PartHealth.OK, f"{name}: 2 partitions, 1 offset; the newest records can be read.")
    assert registry.url in one(found, "registry")[1]
    assert [finding.text for finding in found["catalog"]] == [
        "SqlCatalog answers: 1 namespace.",
        "commits work, and one for an older head is refused (compare and set).",
    ]
    assert [finding.health for finding in found["store"]] == [PartHealth.OK, PartHealth.OK]
    assert found["store"][0].text == f"{connections.warehouse.as_uri()}: files can be written, read and deleted."
    assert connections.catalog.list_namespaces() == [("lake",)]
    assert files_in(tmp_path) == before
    # In the namespace of a table that is to be landed in, too.
    examine("--table", "lake.orders", code=0)
    assert connections.catalog.list_tables("lake") == []
    assert run(["doctor", *options]) == 0
    text = capsys.readouterr().out
    assert kafka.password not in text
    assert all(line.split()[0] in ("ok", "note") for line in text.splitlines())


def test_nothing_is_written_with_read_only(
    examine: Examine, connections: Connections, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("something was written")

    connections.catalog.list_namespaces()
    monkeypatch.setattr(SqlCatalog, "create_table", refuse)
    monkeypatch.setattr(SqlCatalog, "create_namespace", refuse)
    found = examine("--read-only", "--checkpoint", str(tmp_path / "c"), code=0)
    assert "--read-only" in found["catalog"][1].text
    assert not (tmp_path / "c").exists()


def test_a_broker_that_is_down_is_told_in_seconds(examine: Examine, connections: Connections) -> None:
    (port,) = free_ports(1)
    connections.kafka({"bootstrap.servers": f"{LOOPBACK}:{port}"})
    started = time.monotonic()
    found = examine("--topic", "orders", code=2)
    assert time.monotonic() - started < 30
    health, text = one(found, "brokers")
    assert (health, f"{LOOPBACK}:{port}: connection refused" in text) == (PartHealth.UNKNOWN, True)
    assert "Start the broker" in text
    assert one(found, "topic")[0] is PartHealth.UNKNOWN
    # The other parts are looked at all the same.
    assert found["catalog"][-1].health is PartHealth.OK


def test_a_name_that_nobody_knows_is_told(examine: Examine, connections: Connections) -> None:
    connections.kafka({"bootstrap.servers": "no-such-host.invalid:9092"})
    assert "the name 'no-such-host.invalid' is unknown here" in one(examine(code=2), "brokers")[1]


def test_a_port_of_something_else_is_told(examine: Examine, connections: Connections, registry: Registry) -> None:
    connections.kafka({"bootstrap.servers": f"{LOOPBACK}:{registry.ports['http']}"})
    health, text = one(examine(code=2), "brokers")
    assert health is PartHealth.UNKNOWN
    assert "no answer from Kafka" in text


def test_tls_on_one_side_only_is_told_with_what_to_set(
    examine: Examine, connections: Connections, kafka: Kafka
) -> None:
    connections.kafka({"bootstrap.servers": kafka.secure_bootstrap})
    assert "speaks TLS, and security.protocol is PLAINTEXT. Set it to SSL" in one(examine(code=1), "brokers")[1]
    connections.kafka({**kafka.secure_client_config(), "bootstrap.servers": kafka.bootstrap})
    assert "does not speak TLS, and security.protocol is SASL_SSL" in one(examine(code=1), "brokers")[1]


def test_a_wrong_password_and_an_untrusted_certificate_are_told_and_no_secret_is(
    examine: Examine, connections: Connections, kafka: Kafka, tmp_path: Path
) -> None:
    connections.kafka({**kafka.secure_client_config(), "sasl.password": "wrong-but-secret"})
    health, text = one(examine(code=1), "brokers")
    assert (health, "wrong-but-secret" in text) == (PartHealth.WRONG, False)
    assert "Check sasl.mechanism" in text
    connections.kafka({key: value for key, value in kafka.secure_client_config().items() if key != "ssl.ca.location"})
    health, text = one(examine(code=1), "brokers")
    assert "certificate" in text
    assert "ssl.ca.location" in text


def test_a_missing_connection_and_wrong_settings_are_told(examine: Examine, connections: Connections) -> None:
    connections.kafka(None)
    connections.iceberg(None)
    found = examine(code=1)
    assert "there is no connection 'kafka_default'. Add one of type kafka" in one(found, "brokers")[1]
    assert "there is no connection 'iceberg_default'. Add one of type iceberg" in one(found, "catalog")[1]
    connections.kafka({"bootstrap.servers": "x:9092", "security.protocoll": "SSL"})
    # Not reachable comes first; what librdkafka refuses is told where a broker answers.
    assert one(examine("--read-only", code=2), "brokers")[0] is PartHealth.UNKNOWN


def test_a_topic_that_is_unknown_empty_or_of_tomorrow(
    examine: Examine, connections: Connections, topic: Topics, produce: Producing
) -> None:
    assert "'no-such-topic' does not exist" in one(examine("--topic", "no-such-topic", code=1), "topic")[1]
    name = topic(1)
    assert one(examine("--topic", name, code=0), "topic")[0] is PartHealth.NOTE
    produce(name, 0, ["{}"], timestamps=[int(time.time() * 1000) + 3_600_000])
    found = examine("--topic", name, code=1)
    assert "after this machine's clock" in one(found, "clock")[1]


@pytest.mark.own_parts
def test_a_topic_that_may_not_be_read_is_told(examine: Examine, connections: Connections) -> None:
    acls = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # The plain listener's clients, this broker's controller among them.
        "super.users": "User:ANONYMOUS",
    }
    with Stack.owned("tests-doctor") as stack:
        strict = stack.up_kafka(overrides=acls)
        name = Topics(AdminClient({**strict.client_config(), "log_level": 2}))(1)
        Producing(strict.client_config())(name, 0, ["{}"])
        connections.kafka(strict.secure_client_config())
        found = examine("--topic", name, "--read-only", code=1)
        assert (one(found, "topic")[0], name in one(found, "topic")[1]) == (PartHealth.WRONG, True)
        # Who may describe it, and not read it.
        allow(strict, ResourceType.TOPIC, name, AclOperation.DESCRIBE)
        health, text = one(examine("--topic", name, "--read-only", code=1), "topic")
        assert (health, "refused" in text, "ACLs" in text) == (PartHealth.WRONG, True, True)
        allow(strict, ResourceType.TOPIC, name, AclOperation.READ)
        assert one(examine("--topic", name, "--read-only", code=0), "topic")[0] is PartHealth.OK


def test_a_registry_that_is_down_or_something_else(
    examine: Examine, connections: Connections, kafka: Kafka, registry: Registry
) -> None:
    (port,) = free_ports(1)
    connections.kafka({**kafka.client_config(), "schema.registry.url": f"http://{LOOPBACK}:{port}"})
    health, text = one(examine(code=2), "registry")
    assert (health, "Check that it runs, and its url." in text) == (PartHealth.UNKNOWN, True)
    wrong = registry.url.removesuffix("/apis/ccompat/v7")
    assert "did not answer as a schema registry does" in one(examine("--schema-registry", wrong, code=1), "registry")[1]


def test_a_store_that_can_not_be_written_and_a_catalog_that_is_not_there(
    examine: Examine, connections: Connections, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    settings = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    connections.iceberg({**settings, "warehouse": (tmp_path / "file" / "warehouse").as_uri()})
    found = examine(code=1)
    assert found["catalog"][-1].health is PartHealth.WRONG
    assert str(tmp_path / "file") in found["catalog"][-1].text
    # The namespace that was made for the attempt is gone.
    assert connections.catalog.list_namespaces() == []
    connections.iceberg({**settings, "uri": f"sqlite:///{tmp_path}/no/such/folder/catalog.db"})
    assert "the catalog can't be used" in one(examine(code=2), "catalog")[1]
    found = examine("--table", str(tmp_path / "file" / "table"), code=1)
    assert one(found, "store")[0] is PartHealth.WRONG


def test_java_is_needed_for_spark_alone(
    examine: Examine, connections: Connections, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert one(examine(code=0), "java")[0] is PartHealth.NOTE
    health, text = one(examine("--engine", "spark", code=1), "java")
    assert (health, "JAVA_HOME is not set" in text) == (PartHealth.WRONG, True)
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.touch(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    for version, number in (("1.8.0_412", 8), ("11.0.2", 11), ("25.0.1", 25)):
        old.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        said = f"is version {number}, on which Spark does not run. Spark 4 needs a JDK 17 or 21"
        assert said in one(examine("--engine", "spark", code=1), "java")[1]
    old.write_text("#!/bin/sh\nexit 3\n")
    assert "-version fails" in one(examine("--engine", "spark", code=1), "java")[1]
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert "can't be run" in one(examine("--engine", "spark", code=1), "java")[1]


def test_two_versions_of_spark_in_one_folder_are_one_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    real, mixed = metadata.version, {"pyspark": "4.3.0", "pyspark-client": "4.2.0"}
    monkeypatch.setattr("importlib.metadata.version", lambda name: mixed.get(name) or real(name))
    [text] = [one.text for one in check_packages({"spark"}) if one.text.startswith("extra spark")]
    assert text.startswith(
        "extra spark: pyspark is 4.3.0, and pyspark-client 4.2.0: both are installed into one folder"
    )
    assert text.count("==4.0.0") == 2


class Overwriting(SqlCatalog):
    """A catalog that takes every commit, whatever it requires."""

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
        return super().commit_table(table, (), updates)


def test_a_catalog_that_does_not_compare_is_told(tmp_path: Path) -> None:
    catalog = Overwriting("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=tmp_path.as_uri())
    found = list(check_catalog(lambda: catalog, None, read_only=False))
    [told] = [finding for finding in found if finding.health is PartHealth.WRONG]
    assert "a commit for an older head was taken" in told.text
    assert catalog.list_namespaces() == []


def test_a_store_that_creates_a_file_twice_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", lambda source, target: Path(target).write_bytes(Path(source).read_bytes()))
    found = list(check_store(str(tmp_path / "store"), None, read_only=False))
    assert [one.health for one in found] == [PartHealth.WRONG]
    assert not (tmp_path / "store").exists()


def test_extras_that_are_missing_are_wrong_where_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    version = metadata.version

    def without_obstore(name: str) -> str:
        if name == "obstore":
            raise metadata.PackageNotFoundError(name)
        return "0.1" if name == "deltalake" else version(name)

    monkeypatch.setattr(metadata, "version", without_obstore)
    found = {finding.text.split(":")[0]: finding for finding in check_packages({"delta"})}
    assert found["extra delta"].health is PartHealth.WRONG
    assert "deltalake is 0.1" in found["extra delta"].text
    assert "obstore is not installed" in found["extra delta"].text
    assert "pip install '.[delta]' --constraint dev/constraints.txt" in found["extra delta"].text
    assert found["extra spark"].health is PartHealth.NOTE
    assert found["extra protobuf"].health is PartHealth.OK
