"""The few words of Airflow's REST API that the demo and the tests speak."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import ProxyHandler, Request, build_opener

from dev.errors import DevError

# Generous: on a busy machine the first requests have been seen to take half a minute.
_TIMEOUT_S = 120
_PARTS = ("metadatabase", "scheduler", "dag_processor", "triggerer")


class AirflowRefused(DevError):
    """Airflow's API answered with an error."""


class AirflowAway(AirflowRefused):
    """Airflow's API does not answer for now, or fails: the same may be asked again."""


@dataclass
class AirflowApi:
    """One Airflow's API; without a login it can only be asked for its health."""

    url: str
    username: str = ""
    password: str = ""

    def healthy(self, timeout: float = 5) -> bool:
        """Whether all parts of Airflow are alive."""
        try:
            found = self._ask(Request(f"{self.url}/api/v2/monitor/health"), timeout)
        except AirflowRefused:
            return False
        return all((found.get(part) or {}).get("status") == "healthy" for part in _PARTS)

    def has_dag(self, dag_id: str) -> bool:
        """Whether the DAG has been parsed."""
        return any(dag["dag_id"] == dag_id for dag in self.get("/dags?limit=500")["dags"])

    def import_errors(self) -> list[str]:
        """Return what kept DAG files from being parsed: the file, and the end of its traceback."""
        errors = self.get("/importErrors")["import_errors"]
        return [f"{error['filename']}: {reason_of(error['stack_trace'])}" for error in errors]

    def unpause(self, dag_id: str) -> None:
        """Let the scheduler run the DAG."""
        self.send("PATCH", f"/dags/{quote(dag_id)}", {"is_paused": False})

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """Return the DAG's runs, oldest first."""
        found: list[dict[str, Any]] = self.get(f"/dags/{quote(dag_id)}/dagRuns?limit=100&order_by=run_after")[
            "dag_runs"
        ]
        return found

    def task_instances(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """Return the task instances of a run."""
        path = f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id)}/taskInstances"
        found: list[dict[str, Any]] = self.get(path)["task_instances"]
        return found

    def task_log(self, task: dict[str, Any]) -> list[str]:
        """Return the lines that a task instance's last try logged."""
        path = (
            f"/dags/{quote(task['dag_id'])}/dagRuns/{quote(task['dag_run_id'])}/taskInstances/{quote(task['task_id'])}"
            f"/logs/{task['try_number']}?full_content=true&map_index={task['map_index']}"
        )
        return [_log_line(entry) for entry in self.get(path)["content"]]

    def get(self, path: str) -> Any:
        """GET something under /api/v2."""
        return self.send("GET", path)

    def send(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send a request to something under /api/v2, and return the decoded answer.

        Raises AirflowAway where the same may be asked again, and else AirflowRefused.
        """

        def send() -> Any:
            headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
            return self._ask(_request(method, f"{self.url}/api/v2{path}", body, headers), _TIMEOUT_S)

        try:
            return send()
        except AirflowRefused as refused:
            if not (isinstance(refused.__cause__, HTTPError) and refused.__cause__.code == 401):
                raise
            # A login lasts for a day.
            self.__dict__.pop("_token", None)
            return send()

    @cached_property
    def _token(self) -> str:
        login = {"username": self.username, "password": self.password}
        token: str = self._ask(_request("POST", f"{self.url}/auth/token", login, {}), _TIMEOUT_S)["access_token"]
        return token

    def _ask(self, request: Request, timeout: float) -> Any:
        try:
            # Never by a proxy of the environment: the address is on the loopback.
            with build_opener(ProxyHandler({})).open(request, timeout=timeout) as answer:
                return json.load(answer)
        except HTTPError as problem:
            kind = AirflowAway if problem.code >= 500 or problem.code == 429 else AirflowRefused
            raise kind(f"Airflow's API: {request.get_method()} {request.full_url}: {problem}.") from problem
        except (URLError, HTTPException, OSError, json.JSONDecodeError) as problem:
            raise AirflowAway(f"Airflow's API: {request.get_method()} {request.full_url}: {problem}.") from problem


def reason_of(stack_trace: str) -> str:
    """Find the line of a traceback that names the exception; the text of one may go on for lines after it."""
    lines = stack_trace.strip().splitlines() or [""]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Timeout|NotFound)\w*\b", line)]
    return (named or lines)[-1]


def _request(method: str, url: str, body: dict[str, Any] | None, headers: dict[str, str]) -> Request:
    data = None if body is None else json.dumps(body).encode()
    return Request(url, data, {**headers, "Content-Type": "application/json"}, method=method)


def _log_line(entry: Any) -> str:
    if not isinstance(entry, dict):
        return str(entry)
    line = " ".join(str(entry.get(part) or "") for part in ("timestamp", "level", "event")).strip()
    for error in entry.get("error_detail") or ():
        line += f"\n    {error.get('exc_type')}: {error.get('exc_value')}"
    return line
