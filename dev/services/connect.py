"""Kafka Connect with Debezium's connector for PostgreSQL: one standalone worker, on the loopback only."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dev.errors import ServiceFailed
from dev.java import Jdk
from dev.ports import LOOPBACK, free_ports, listening
from dev.service import Owner, ServiceFolder, clean_environment
from dev.services.postgres import Postgres

_READY_WITHIN_S = 90


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

    def healthy(self, timeout: float = 2) -> bool:
        """Whether the worker answers, and knows Debezium."""
        if not listening(self.ports["rest"]):
            return False
        try:
            return any("postgresql" in str(plugin["class"]) for plugin in self._ask("/connector-plugins", timeout))
        except (OSError, ServiceFailed):
            # It answers before its resources are there.
            return False

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
            # Truncates are left out by default.
            "skipped.operations": "none",
            "poll.interval.ms": "100",
            "topic.creation.default.replication.factor": "1",
            "topic.creation.default.partitions": "1",
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
        self._ask("/connectors", 60, {"name": name, "config": config})

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
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as e:
            said = e.read().decode(errors="replace")[:300]
            raise ServiceFailed("connect", f"refused {path} ({said})", Path(self.folder) / "service.log") from e


@dataclass(frozen=True)
class Setup:
    """What a worker is started with."""

    jars: Path
    debezium: Path
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
    (folder.path / "log4j2.xml").write_text(_LOG4J)
    properties = {
        "bootstrap.servers": setup.bootstrap,
        "listeners": f"http://{LOOPBACK}:{port}",
        "plugin.path": str(plugins),
        # Debezium announces its classes: looking into every jar would take seconds.
        "plugin.discovery": "service_load",
        "offset.storage.file.filename": str(folder.path / "offsets"),
        "offset.flush.interval.ms": "1000",
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "topic.creation.enable": "true",
    }
    (folder.path / "worker.properties").write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    command = [
        setup.jdk.java,
        "-Xmx384m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData",
        f"-Djava.io.tmpdir={folder.path / 'tmp'}",
        f"-Dlog4j2.configurationFile={folder.path / 'log4j2.xml'}",
        "-cp",
        f"{setup.jars}/*",
        "org.apache.kafka.connect.cli.ConnectStandalone",
        str(folder.path / "worker.properties"),
    ]
    leash = folder.start(command, setup.owner, clean_environment(drop=("KAFKA_", "CONNECT_")))
    connect = Connect(f"http://{LOOPBACK}:{port}", 0, str(folder.path))
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
