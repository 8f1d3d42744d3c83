"""HDFS: a NameNode and one DataNode, Hadoop's own, on the loopback only."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dev import hadoop
from dev.errors import ServiceFailed
from dev.java import Jdk
from dev.ports import LOOPBACK, free_ports, listening
from dev.service import Owner, ServiceFolder, clean_environment

_READY_WITHIN_S = 180
_FORMAT_WITHIN_S = 120
_SERVER = "org.apache.hadoop.hdfs.server"
_SETTINGS = {
    "dfs.replication": "1",
    # With one node there is none to take the place of one that fails.
    "dfs.client.block.write.replace-datanode-on-failure.enable": "false",
    # Nothing here outlives a machine that goes down, and each of its operations would wait for the disk.
    "dfs.namenode.edits.noeditlogchannelflush": "true",
    # A new NameNode has nothing to wait for.
    "dfs.namenode.safemode.extension": "0",
    # A disk that is nearly full would make it read-only.
    "dfs.namenode.resource.du.reserved": "0",
    "dfs.namenode.datanode.registration.ip-hostname-check": "false",
}


@dataclass(frozen=True)
class HdfsDaemon:
    """A running node, as its clients see it.

    `uri` and `web` are of the NameNode, also for a DataNode; `conf` is a HADOOP_CONF_DIR. The user that started it may
    do everything; others are believed to be who they say they are.
    """

    uri: str
    web: int
    conf: str
    pid: int
    folder: str
    is_node: bool = False

    @property
    def ports(self) -> dict[str, int]:
        """Its ports, by what they are for."""
        return {"rpc": int(self.uri.rpartition(":")[2]), "web": self.web}

    def healthy(self, timeout: float = 2) -> bool:
        """Whether the NameNode answers, and, of a DataNode, writes to it."""
        if not listening(self.web):
            return False
        try:
            found = self._asked("FSNamesystemState", timeout)
        except (OSError, ValueError, LookupError):
            return False
        return found["FSState"] == "Operational" and (bool(found["NumLiveDataNodes"]) or not self.is_node)

    def _asked(self, bean: str, timeout: float) -> dict[str, Any]:
        place = f"http://{LOOPBACK}:{self.web}/jmx?qry=Hadoop:service=NameNode,name={bean}"
        with urllib.request.urlopen(place, timeout=timeout) as answer:
            found: dict[str, Any] = json.loads(answer.read())["beans"][0]
            return found


def start_name_node(folder: ServiceFolder, jars: Path, jdk: Jdk, owner: Owner | None) -> HdfsDaemon:
    """Start a new NameNode without any files in `folder`, and wait until it answers."""
    rpc, web = free_ports(2)
    folder.prepare()
    uri = f"hdfs://{LOOPBACK}:{rpc}"
    settings = {
        **_SETTINGS,
        "dfs.namenode.http-address": f"{LOOPBACK}:{web}",
        "dfs.namenode.name.dir": (folder.path / "name").as_uri(),
    }
    daemon = HdfsDaemon(uri, web, str(_configure(folder, uri, settings)), 0, str(folder.path))
    command = hadoop.command(folder, daemon.conf, jars, jdk, f"{_SERVER}.namenode.NameNode")
    with folder.log.open("a") as log:
        formatted = subprocess.run(
            [*command, "-format", "-nonInteractive"],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_environment(jdk),
            timeout=_FORMAT_WITHIN_S,
            check=False,
        )
    if formatted.returncode != 0:
        raise ServiceFailed(folder.name, "could not make an empty file system", folder.log)
    return _start(folder, command, jdk, owner, daemon)


def start_data_node(
    folder: ServiceFolder, jars: Path, jdk: Jdk, owner: Owner | None, name_node: HdfsDaemon
) -> HdfsDaemon:
    """Start a new DataNode of the NameNode in `folder`, and wait until that counts on it."""
    data, web, ipc = free_ports(3)
    folder.prepare()
    settings = {
        **_SETTINGS,
        "dfs.datanode.address": f"{LOOPBACK}:{data}",
        "dfs.datanode.http.address": f"{LOOPBACK}:{web}",
        "dfs.datanode.ipc.address": f"{LOOPBACK}:{ipc}",
        "dfs.datanode.data.dir": (folder.path / "data").as_uri(),
    }
    conf = _configure(folder, name_node.uri, settings)
    daemon = replace(name_node, conf=str(conf), pid=0, folder=str(folder.path), is_node=True)
    command = hadoop.command(folder, daemon.conf, jars, jdk, f"{_SERVER}.datanode.DataNode")
    return _start(folder, command, jdk, owner, daemon)


def _configure(folder: ServiceFolder, uri: str, settings: Mapping[str, str]) -> Path:
    core = {"fs.defaultFS": uri, "hadoop.tmp.dir": str(folder.path / "hadoop")}
    conf = hadoop.configure(folder, {"hdfs": settings, "core": core})
    # The pages for people are in no jar, and the servers insist on their folders.
    for page in ("hdfs", "datanode"):
        (conf / "webapps" / page).mkdir(parents=True)
    return conf


def _environment(jdk: Jdk) -> dict[str, str]:
    return {**clean_environment(drop=("HADOOP_", "HDFS_")), "JAVA_HOME": str(jdk.home)}


def _start(folder: ServiceFolder, command: list[str], jdk: Jdk, owner: Owner | None, daemon: HdfsDaemon) -> HdfsDaemon:
    leash = folder.start(command, owner, _environment(jdk))
    return folder.ready(daemon, leash, _READY_WITHIN_S)
