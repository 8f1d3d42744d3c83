"""Spark's drivers on a real Kubernetes of one node: namespaces with the documented rights, and what is there."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml

from dev.service import CHECKOUT
from dev.services.kubernetes import Kubernetes
from dev.stack import Stack
from tests.support.broker import poll_until

PATIENCE = 600.0
_RIGHTS = CHECKOUT / "dev/kubernetes/rights/spark.yaml"
# Root, since the folder is root's; a bucket would not ask.
_TEMPLATE = {
    "apiVersion": "v1",
    "kind": "Pod",
    "spec": {
        "securityContext": {"runAsUser": 0, "runAsGroup": 0},
        "containers": [{"name": "spark", "env": [{"name": "HOME", "value": "/root"}]}],
    },
}


@dataclass(frozen=True)
class Namespace:
    """A namespace of the node, and a folder that its pods see by the same path."""

    node: Kubernetes
    name: str
    folder: Path

    def connect(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let Airflow's connection lead here, by the rights of the user airflow."""
        extra = {"deploy-mode": "cluster", "namespace": self.name}
        connection = {"conn_type": "spark", "host": f"k8s://{self.node.url}", "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
        monkeypatch.setenv("AIRFLOW__KUBERNETES_EXECUTOR__IN_CLUSTER", "False")
        monkeypatch.setenv("AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE", self.node.kubeconfig("airflow"))
        monkeypatch.delenv("KUBECONFIG", raising=False)

    def conf(self) -> dict[str, str]:
        """Return Spark's settings."""
        template = self.folder / "pod.json"
        template.write_text(json.dumps(_TEMPLATE))
        made = {
            "spark.kubernetes.container.image": self.node.IMAGE,
            "spark.kubernetes.container.image.pullPolicy": "Never",
            "spark.kubernetes.authenticate.driver.serviceAccountName": "spark",
            "spark.kubernetes.driver.master": self.node.url,
            "spark.kubernetes.file.upload.path": (self.folder / "uploads").as_uri(),
            "spark.kubernetes.driver.request.cores": "0.1",
            "spark.kubernetes.executor.request.cores": "0.1",
            "spark.executor.instances": "1",
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.ui.enabled": "false",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        }
        for role in ("driver", "executor"):
            made[f"spark.kubernetes.{role}.podTemplateFile"] = str(template)
            volume = f"spark.kubernetes.{role}.volumes.hostPath.shared"
            made |= {f"{volume}.mount.path": str(self.folder), f"{volume}.options.path": str(self.folder)}
        return made

    def pods(self, role: str = "driver") -> dict[str, str]:
        """Return the phases of the pods of a role, by name, the oldest first."""
        found = self.node.core.list_namespaced_pod(self.name, label_selector=f"spark-role={role}").items
        found.sort(key=lambda pod: pod.metadata.creation_timestamp)
        return {pod.metadata.name: pod.status.phase for pod in found}

    def running(self, role: str = "driver") -> list[str]:
        """Return the names of the pods of a role that run and are to go on."""
        found = self.node.core.list_namespaced_pod(self.name, label_selector=f"spark-role={role}").items
        return [
            pod.metadata.name
            for pod in found
            if pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None
        ]

    def await_pods(self, count: int, role: str = "driver") -> list[str]:
        """Wait until so many pods of a role run; return their names."""
        poll_until(lambda: [*self.pods(role).values()].count("Running") == count, f"{count} {role}s to run", PATIENCE)
        return [name for name, phase in self.pods(role).items() if phase == "Running"]

    def delete(self, pod: str) -> None:
        """Delete a pod, as an administrator does."""
        self.node.core.delete_namespaced_pod(pod, self.name)

    def kill(self, pod: str) -> None:
        """Kill the processes of a pod's containers, as a lack of memory does."""
        uid = self.node.core.read_namespaced_pod(pod, self.name).metadata.uid
        for process in psutil.process_iter(["name"]):
            with suppress(OSError, psutil.NoSuchProcess):
                # The image of the pod itself, which holds its network, has this program alone.
                if f"pod{uid}" in Path(f"/proc/{process.pid}/cgroup").read_text() and process.info["name"] != "sleep":
                    process.kill()

    def start(self, program: str) -> None:
        """Start a program of the node again, and wait until the API server answers and the node is ready."""
        self.node.start(program)
        poll_until(self.node.is_ready, "the node to be ready", PATIENCE)

    def limit(self, pods: int) -> None:
        """Let the namespace have so many pods."""
        core, quota = self.node.core, {"metadata": {"name": "quota"}, "spec": {"hard": {"pods": str(pods)}}}
        if core.list_namespaced_resource_quota(self.name).items:
            core.patch_namespaced_resource_quota("quota", self.name, quota)
        else:
            core.create_namespaced_resource_quota(self.name, quota)

        def counted() -> bool:
            hard = core.read_namespaced_resource_quota("quota", self.name).status.hard
            return bool(hard) and hard["pods"] == str(pods)

        poll_until(counted, "the quota to count", PATIENCE)

    def left(self) -> list[str]:
        """Return all that is in the namespace, except what Kubernetes keeps in each."""
        core = self.node.core
        kinds = {"pod": core.list_namespaced_pod, "service": core.list_namespaced_service}
        kinds |= {"secret": core.list_namespaced_secret, "configmap": core.list_namespaced_config_map}
        found = [f"{kind}/{item.metadata.name}" for kind, ask in kinds.items() for item in ask(self.name).items]
        return sorted({*found} - {"configmap/kube-root-ca.crt"})

    def shown(self, canary: str) -> list[str]:
        """Return where a text can be read: in objects that are no secrets, in logs of pods, in the shared folder."""
        # Only its own tests need it.
        from kubernetes.client import ApiException

        core, found = self.node.core, []
        for ask in (core.list_namespaced_pod, core.list_namespaced_service, core.list_namespaced_config_map):
            for item in ask(self.name).items:
                if canary in json.dumps(core.api_client.sanitize_for_serialization(item)):
                    found.append(f"{item.kind or ask.__name__} {item.metadata.name}")
        for pod in (*self.running(), *self.running("executor")):
            # One that ends meanwhile has no log.
            with suppress(ApiException):
                if canary in core.read_namespaced_pod_log(pod, self.name):
                    found.append(f"log of {pod}")
        places = [path for path in self.folder.rglob("*") if path.is_file() and path.name != "dag.py"]
        return found + [str(path) for path in places if canary.encode() in path.read_bytes()]

    def secrets(self) -> dict[str, dict[str, str]]:
        """Return the content of all secrets, by name."""
        found = self.node.core.list_namespaced_secret(self.name).items
        return {
            one.metadata.name: {key: base64.b64decode(value).decode() for key, value in one.data.items()}
            for one in found
        }


def make_namespace(node: Kubernetes, folder: Path, without: str = "") -> Namespace:
    """Make a namespace of a new name, with the rights of the documentation.

    :param without: a verb and a resource that the worker may not, such as "patch secrets".
    """
    name = f"lake-{uuid.uuid4().hex[:8]}"
    node.core.create_namespace({"metadata": {"name": name}})
    create = {
        "ServiceAccount": node.core.create_namespaced_service_account,
        "Role": node.rights.create_namespaced_role,
        "RoleBinding": node.rights.create_namespaced_role_binding,
    }
    for resource in yaml.safe_load_all(_RIGHTS.read_text().replace("namespace: lake\n", f"namespace: {name}\n")):
        if without and resource["metadata"]["name"] == "lakestream-worker" and resource["kind"] == "Role":
            verb, of = without.split()
            for rule in resource["rules"]:
                rule["verbs"] = [one for one in rule["verbs"] if one != verb or of not in rule["resources"]]
        create[resource["kind"]](name, resource)
    (folder / "uploads").mkdir()
    return Namespace(node, name, folder)


@pytest.fixture
def node(stack: Stack) -> Kubernetes:
    """A real Kubernetes of one node: the running one, or a new one."""
    return stack.up_kubernetes()


@pytest.fixture
def namespace(node: Kubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Namespace]:
    """A namespace, to which Airflow's connection leads."""
    made = make_namespace(node, tmp_path)
    made.connect(monkeypatch)
    yield made
    node.core.delete_collection_namespaced_pod(made.name, grace_period_seconds=1)
