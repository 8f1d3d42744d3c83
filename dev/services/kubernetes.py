"""Kubernetes: a real one of a single node, see `dev.node`; root on a Debian is needed, and one runs at a time."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dev.apt import has_apt
from dev.node import image, programs
from dev.node.settings import ADDRESS, Plan, Ports
from dev.ports import free_ports
from dev.progress import Say, quiet
from dev.service import Owner, ServiceFolder, clean_environment

# It may have to wait for another stack's node.
_READY_WITHIN_S = 900
# All pods are ended before.
_GRACE_S = 60.0


@dataclass(frozen=True)
class Kubernetes:
    """A running node, as its clients see it."""

    url: str
    pid: int
    folder: str

    # Where pods reach what listens on this machine.
    ADDRESS = ADDRESS
    IMAGE = image.NAME

    @property
    def ports(self) -> dict[str, int]:
        """Its ports, by what they are for."""
        return {"api": int(self.url.rpartition(":")[2])}

    def healthy(self, timeout: float = 2) -> bool:
        """Whether the node was ready, and its API server is there."""
        return Path(self.folder, "ready").exists() and self.is_up("api-server")

    def kubeconfig(self, user: str) -> str:
        """Return the file of a user: `admin`, or `airflow`, which has the rights that a test gives it."""
        return f"{self.folder}/keys/{user}.kubeconfig"

    def stop(self, name: str) -> None:
        """Kill one of its programs, such as `api-server` or `kubelet`."""
        os.kill(self._pid(name), signal.SIGKILL)
        while self.is_up(name):
            time.sleep(0.05)  # between two looks at a process of another parent

    def start(self, name: str) -> None:
        """Start a program again that was stopped."""
        before = self._pid(name)
        Path(self.folder, f"{name}.wanted").touch()
        while self._pid(name) == before:
            time.sleep(0.05)  # between two looks at what the node has done

    def is_up(self, name: str) -> bool:
        """Whether one of its programs runs."""
        try:
            told = Path(f"/proc/{self._pid(name)}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return told not in "ZX"

    def is_ready(self) -> bool:
        """Whether the API server answers, and has the node as ready."""
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            conditions = self.core.read_node("node").status.conditions
        except (ApiException, HTTPError):
            return False
        return any(one.type == "Ready" and one.status == "True" for one in conditions)

    @cached_property
    def core(self) -> Any:
        """The API, by an administrator."""
        return self._client().CoreV1Api(self._api)

    @cached_property
    def rights(self) -> Any:
        """The API of rights, by an administrator."""
        return self._client().RbacAuthorizationV1Api(self._api)

    def _client(self) -> Any:
        # Only its own tests need it.
        from kubernetes import client

        return client

    @cached_property
    def _api(self) -> Any:
        from kubernetes import config

        return config.new_client_from_config(self.kubeconfig("admin"))

    def _pid(self, name: str) -> int:
        return int(Path(self.folder, f"{name}.pid").read_text())


def start(folder: ServiceFolder, owner: Owner | None) -> Kubernetes:
    """Start a new node in `folder`, and wait until it is ready."""
    folder.prepare()
    path = folder.path.resolve()
    ports = Ports(*free_ports(8))
    (path / "plan.json").write_text(json.dumps(asdict(ports)))
    # What it mounts is mounted for it alone, and goes with its last process, however that ends.
    command = ["unshare", "--mount", sys.executable, "-m", "dev.node.run", str(path)]
    environment = clean_environment(drop=("KUBE", "SPARK_", "AIRFLOW_"))
    environment["PYTHONPATH"] = str(Path(__file__).parent.parent.parent)
    leash = folder.start(command, owner, environment, grace=_GRACE_S, orderly=True)
    return folder.ready(Kubernetes(Plan(path, ports).url, 0, str(path)), leash, _READY_WITHIN_S)


def lacking() -> list[str]:
    """Return what a node needs and this machine has not: nothing is built by asking."""
    found = [] if has_apt(as_root=True) else ["root on a Debian"]
    found += programs.missing()
    return found or [str(path.name) for path in image.archives() if not path.is_file()]


def make(say: Say = quiet) -> None:
    """Have all that a node needs: minutes the first time."""
    programs.build(say)
    image.make(say)
