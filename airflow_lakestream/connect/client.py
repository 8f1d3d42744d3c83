"""A client of Kafka Connect's REST interface. Bodies are not logged, because of secrets."""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal, Transient
from airflow_lakestream.stores.http import HttpAnswer, HttpClient, NoAnswer, tls_context


class ConnectorState(StrEnum):
    """A state of a connector or a task. OTHER: a state of a later version."""

    UNASSIGNED = "UNASSIGNED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    RESTARTING = "RESTARTING"
    OTHER = "OTHER"

    @classmethod
    def of(cls, text: str) -> ConnectorState:
        """Return the state of this name; OTHER for an unknown name."""
        return cls(text) if text in cls.__members__ else cls.OTHER


@dataclass(frozen=True)
class TaskStatus:
    """A task; `trace` has the reason of a failure."""

    task: int
    state: ConnectorState
    worker: str = ""
    trace: str = ""


@dataclass(frozen=True)
class ConnectorStatus:
    """A connector with tasks."""

    state: ConnectorState
    tasks: tuple[TaskStatus, ...] = ()
    trace: str = ""

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> ConnectorStatus:
        """Read Connect's answer to a request for a status. Raises KeyError, TypeError, AttributeError or ValueError."""
        tasks = tuple(
            TaskStatus(
                int(task["id"]),
                ConnectorState.of(task["state"]),
                str(task.get("worker_id", "")),
                str(task.get("trace", "")),
            )
            for task in value["tasks"]
        )
        connector = value["connector"]
        return cls(ConnectorState.of(connector["state"]), tasks, str(connector.get("trace", "")))

    @property
    def failed(self) -> tuple[TaskStatus, ...]:
        """The failed tasks."""
        return tuple(task for task in self.tasks if task.state is ConnectorState.FAILED)

    @property
    def all_run(self) -> bool:
        """Whether the connector has tasks, and runs with all of them."""
        return (
            self.state is ConnectorState.RUNNING
            and bool(self.tasks)
            and all(task.state is ConnectorState.RUNNING for task in self.tasks)
        )

    def __str__(self) -> str:
        counts = {state: sum(task.state is state for task in self.tasks) for state in ConnectorState}
        tasks = ", ".join(f"{count} {state.lower()}" for state, count in counts.items() if count)
        return f"{self.state.lower()}, tasks: {tasks or 'none'}"


# Seconds for which a request is repeated while the workers rebalance, and seconds between two requests.
_BUSY_TIMEOUT_S = 60.0
_PAUSE_S = 0.5
# A worker answers 409 during a rebalance.
_CONFLICT, _NOT_FOUND = 409, 404
# Status codes of a gateway for a missing worker, and of a busy worker.
_TEMPORARY = (408, 429, 500, 502, 503, 504)


class ConnectUnknown(LakestreamError, Transient):
    """Error of a request without a usable answer from any worker: the connector's state is unknown."""


class ConnectRefused(LakestreamError, Terminal):
    """Error of a request refused by a worker."""


class NoSuchConnector(ConnectRefused):
    """Error of a name without a connector."""


@dataclass(frozen=True)
class ConnectWorkers:
    """Addresses and login of the workers of a Connect cluster; any worker can answer.

    :param urls: addresses, tried in order until a worker answers.
    :param ca_file: path of the certificates to trust; empty for the system's certificates.
    :param timeout: seconds to wait for the answer of a worker.

    Raises InvalidArgument without an address, or for an address that is not http or https.
    """

    urls: Sequence[str]
    username: str = ""
    password: str = field(default="", repr=False)
    ca_file: str = ""
    timeout: float = 30.0

    def __post_init__(self) -> None:
        if not self.urls or any(not url.startswith(("http://", "https://")) for url in self.urls):
            raise InvalidArgument("connect_conn_id", "its host is not an address of http or https.")


