"""YARN: a ResourceManager and one NodeManager, Hadoop's own, on the loopback only; files are those of this machine."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dev import hadoop
from dev.java import Jdk
from dev.ports import LOOPBACK, free_ports, listening
from dev.service import Owner, ServiceFolder, clean_environment

_READY_WITHIN_S = 180
_SERVER = "org.apache.hadoop.yarn.server"
_NODE = {
    "yarn.nodemanager.resource.memory-mb": "4096",
    "yarn.nodemanager.resource.cpu-vcores": "4",
    "yarn.nodemanager.container-executor.class": f"{_SERVER}.nodemanager.DefaultContainerExecutor",
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.vmem-check-enabled": "false",
    # A disk that is nearly full makes a node unhealthy, and no application starts.
    "yarn.nodemanager.disk-health-checker.enable": "false",
    # Of a container that has ended, its folder with its log.
    "yarn.nodemanager.delete.debug-delay-sec": "3600",
}


@dataclass(frozen=True)
class YarnDaemon:
    """A running manager, as its clients see it.

    `url` is of the ResourceManager, also for a node; `conf` is its HADOOP_CONF_DIR, and what clients need.
    """

    url: str
    conf: str
    addresses: Mapping[str, str]
    web: int
    pid: int
    folder: str
    is_node: bool = False

    @property
    def ports(self) -> dict[str, int]:
        """Its ports, by what they are for."""
        return {"web": self.web}

    def healthy(self, timeout: float = 2) -> bool:
        """Whether the ResourceManager answers, and, of a node, counts on it."""
        if not listening(self.web):
            return False
        try:
            nodes = self.asked("metrics", timeout)["clusterMetrics"]["activeNodes"]
        except (OSError, ValueError):
            return False
        return bool(nodes) or not self.is_node

    def asked(self, what: str, timeout: float = 10) -> dict[str, Any]:
        """Return what the ResourceManager's REST API says."""
        request = urllib.request.Request(f"{self.url}/ws/v1/cluster/{what}", headers={"Accept": "application/json"})
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            told: dict[str, Any] = json.loads(answer.read())
            return told

    def kill(self, application: str) -> None:
        """Let the ResourceManager kill an application, as `yarn application -kill` does."""
        request = urllib.request.Request(
            f"{self.url}/ws/v1/cluster/apps/{application}/state",
            json.dumps({"state": "KILLED"}).encode(),
            {"Content-Type": "application/json"},
            method="PUT",
        )
        urllib.request.urlopen(request, timeout=10).close()


def start_resource_manager(folder: ServiceFolder, jars: Path, jdk: Jdk, owner: Owner | None) -> YarnDaemon:
    """Start a new ResourceManager in `folder`, and wait until it answers."""
    web, *others = free_ports(5)
    names = ("", ".scheduler", ".resource-tracker", ".admin")
    addresses = {
        f"yarn.resourcemanager{name}.address": f"{LOOPBACK}:{port}" for name, port in zip(names, others, strict=True)
    }
    addresses |= {"yarn.resourcemanager.webapp.address": f"{LOOPBACK}:{web}"}
    settings = {
        "yarn.resourcemanager.hostname": LOOPBACK,
        # It needs no file of queues: there is one for all.
        "yarn.resourcemanager.scheduler.class": f"{_SERVER}.resourcemanager.scheduler.fifo.FifoScheduler",
        "yarn.scheduler.minimum-allocation-mb": "128",
    }
    folder.prepare()
    conf = _configure(folder, settings | addresses)
    daemon = YarnDaemon(f"http://{LOOPBACK}:{web}", str(conf), addresses, web, 0, str(folder.path))
    return _start(folder, jars, jdk, owner, f"{_SERVER}.resourcemanager.ResourceManager", daemon)


def start_node_manager(
    folder: ServiceFolder, jars: Path, jdk: Jdk, owner: Owner | None, manager: YarnDaemon
) -> YarnDaemon:
    """Start a new node of the ResourceManager in `folder`, and wait until that counts on it."""
    web, port, localizer = free_ports(3)
    settings = {
        **_NODE,
        **manager.addresses,
        "yarn.nodemanager.hostname": LOOPBACK,
        "yarn.nodemanager.address": f"{LOOPBACK}:{port}",
        "yarn.nodemanager.localizer.address": f"{LOOPBACK}:{localizer}",
        "yarn.nodemanager.webapp.address": f"{LOOPBACK}:{web}",
        "yarn.nodemanager.local-dirs": str(folder.path / "local"),
        "yarn.nodemanager.log-dirs": str(folder.path / "containers"),
    }
    folder.prepare()
    conf = _configure(folder, settings)
    daemon = YarnDaemon(manager.url, str(conf), manager.addresses, web, 0, str(folder.path), is_node=True)
    return _start(folder, jars, jdk, owner, f"{_SERVER}.nodemanager.NodeManager", daemon)


def _configure(folder: ServiceFolder, settings: Mapping[str, str]) -> Path:
    core = {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(folder.path / "hadoop")}
    return hadoop.configure(folder, {"yarn": settings, "core": core})


def _start(
    folder: ServiceFolder, jars: Path, jdk: Jdk, owner: Owner | None, main: str, daemon: YarnDaemon
) -> YarnDaemon:
    command = hadoop.command(folder, daemon.conf, jars, jdk, main)
    environment = {**clean_environment(drop=("HADOOP_", "YARN_", "SPARK_")), "JAVA_HOME": str(jdk.home)}
    leash = folder.start(command, owner, environment)
    folder.wait_ready(daemon.healthy, leash, _READY_WITHIN_S)
    service = folder.process("service")
    assert service is not None
    daemon = YarnDaemon(**{**asdict(daemon), "pid": service.pid})
    folder.write_state(asdict(daemon))
    return daemon
