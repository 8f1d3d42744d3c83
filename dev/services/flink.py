"""Flink: a JobManager, a TaskManager and an SQL Gateway by plain `java`, on the loopback only.

Flink's shell scripts derive the memory of a process and what Java has to open for it; here each is given by hand. Its
distribution is no artifact of Maven's: the jars are those that PyPI's apache-flink-libraries has.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from dev import jars
from dev.errors import JarsUnavailable
from dev.java import Jdk
from dev.locks import file_lock
from dev.ports import LOOPBACK, free_ports, listening
from dev.progress import Say, quiet
from dev.service import Owner, ServiceFolder, clean_environment
from dev.services.s3 import REGION, S3

CURRENT, OLD = "2.0.0", "1.20.3"
# What comes to the distribution.
JARS = {CURRENT: jars.FLINK, OLD: jars.FLINK_CDC}
_READY_WITHIN_S = 120
_PLUGINS = "plugins"
_PACKAGES = (
    *("java.lang", "java.net", "java.io", "java.nio", "sun.nio.ch", "java.lang.reflect", "java.text", "java.time"),
    *("java.util", "java.util.concurrent", "java.util.concurrent.atomic", "java.util.concurrent.locks"),
)
_EXPORTS = ("java.rmi/sun.rmi.registry", "jdk.compiler/com.sun.tools.javac.api", "java.security.jgss/sun.security.krb5")
_JAVA = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Djava.net.preferIPv4Stack=true",
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _PACKAGES),
    *(f"--add-exports={name}=ALL-UNNAMED" for name in _EXPORTS),
)
_LOG = """\
rootLogger.level = INFO
rootLogger.appenderRef.out.ref = Out
appender.out.name = Out
appender.out.type = CONSOLE
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{HH:mm:ss.SSS} %-5p %c{1} - %m%n
"""
_RUNTIME = "org.apache.flink.runtime"
# By service: the heap, the main class with its arguments, and what answers when it is up.
_PROGRAMS: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "flink-manager": (
        "640m",
        f"{_RUNTIME}.entrypoint.StandaloneSessionClusterEntrypoint",
        ("--executionMode", "cluster"),
    ),
    "flink-worker": ("896m", f"{_RUNTIME}.taskexecutor.TaskManagerRunner", ()),
    "flink-gateway": ("512m", "org.apache.flink.table.gateway.SqlGateway", ()),
}
_SIZES = {
    "taskmanager.cpu.cores": 2,
    "taskmanager.memory.task.heap.size": "640mb",
    "taskmanager.memory.task.off-heap.size": "0b",
    "taskmanager.memory.framework.heap.size": "128mb",
    "taskmanager.memory.framework.off-heap.size": "128mb",
    "taskmanager.memory.managed.size": "64mb",
    "taskmanager.memory.network.min": "64mb",
    "taskmanager.memory.network.max": "64mb",
    "taskmanager.memory.jvm-metaspace.size": "256mb",
    "taskmanager.memory.jvm-overhead.min": "192mb",
    "taskmanager.memory.jvm-overhead.max": "192mb",
    "jobmanager.memory.heap.size": "512mb",
    "jobmanager.memory.off-heap.size": "128mb",
    "jobmanager.memory.jvm-metaspace.size": "256mb",
    "jobmanager.memory.jvm-overhead.min": "192mb",
    "jobmanager.memory.jvm-overhead.max": "192mb",
}


@dataclass(frozen=True)
class Ports:
    """The ports of one cluster."""

    rest: int
    rpc: int
    blob: int
    worker_data: int
    gateway: int

    @classmethod
    def of(cls, conf: Path) -> Ports:
        """Return those of a cluster: a process that starts again is where the others look for it."""
        file = conf / "ports.json"
        if not file.exists():
            conf.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(asdict(cls(*free_ports(5)))))
        kept = json.loads(file.read_text())
        return cls(**{one.name: kept[one.name] for one in fields(cls)})


@dataclass(frozen=True)
class FlinkDaemon:
    """A running process of Flink's, as its clients see it. `url` is where it answers; a worker's manager answers."""

    url: str
    cluster: Mapping[str, int]
    pid: int
    folder: str

    @property
    def ports(self) -> dict[str, int]:
        """Its ports, by what they are for."""
        return {"rest": int(self.url.rsplit(":", 1)[1])}

    @property
    def _name(self) -> str:
        return _program_of(Path(self.folder).name)

    def healthy(self, timeout: float = 2) -> bool:
        """Whether it answers; of a worker, whether its manager has slots."""
        if not listening(self.ports["rest"]):
            return False
        try:
            if self._name == "flink-gateway":
                return bool(self.asked("info", timeout))
            slots = int(self.asked("overview", timeout)["slots-total"])
        except (OSError, ValueError, KeyError):
            return False
        return slots > 0 or self._name == "flink-manager"

    def asked(self, what: str, timeout: float = 10) -> dict[str, Any]:
        """Return what its REST API says."""
        with urllib.request.urlopen(f"{self.url}/{what}", timeout=timeout) as answer:
            told: dict[str, Any] = json.loads(answer.read())
            return told


@dataclass(frozen=True)
class Flink:
    """A running cluster."""

    manager: FlinkDaemon
    worker: FlinkDaemon
    gateway: FlinkDaemon


@dataclass(frozen=True)
class Setup:
    """What a process is started with; `conf` is the cluster's, which the first one writes.

    :param plugins: a folder of jars by name; Flink loads each apart from the libraries.
    :param settings: of the cluster, besides our own.
    """

    libraries: tuple[Path, ...]
    jdk: Jdk
    owner: Owner | None
    conf: Path
    ports: Ports
    plugins: Mapping[str, Path] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)


def libraries(home: Path, version: str, say: Say = quiet) -> Path:
    """Have the distribution's jars below `home`, fetched when they are not there yet; return their folder."""
    target = home / f"apache-flink-libraries-{version}"
    home.mkdir(parents=True, exist_ok=True)
    with file_lock(home / "flink.lock"):
        if not target.is_dir():
            say("jars: fetching Flink's distribution (some 337 MB the first time; two minutes or so)")
            _fetch(target, version)
    return target