class ConnectClient:
    """Requests to the workers. All methods raise ConnectUnknown and ConnectRefused.

    A request goes to one worker after the other until a worker answers. While the workers rebalance, the request is
    repeated for up to a minute.
    """

    def __init__(self, workers: ConnectWorkers) -> None:
        self._workers = workers
        is_tls = any(url.startswith("https:") for url in workers.urls)
        tls = self._tls(workers.ca_file) if is_tls else None
        self._http = HttpClient(workers.username or None, workers.password, tls=tls)

    @property
    def where(self) -> str:
        """The workers' addresses, for messages."""
        return ", ".join(self._workers.urls)

    def status(self, name: str) -> ConnectorStatus:
        """Return the status of a connector and of its tasks.

        Raises NoSuchConnector, also for a new connector that has no status yet.
        """
        answer = self._request("GET", _path(name, "status"))
        try:
            return ConnectorStatus.parse(answer)
        except (KeyError, TypeError, AttributeError, ValueError) as e:
            raise ConnectUnknown(f"Kafka Connect at {self.where}: the answer has no valid status of {name!r}.") from e

    def config(self, name: str) -> dict[str, str] | None:
        """Return a connector's configuration; None if the connector does not exist.

        Connect adds the key `name` to the configuration that it was given.
        """
        try:
            answer = self._request("GET", _path(name, "config"))
        except NoSuchConnector:
            return None
        if not isinstance(answer, Mapping):
            raise ConnectUnknown(f"Kafka Connect at {self.where}: the answer has no valid configuration of {name!r}.")
        return {str(key): str(value) for key, value in answer.items()}

    def plugins(self) -> set[str]:
        """Return the workers' connector classes."""
        answer = self._request("GET", "/connector-plugins")
        if not isinstance(answer, list):
            raise ConnectUnknown(f"Kafka Connect at {self.where} did not list its plugins.")
        return {str(plugin.get("class")) for plugin in answer if isinstance(plugin, Mapping)}

    def validate(self, config: Mapping[str, str]) -> tuple[set[str], dict[str, list[str]]]:
        """Return the names of all settings of the connector's class, and the errors by setting.

        :param config: the configuration, which must contain `connector.class`.
        """
        plugin = quote(config["connector.class"], safe="")
        answer = self._request("PUT", f"/connector-plugins/{plugin}/config/validate", dict(config))
        try:
            names = {str(setting["definition"]["name"]) for setting in answer["configs"]}
            values = [setting["value"] for setting in answer["configs"]]
            errors = {str(value["name"]): [str(e) for e in value["errors"]] for value in values if value["errors"]}
            return names, errors
        except (KeyError, TypeError) as e:
            raise ConnectUnknown(f"Kafka Connect at {self.where} did not validate a configuration.") from e

    def create_stopped(self, name: str, config: Mapping[str, str]) -> None:
        """Create a stopped connector."""
        self._request("POST", "/connectors", {"name": name, "config": dict(config), "initial_state": "STOPPED"})

    def configure(self, name: str, config: Mapping[str, str]) -> None:
        """Create a connector, or change a connector's configuration with a restart of its tasks."""
        self._request("PUT", _path(name, "config"), dict(config))

    def restart(self, name: str, only_failed: bool) -> None:
        """Restart the connector with all tasks, or with `only_failed` only a failed connector and failed tasks."""
        self._request("POST", _path(name, f"restart?includeTasks=true&onlyFailed={str(only_failed).lower()}"))

    def stop(self, name: str) -> None:
        """End all tasks; the connector and the offsets stay."""
        self._request("PUT", _path(name, "stop"))

    def pause(self, name: str) -> None:
        """Pause the tasks."""
        self._request("PUT", _path(name, "pause"))

    def resume(self, name: str) -> None:
        """Resume a stopped or paused connector."""
        self._request("PUT", _path(name, "resume"))

    def set_offsets(self, name: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set the next offsets of a sink, by partition; Connect refuses the request unless the sink is stopped."""
        entries = [
            {"partition": {"kafka_topic": topic, "kafka_partition": p}, "offset": {"kafka_offset": offset}}
            for p, offset in sorted(offsets.items())
        ]
        self._request("PATCH", _path(name, "offsets"), {"offsets": entries})

    def _request(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer's JSON, with repeated requests during a rebalance."""
        deadline = time.monotonic() + _BUSY_TIMEOUT_S
        while True:
            try:
                return self._request_any_worker(method, path, body)
            except _Busy as e:
                if time.monotonic() > deadline:
                    raise ConnectUnknown(f"{e} It went on for {_BUSY_TIMEOUT_S:.0f} s.") from None
                time.sleep(_PAUSE_S)  # The API has no call that waits for the end of a rebalance.

    def _request_any_worker(self, method: str, path: str, body: Any) -> Any:
        """Return the answer's JSON of the first worker that answers. Raises the last worker's ConnectUnknown."""
        last_error: ConnectUnknown | None = None
        for url in self._workers.urls:
            try:
                return self._request_worker(method, url.rstrip("/"), path, body)
            except ConnectUnknown as e:
                last_error = e
        assert last_error is not None, "there is at least one worker"
        raise last_error

    def _request_worker(self, method: str, url: str, path: str, body: Any) -> Any:
        """Send a request to the worker at a URL; return its answer from JSON. Raises the errors of `_error_of`."""
        where = f"Kafka Connect at {url}"
        try:
            answer = self._http.send(method, url + path, body, timeout=self._workers.timeout)
        except NoAnswer as e:
            raise ConnectUnknown(f"{where} gives no answer: {e}. Does a worker run there?") from e
        if answer.is_error:
            raise _error_of(where, path, answer)
        try:
            return answer.json() if answer.body else None
        except ValueError:
            # A starting worker, or a gateway, may answer with an HTML page.
            raise ConnectUnknown(
                f"{where} gives an answer that is not JSON: the worker is starting, or the address is not Kafka "
                "Connect's."
            ) from None

    @staticmethod
    def _tls(ca_file: str) -> ssl.SSLContext:
        try:
            return tls_context(ca_file)
        except OSError as e:
            raise InvalidArgument("connect_conn_id", f"its ca_file can't be read: {e.strerror or e}.") from e


class _Busy(LakestreamError, Transient):
    """Error of a rebalance of the workers: the same request works in a moment."""


def _path(name: str, resource: str) -> str:
    return f"/connectors/{quote(name, safe='')}/{resource}"


def _error_of(where: str, path: str, answer: HttpAnswer) -> LakestreamError:
    """Return the error for an answer with an HTTP error.

    An answer without Connect's own JSON, such as a gateway's, and an answer of a busy worker become ConnectUnknown.
    """
    try:
        error = answer.json()
        message = str(error["message"])[:500] if "error_code" in error else None
    except (ValueError, KeyError, TypeError):
        message = None
    resource, status = path.partition("?")[0], answer.status
    # A worker of Kafka 4.1 answers a GET during a rebalance with 500.
    if message is not None and status in (_CONFLICT, 500) and "rebalanc" in message.lower():
        return _Busy(f"{where} answers {resource} with {status}: {message}.")
    if message is None or status in _TEMPORARY:
        return ConnectUnknown(f"{where} answers {resource} with {status}{': ' + message if message else ''}.")
    if status == _NOT_FOUND and resource.startswith("/connectors/"):
        return NoSuchConnector(f"{where}: {message}")
    if status in (401, 403):
        remedy = "Check login and password of the connection, and the login's permissions."
        return ConnectRefused(f"{where} refuses {resource} with {status}. {remedy}")
    return ConnectRefused(f"{where} refuses {resource} with {status}: {message}")
