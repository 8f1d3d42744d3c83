"""Requests to Kubernetes' API server, at the `spark` connection's address and with Airflow's credentials."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from airflow.providers.common.compat.sdk import conf

from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal, Transient

# Time-outs for connecting and for the answer, in seconds.
_TIMEOUTS_S = (5, 30)
# Section of Airflow's configuration.
_SECTION = "kubernetes_executor"
# A retry does not help after these answers.
_REFUSALS = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.UNPROCESSABLE_ENTITY)


class ClusterAway(LakestreamError, Transient):
    """Error of an API server that does not answer, or has no room for another pod."""

    def __init__(self, address: str, request: str, reason: str) -> None:
        super().__init__(
            f"Kubernetes at {address} can't be used right now ({request}: {reason}). The drivers there go on: retry."
        )


class ClusterRefuses(LakestreamError, Terminal):
    """Error of an API server that refuses a request of this worker."""

    def __init__(self, address: str, request: str, reason: str) -> None:
        super().__init__(
            f"Kubernetes at {address} refuses this worker ({request}: {reason}). docs/kubernetes.md has the rights "
            "that worker and driver need."
        )


def settings_of_airflow() -> dict[str, str]:
    """Return Airflow's configuration of the cluster: `in_cluster`, `config_file`, `cluster_context`.

    `in_cluster` is "true" or "false". Names without a value are left out.
    """
    settings = {"in_cluster": str(conf.getboolean(_SECTION, "in_cluster", fallback=True)).lower()}
    for name in ("config_file", "cluster_context"):
        if text := conf.get(_SECTION, name, fallback=""):
            settings[name] = text
    return settings


class KubernetesNamespace:
    """A namespace of a cluster, with its pods and secrets.

    :param master: the connection's host, `k8s://...`.

    Raises InvalidArgument if the credentials in Airflow's configuration do not exist.
    """

    def __init__(self, master: str, namespace: str) -> None:
        from kubernetes import client

        rest = master.removeprefix("k8s://")
        # As for Spark, https is the scheme of an address without a scheme.
        self.address = rest if re.match(r"https?://", rest) else f"https://{rest}"
        self.namespace = namespace
        configuration = _credentials(self.address)
        configuration.retries = 1
        api = client.ApiClient(configuration)
        self._core, self._rights = client.CoreV1Api(api), client.AuthorizationV1Api(api)

    def check_rights(self, needed: Mapping[str, Sequence[str]]) -> None:
        """Raise ClusterRefuses if this worker has not all the needed rights in the namespace.

        :param needed: verbs by resource; a part of a resource is written as `pods/log`.

        Raises ClusterRefuses, ClusterAway.
        """
        lacking = [
            f"{verb} {resource}"
            for resource, verbs in needed.items()
            for verb in verbs
            if not self._may(verb, resource)
        ]
        if lacking:
            raise ClusterRefuses(self.address, f"namespace {self.namespace}", f"it may not {', '.join(lacking)}")

    def pod(self, name: str) -> Any:
        """Return a pod, or None if the pod does not exist. Raises ClusterAway, ClusterRefuses."""
        return self._ask(f"get pod {name}", self._core.read_namespaced_pod, name, self.namespace)

    def pods(self, label: str) -> list[str]:
        """Return the names of the pods with a label, `name=value`. Raises ClusterAway, ClusterRefuses."""
        pods = self._ask("list pods", self._core.list_namespaced_pod, self.namespace, label_selector=label)
        return [pod.metadata.name for pod in pods.items] if pods else []

    def delete_pod(self, name: str, grace: int) -> None:
        """Ask Kubernetes to delete a pod, if it exists; do not wait for the end.

        :param grace: seconds that the pod has for ending by itself, before it is killed.

        Raises ClusterAway, ClusterRefuses.
        """
        call = self._core.delete_namespaced_pod
        self._ask(f"delete pod {name}", call, name, self.namespace, grace_period_seconds=grace)

    def log(self, name: str, lines: int) -> list[str]:
        """Return the last lines of a pod's log, or an empty list without a log. Raises ClusterAway, ClusterRefuses."""
        call = self._core.read_namespaced_pod_log
        text = self._ask(f"get log of {name}", call, name, self.namespace, tail_lines=lines)
        return str(text or "").splitlines()

    def create_secret(self, name: str, content: Mapping[str, str], labels: Mapping[str, str]) -> None:
        """Create a secret.

        :param content: the secret's texts by key.

        Raises ClusterAway, and ClusterRefuses also if the namespace does not exist.
        """
        data = {key: base64.b64encode(value.encode()).decode() for key, value in content.items()}
        body = {"metadata": {"name": name, "labels": dict(labels)}, "type": "Opaque", "data": data}
        if self._ask(f"create secret {name}", self._core.create_namespaced_secret, self.namespace, body) is None:
            raise ClusterRefuses(self.address, f"create secret {name}", f"there is no namespace {self.namespace}")

    def give_secret(self, name: str, pod: Any) -> None:
        """Make a pod the owner of a secret: Kubernetes then deletes the secret with the pod.

        Raises ClusterAway, ClusterRefuses.
        """
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid}
        body = {"metadata": {"ownerReferences": [owner]}}
        self._ask(f"patch secret {name}", self._core.patch_namespaced_secret, name, self.namespace, body)

    def secrets(self, label: str) -> list[str]:
        """Return the names of the secrets with a label, `name=value`. Raises ClusterAway, ClusterRefuses."""
        secrets = self._ask("list secrets", self._core.list_namespaced_secret, self.namespace, label_selector=label)
        return [secret.metadata.name for secret in secrets.items] if secrets else []

    def delete_secret(self, name: str) -> None:
        """Delete a secret, if it exists. Raises ClusterAway, ClusterRefuses."""
        self._ask(f"delete secret {name}", self._core.delete_namespaced_secret, name, self.namespace)

    def _may(self, verb: str, resource: str) -> bool:
        """Return whether this worker has a right, such as `get` for `pods/log`, in the namespace."""
        resource, _, part = resource.partition("/")
        right = {"namespace": self.namespace, "verb": verb, "resource": resource, "subresource": part or None}
        body = {"spec": {"resourceAttributes": right}}
        review = self._ask(f"may it {verb} {resource}", self._rights.create_self_subject_access_review, body)
        return bool(review.status.allowed)

    def _ask(self, request: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a method of the client and return the answer, or None if the object does not exist.

        :param request: the request in words, for the error.

        Raises ClusterAway, ClusterRefuses.
        """
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            return call(*arguments, _request_timeout=_TIMEOUTS_S, **options)
        except ApiException as e:
            if e.status == HTTPStatus.NOT_FOUND:
                return None
            problem = _error_text(e)
            # A full quota is FORBIDDEN, too, but a retry may find room.
            refused = e.status in _REFUSALS and "exceeded quota" not in problem
            raise (ClusterRefuses if refused else ClusterAway)(self.address, request, problem) from e
        except (HTTPError, OSError) as e:
            raise ClusterAway(self.address, request, type(getattr(e, "reason", e)).__name__) from e


def _credentials(address: str) -> Any:
    """Return the client's configuration: Airflow's credentials for the cluster, with another address of the server."""
    from kubernetes import client, config

    settings, configuration = settings_of_airflow(), client.Configuration()
    where = f"[{_SECTION}] in_cluster = {settings['in_cluster']}"
    try:
        if settings["in_cluster"] == "true":
            config.load_incluster_config(client_configuration=configuration)
        else:
            config.load_kube_config(
                settings.get("config_file"), settings.get("cluster_context"), client_configuration=configuration
            )
    except (config.ConfigException, OSError) as e:
        raise InvalidArgument(
            "spark_conn_id",
            f"Airflow has no credentials for Kubernetes: {e} ({where}).",
            f"Outside of the cluster set [{_SECTION}] in_cluster = False, and config_file or KUBECONFIG.",
        ) from e
    renew_token = configuration.refresh_api_key_hook

    def renew_and_keep_address(renewed: Any) -> None:
        # Each renewal of a token sets the address and the hook of Airflow's file again.
        if renew_token is not None:
            renew_token(renewed)
        renewed.host, renewed.refresh_api_key_hook = address, renew_and_keep_address

    renew_and_keep_address(configuration)
    return configuration


def _error_text(error: Any) -> str:
    """Return the status and message of an ApiException."""
    try:
        message = str(json.loads(error.body)["message"])
    except (KeyError, TypeError, ValueError):
        message = str(error.reason)
    return f"{error.status} {message}"


def problems_of(pod: Any) -> Iterator[str]:
    """Yield Kubernetes' reasons for a failed or waiting pod: unschedulable, no image, out of memory, evicted."""
    if pod.status.reason or pod.status.message:
        yield f"{pod.status.reason or 'its state'}: {pod.status.message or ''}"
    for condition in pod.status.conditions or ():
        if condition.status == "False" and condition.type == "PodScheduled":
            yield f"{condition.reason}: {condition.message}"
    for container in pod.status.container_statuses or ():
        if (waiting := container.state.waiting) is not None and waiting.reason != "ContainerCreating":
            yield f"{waiting.reason}: {waiting.message or ''}"
        if (ended := container.state.terminated) is not None:
            yield f"{ended.reason}, exit code {ended.exit_code}"
