"""Hive's metastore on Derby, on the loopback only; files are those of this machine."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from xml.sax.saxutils import escape

from dev.archives import unpack
from dev.errors import ServiceFailed
from dev.java import Jdk
from dev.ports import LOOPBACK, free_ports, listening
from dev.service import Owner, ServiceFolder, clean_environment

_READY_WITHIN_S = 120
_HIVE = "org.apache.hadoop.hive.metastore"
# The newest that PyIceberg can speak to, and the newest of the older ones.
CURRENT, OLD = "4.0.0", "3.1.3"
# A commit's lock is forgotten so soon that a test can wait for it, and long after any commit is through.
LOCK_EXPIRES_AFTER_S = 6
_COMMON = {
    "metastore.thrift.bind.host": LOOPBACK,
    "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
    "metastore.expression.proxy": f"{_HIVE}.DefaultPartitionExpressionProxy",
    "metastore.event.db.notification.api.auth": "false",
    "metastore.hmshandler.retry.interval": "100ms",
    "metastore.txn.timeout": f"{LOCK_EXPIRES_AFTER_S}s",
}
_OF_VERSION = {
    # Without housekeeping no lock ever expires.
    CURRENT: {"metastore.housekeeping.threads.on": "true", "metastore.acid.housekeeper.interval": "1s"},
    # By default it wants a task that is part of Hive's server.
    OLD: {"metastore.task.threads.always": f"{_HIVE}.events.EventCleanerTask", "metastore.task.threads.remote": ""},
}
_SCHEMA_TOOL = {CURRENT: f"{_HIVE}.tools.schematool.MetastoreSchemaTool", OLD: f"{_HIVE}.tools.MetastoreSchemaTool"}
_OPENED = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("lang", "net", "nio", "util")]


@dataclass(frozen=True)
class Metastore:
    """A running metastore, as its clients see it."""

    uri: str
    warehouse: str
    version: str
    pid: int
    folder: str

    @property
    def ports(self) -> dict[str, int]:
        """Its ports, by what they are for."""
        return {"thrift": int(self.uri.rpartition(":")[2])}

    @property
    def properties(self) -> dict[str, str]:
        """Properties of a PyIceberg catalog."""
        return {"type": "hive", "uri": self.uri, "warehouse": self.warehouse}

    def healthy(self, timeout: float = 2) -> bool:
        """Whether somebody listens."""
        return listening(self.ports["thrift"])


@dataclass(frozen=True)
class Setup:
    """What a metastore is started with: the archive of Hive's, Hadoop's jars, and its version."""

    archive: Path
    hadoop: Path
    jdk: Jdk
    owner: Owner | None
    version: str


def start(folder: ServiceFolder, setup: Setup) -> Metastore:
    """Start a new metastore in `folder`, and wait until it answers."""
    folder.prepare()
    (port,) = free_ports(1)
    with tarfile.open(setup.archive) as packed:
        unpack(packed, folder.path / "app")
    (home,) = (folder.path / "app").iterdir()
    warehouse = folder.path / "warehouse"
    settings = {
        **_COMMON,
        **_OF_VERSION[setup.version],
        "metastore.thrift.port": str(port),
        "metastore.warehouse.dir": warehouse.as_uri(),
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder.path / 'db'};create=true",
    }
    for name in (warehouse, folder.path / "conf", folder.path / "tmp"):
        name.mkdir()
    (folder.path / "conf" / "metastore-site.xml").write_text(_site(settings))
    java = [setup.jdk.java, "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", *_OPENED]
    java += [f"-Djava.io.tmpdir={folder.path / 'tmp'}", f"-Dderby.stream.error.file={folder.path / 'derby.log'}"]
    # On Derby alone the metastore has a lock of its own, too: two requests that wait for each other's go on when Derby
    # gives up, by default after a minute.
    java.append("-Dderby.locks.waitTimeout=1")
    java += ["-cp", f"{folder.path / 'conf'}:{home}/lib/*:{setup.hadoop}/*"]
    environment = {
        **clean_environment(drop=("HADOOP_", "HIVE_", "METASTORE_")),
        "JAVA_HOME": str(setup.jdk.home),
        "METASTORE_HOME": str(home),
    }
    with folder.log.open("ab") as log:
        _make_schema([*java, _SCHEMA_TOOL[setup.version], "-dbType", "derby", "-initSchema"], environment, folder, log)
    leash = folder.start([*java, f"{_HIVE}.HiveMetaStore", "-p", str(port)], setup.owner, environment)
    metastore = Metastore(f"thrift://{LOOPBACK}:{port}", warehouse.as_uri(), setup.version, 0, str(folder.path))
    return folder.ready(metastore, leash, _READY_WITHIN_S)


def _make_schema(command: list[str], environment: Mapping[str, str], folder: ServiceFolder, log: IO[bytes]) -> None:
    # It does not make the tables of the locks by itself when it starts.
    done = subprocess.run(
        command, cwd=folder.path, env=dict(environment), stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False
    )
    if done.returncode:
        raise ServiceFailed(folder.name, f"could not make its tables (exit {done.returncode})", folder.log)


def _site(settings: Mapping[str, str]) -> str:
    lines = (
        f"<property><name>{key}</name><value>{escape(value)}</value></property>" for key, value in settings.items()
    )
    return "<configuration>\n" + "\n".join(lines) + "\n</configuration>\n"