def _fetch(target: Path, version: str) -> None:
    scratch = Path(tempfile.mkdtemp(prefix=".flink-", dir=target.parent))
    wanted = f"apache-flink-libraries=={version}"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    try:
        done = subprocess.run([*pip, "--target", scratch, wanted], capture_output=True, text=True, check=False)
        if done.returncode:
            raise JarsUnavailable(f"Could not fetch {wanted} from PyPI: {done.stderr.strip()[-300:]}")
        (scratch / "pyflink" / "lib").replace(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def start(folder: ServiceFolder, setup: Setup) -> FlinkDaemon:
    """Start a process of the cluster, and wait until it answers; which one the folder's name says."""
    folder.prepare()
    ports = setup.ports
    if not (setup.conf / "config.yaml").exists():
        _configure(setup)
    program = _program_of(folder.name)
    heap, main, arguments = _PROGRAMS[program]
    (folder.path / "tmp").mkdir()
    command = [
        setup.jdk.java,
        f"-Xmx{heap}",
        "-XX:MaxMetaspaceSize=320m",
        "-XX:MaxDirectMemorySize=256m",
        *_JAVA,
        f"-Djava.io.tmpdir={folder.path / 'tmp'}",
        f"-Dlog4j.configurationFile={setup.conf / 'log4j.properties'}",
        "-cp",
        ":".join(f"{place}/*" for place in setup.libraries),
        main,
        *(() if program == "flink-gateway" else ("--configDir", str(setup.conf))),
        *arguments,
    ]
    environment = clean_environment(drop=("FLINK_", "HADOOP_", "AWS_")) | {"FLINK_CONF_DIR": str(setup.conf)}
    environment |= {"FLINK_PLUGINS_DIR": str(setup.conf / _PLUGINS)} if setup.plugins else {}
    leash = folder.start(command, setup.owner, environment)
    port = ports.gateway if program == "flink-gateway" else ports.rest
    daemon = FlinkDaemon(f"http://{LOOPBACK}:{port}", asdict(ports), 0, str(folder.path))
    folder.wait_ready(daemon.healthy, leash, _READY_WITHIN_S)
    service = folder.process("service")
    assert service is not None
    daemon = FlinkDaemon(daemon.url, daemon.cluster, service.pid, daemon.folder)
    folder.write_state(asdict(daemon))
    return daemon


def with_s3(s3: S3) -> dict[str, object]:
    """Return the settings by which a cluster's plugin keeps checkpoints in a store."""
    return {
        "s3.endpoint": s3.url,
        "s3.endpoint.region": REGION,
        "s3.path-style-access": "true",
        "s3.access-key": s3.access_key,
        "s3.secret-key": s3.secret_key,
    }


def _program_of(service: str) -> str:
    return service.removeprefix("old-")


def _configure(setup: Setup) -> None:
    ports, home = setup.ports, setup.conf.with_name(setup.conf.name.removesuffix("-conf"))
    for name in ("checkpoints", "savepoints", "tmp"):
        (home / name).mkdir(parents=True, exist_ok=True)
    setup.conf.mkdir(parents=True, exist_ok=True)
    settings = {
        "jobmanager.rpc.address": LOOPBACK,
        "jobmanager.rpc.port": ports.rpc,
        "jobmanager.bind-host": LOOPBACK,
        "rest.address": LOOPBACK,
        "rest.port": ports.rest,
        "rest.bind-address": LOOPBACK,
        "rest.bind-port": ports.rest,
        "taskmanager.host": LOOPBACK,
        "taskmanager.bind-host": LOOPBACK,
        "blob.server.port": ports.blob,
        # A new one each time: behind the port of a TaskManager that was killed the JobManager looks for that one, and
        # the next may never be let in.
        "taskmanager.rpc.port": 0,
        "taskmanager.data.port": ports.worker_data,
        "taskmanager.data.bind-port": ports.worker_data,
        "taskmanager.numberOfTaskSlots": 8,
        "parallelism.default": 1,
        **_SIZES,
        "io.tmp.dirs": home / "tmp",
        "sql-gateway.endpoint.rest.address": LOOPBACK,
        "sql-gateway.endpoint.rest.bind-address": LOOPBACK,
        "sql-gateway.endpoint.rest.port": ports.gateway,
        "sql-gateway.endpoint.rest.bind-port": ports.gateway,
        "execution.checkpointing.dir": (home / "checkpoints").as_uri(),
        "execution.checkpointing.savepoint-dir": (home / "savepoints").as_uri(),
        # A statement can't set it, and an idle stream commits each tenth checkpoint.
        "execution.checkpointing.num-retained": 20,
        "heartbeat.timeout": 10000,
        "heartbeat.interval": 2000,
        **setup.settings,
    }
    for name, jar_folder in setup.plugins.items():
        (setup.conf / _PLUGINS).mkdir(exist_ok=True)
        (setup.conf / _PLUGINS / name).symlink_to(jar_folder.absolute())
    lines = "".join(f"{key}: {value}\n" for key, value in settings.items())
    (setup.conf / "config.yaml").write_text(lines)
    (setup.conf / "log4j.properties").write_text(_LOG)
