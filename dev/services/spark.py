"""Spark standalone: a master and its workers, on the loopback only, out of the pyspark that is installed here."""

from __future__ import annotations

import sysconfig
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dev.errors import JarsUnavailable
from dev.java import Jdk
from dev.ports import LOOPBACK, free_ports, listening
from dev.service import Owner, ServiceFolder, clean_environment

_READY_WITHIN_S = 90


@dataclass(frozen=True)
class SparkDaemon:
    """A running master or worker, as its clients see it; `master` is what applications are submitted to."""

    master: str
    port: int
    ui: str
    pid: int
    folder: str

    @property
    def ports(self) -> dict[str, int]:
        """Its ports, by what they are for."""
        return {"rpc": self.port, "ui": int(self.ui.rsplit(":", 1)[1])}

    def healthy(self, timeout: float = 2) -> bool:
        """Whether its page says that it is alive."""
        if not listening(self.ports["ui"]):
            return False
        try:
            with urllib.request.urlopen(f"{self.ui}/json/", timeout=timeout) as answer:
                return answer.status == 200
        except OSError:
            return False


def start_master(folder: ServiceFolder, jdk: Jdk, owner: Owner | None) -> SparkDaemon:
    """Start a new master in `folder`, and wait until it answers."""
    port, ui = free_ports(2)
    daemon = SparkDaemon(f"spark://{LOOPBACK}:{port}", port, f"http://{LOOPBACK}:{ui}", 0, str(folder.path))
    arguments = ["--host", LOOPBACK, "--port", str(port), "--webui-port", str(ui)]
    return _start(folder, jdk, owner, "org.apache.spark.deploy.master.Master", arguments, daemon)


def start_worker(folder: ServiceFolder, jdk: Jdk, owner: Owner | None, master: str, cores: int) -> SparkDaemon:
    """Start a new worker of the master in `folder`, with 2 GiB; and wait until it answers."""
    port, ui = free_ports(2)
    daemon = SparkDaemon(master, port, f"http://{LOOPBACK}:{ui}", 0, str(folder.path))
    arguments = ["--host", LOOPBACK, "--port", str(port), "--webui-port", str(ui)]
    arguments += ["--cores", str(cores), "--memory", "2g", "--work-dir", str(folder.path / "work"), master]
    return _start(folder, jdk, owner, "org.apache.spark.deploy.worker.Worker", arguments, daemon)


def _start(
    folder: ServiceFolder, jdk: Jdk, owner: Owner | None, main: str, arguments: Sequence[str], daemon: SparkDaemon
) -> SparkDaemon:
    folder.prepare()
    (folder.path / "tmp").mkdir()
    home = _spark_home()
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
    options += ["--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED"]
    command = [jdk.java, *options, f"-Djava.io.tmpdir={folder.path / 'tmp'}", "-cp", f"{home}/jars/*", main, *arguments]
    environment = {
        **clean_environment(drop=("SPARK_",)),
        # Of the executors' own servers, which would take the machine's name for their address.
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_PUBLIC_DNS": LOOPBACK,
        "SPARK_HOME": str(home),
        # Spark's shell scripts set it; without it the worker can't tell an executor's class path.
        "SPARK_SCALA_VERSION": next(home.glob("jars/spark-core_*.jar")).name.split("_")[1].split("-")[0],
        "JAVA_HOME": str(jdk.home),
        "SPARK_LOCAL_DIRS": str(folder.path / "tmp"),
    }
    leash = folder.start(command, owner, environment)
    folder.wait_ready(daemon.healthy, leash, _READY_WITHIN_S)
    service = folder.process("service")
    assert service is not None
    daemon = SparkDaemon(**{**asdict(daemon), "pid": service.pid})
    folder.write_state(asdict(daemon))
    return daemon


def _spark_home() -> Path:
    home = Path(sysconfig.get_path("purelib")) / "pyspark"
    if not (home / "jars").is_dir():
        raise JarsUnavailable("No Spark: it comes with pyspark, which is not installed here; run make setup.")
    return home
