"""Kafka Connect with Debezium's connectors for PostgreSQL and MariaDB, and Iceberg's sink: one worker, on the loopback.

A distributed worker, although it is alone: a standalone one forgets its connectors when it is killed.
"""

from __future__ import annotations

import json
import secrets
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dev.errors import ServiceFailed
from dev.java import Jdk
from dev.leash import PIDS_FILE
from dev.ports import LOOPBACK, free_ports, listening
from dev.service import Owner, ServiceFolder, clean_environment
from dev.services import mariadb as mariadb_service
from dev.services.mariadb import MariaDb
from dev.services.postgres import Postgres

_READY_WITHIN_S = 90
# While its group rebalances a worker answers 409.
_BUSY_FOR_S = 30.0
# Files in its folder: its command line, for another start, its properties, and secrets for the config provider `file`.
_COMMAND = "command.json"
_PROPERTIES = "worker.properties"
SECRETS = "secrets"


@dataclass(frozen=True)
class Connect:
    """A running worker, as its clients see it."""

    url: str
    pid: int
    folder: str

    @property
    def ports(self) -> dict[str, int]:
        """Its ports, by what they are for."""
        return {"rest": int(self.url.rsplit(":", 1)[1])}

    @property
    def offsets_topic(self) -> str:
        """The topic in which the worker stores offsets."""
        properties = (Path(self.folder) / _PROPERTIES).read_text()
        return dict(line.split("=", 1) for line in properties.splitlines())["offset.storage.topic"]

    def healthy(self, timeout: float = 2) -> bool:
        """Whether the worker answers, and knows Debezium and the sink."""
        if not listening(self.ports["rest"]):
            return False
        try:
            known = {str(plugin["class"]) for plugin in self._ask("/connector-plugins", timeout)}
            # Before it has joined its group it knows its plugins, and no connectors.
            self._ask("/connectors", timeout)
        except (OSError, ServiceFailed, ValueError):
            # It answers before its resources are there.
            return False
        return all(any(name in one for one in known) for name in ("PostgresConnector", "IcebergSinkConnector"))

    def start_again(self, owner: Owner | None) -> Connect:
        """Start the worker that was killed once more, with the connectors that it had."""
        folder = ServiceFolder("connect", Path(self.folder))
        command = json.loads((folder.path / _COMMAND).read_text())
        # What it says of the worker before would pass for news of this one.
        (folder.path / PIDS_FILE).unlink(missing_ok=True)
        return _start(folder, command, owner, self.url)

    def capture(self, postgres: Postgres, name: str, tables: str, **settings: str) -> None:
        """Start a connector that sends the changes of `tables` to topics that begin with its name.

        :param tables: a regular expression of `schema.table`.
        :param settings: further settings of Debezium, with _ for the points in their names; they win over ours.
        """
        config = {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput",
            "database.hostname": postgres.host,
            "database.port": str(postgres.port),
            "database.dbname": postgres.database,
            "database.user": postgres.username,
            "database.password": postgres.password,
            "topic.prefix": name,
            "slot.name": name,
            "publication.name": name,
            "publication.autocreate.mode": "filtered",
            "table.include.list": tables,
        }
        self._begin(name, config, settings)

    def capture_mariadb(self, mariadb: MariaDb, name: str, tables: str, bootstrap: str, **settings: str) -> None:
        """Start a connector that sends the changes of `tables` to topics that begin with its name.

        :param tables: a regular expression of `database.table`.
        :param bootstrap: where the connector keeps the history of columns.
        :param settings: as those of `capture`.
        """
        config = {
            "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
            "database.hostname": LOOPBACK,
            "database.port": str(mariadb.port),
            "database.user": mariadb_service.USERNAME,
            "database.password": mariadb.password,
            "database.ssl.mode": "disable",
            # As a replica it has a number of its own.
            "database.server.id": str(secrets.randbelow(2**31) + 2),
            "topic.prefix": name,
            "table.include.list": tables,
            "include.schema.changes": "false",
            "schema.history.internal.kafka.bootstrap.servers": bootstrap,
            "schema.history.internal.kafka.topic": f"{name}-history",
        }
        self._begin(name, config, settings)

    def _begin(self, name: str, config: Mapping[str, str], settings: Mapping[str, str]) -> None:
        usual = {
            # Truncates are left out by default.
            "skipped.operations": "none",
            "poll.interval.ms": "100",
            "topic.creation.default.replication.factor": "-1",
            "topic.creation.default.partitions": "1",
        }
        said = {key.replace("_", "."): value for key, value in settings.items()}
        self._ask("/connectors", 60, {"name": name, "config": {**config, **usual, **said}})

    def release(self, name: str) -> None:
        """Stop a connector; its slot in PostgreSQL stays."""
        self._ask(f"/connectors/{name}", 60, method="DELETE")

    def restart(self, name: str) -> None:
        """Restart a connector's task: from the place in the log that it wrote down last."""
        self._ask(f"/connectors/{name}/restart?includeTasks=true", 60, {})

    def state(self, name: str) -> str:
        """Return the state of a connector: RUNNING, or what it failed with."""
        status = self._ask(f"/connectors/{name}/status", 10)
        failed = [task.get("trace", "") for task in status["tasks"] if task["state"] == "FAILED"]
        return failed[0] if failed else str(status["connector"]["state"])

    def _ask(self, path: str, timeout: float, body: object = None, method: str | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        until = time.monotonic() + _BUSY_FOR_S
        while True:
            try:
                with urllib.request.urlopen(request, timeout=timeout) as answer:
                    return json.loads(answer.read() or b"null")
            except urllib.error.HTTPError as e:
                said = e.read().decode(errors="replace")
                # Its members agree on who works on what; until then a new connector has no status.
                is_early = (e.code == 409 and "rebalanc" in said) or (e.code == 404 and "No status found" in said)
                if is_early and time.monotonic() < until:
                    time.sleep(0.2)  # Nothing tells when they have agreed.
                    continue
                problem = f"refused {path} ({said[:300]})"
                raise ServiceFailed("connect", problem, Path(self.folder) / "service.log") from e


@dataclass(frozen=True)
class Setup:
    """What a worker is started with."""

    jars: Path
    debezium: Path
    iceberg: Path
    jdk: Jdk
    bootstrap: str
    owner: Owner | None


def start(folder: ServiceFolder, setup: Setup) -> Connect:
    """Start a new worker in `folder`, and wait until it answers."""
    folder.prepare()
    (port,) = free_ports(1)
    plugins = folder.path / "plugins"
    plugins.mkdir()
    (folder.path / "tmp").mkdir()
    (plugins / "debezium").symlink_to(setup.debezium)
    (plugins / "iceberg").symlink_to(setup.iceberg)
    (folder.path / SECRETS).mkdir(mode=0o700)
    (folder.path / "log4j2.xml").write_text(_LOG4J)
    # A worker that is made anew knows nothing of the connectors of one before.
    name = f"connect-{uuid.uuid4().hex[:8]}"
    properties = {
        "bootstrap.servers": setup.bootstrap,
        "group.id": name,
        "listeners": f"http://{LOOPBACK}:{port}",
        "rest.advertised.host.name": LOOPBACK,
        "plugin.path": str(plugins),
        # Both plugins announce their classes: looking into every jar would take seconds.
        "plugin.discovery": "service_load",
        # As many copies as the brokers have of a topic by default.
        **{f"{what}.storage.topic": f"{name}-{what}" for what in ("config", "offset", "status")},
        **{f"{what}.storage.replication.factor": "-1" for what in ("config", "offset", "status")},
        "offset.storage.partitions": "1",
        "status.storage.partitions": "1",
        # Also how long Iceberg's sink waits until it looks at its control topic: see docs/connect.md.
        "offset.flush.interval.ms": "1000",
        "scheduled.rebalance.max.delay.ms": "0",
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "topic.creation.enable": "true",
        "config.providers": "file",
        "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
        "config.providers.file.param.allowed.paths": str(folder.path / SECRETS),
    }
    (folder.path / _PROPERTIES).write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    command = [
        str(setup.jdk.java),
        "-Xmx768m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData",
        f"-Djava.io.tmpdir={folder.path / 'tmp'}",
        f"-Dlog4j2.configurationFile={folder.path / 'log4j2.xml'}",
        "-cp",
        f"{setup.jars}/*",
        "org.apache.kafka.connect.cli.ConnectDistributed",
        str(folder.path / _PROPERTIES),
    ]
    (folder.path / _COMMAND).write_text(json.dumps(command))
    return _start(folder, command, setup.owner, f"http://{LOOPBACK}:{port}")


def _start(folder: ServiceFolder, command: list[str], owner: Owner | None, url: str) -> Connect:
    leash = folder.start(command, owner, clean_environment(drop=("KAFKA_", "CONNECT_")))
    connect = Connect(url, 0, str(folder.path))
    folder.wait_ready(connect.healthy, leash, _READY_WITHIN_S)
    service = folder.process("service")
    assert service is not None
    connect = Connect(connect.url, service.pid, connect.folder)
    folder.write_state(asdict(connect))
    return connect


_LOG4J = """\
<Configuration status="WARN">
  <Appenders>
    <Console name="out" target="SYSTEM_OUT"><PatternLayout pattern="%d{ISO8601} %-5p %c{1}: %m%n"/></Console>
  </Appenders>
  <Loggers>
    <Root level="INFO"><AppenderRef ref="out"/></Root>
    <Logger name="org.apache.kafka.clients" level="WARN"/>
    <Logger name="org.apache.kafka.connect.runtime.distributed" level="WARN"/>
  </Loggers>
</Configuration>
"""
