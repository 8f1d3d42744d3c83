"""An API server of Airflow, on the loopback, and a person who is logged in to it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import psutil

from dev.ports import LOOPBACK, free_ports
from dev.service import CHECKOUT

_READY_WITHIN_S = 300
_ANSWER_WITHIN_S = 120


@dataclass(frozen=True)
class Answer:
    """What was answered, and what it took: seconds until the last byte, and CPU seconds of server and database."""

    body: bytes
    seconds: float
    cpu_seconds: float


class Visitor:
    """Asks one server, by one connection, as a browser does."""

    def __init__(self, port: int, pids: Iterable[int]) -> None:
        self._connection = HTTPConnection(LOOPBACK, port, timeout=_ANSWER_WITHIN_S)
        self._processes = [psutil.Process(pid) for pid in pids]
        self._token = ""

    def log_in(self, name: str) -> None:
        """Log in, and ask Airflow itself for something: what it does at its first request is none of the page's."""
        login = json.dumps({"username": name, "password": name})
        self._token = json.loads(self._ask("POST", "/auth/token", login))["access_token"]
        self._ask("GET", "/api/v2/pools?limit=1")

    def get(self, path: str) -> Answer:
        """Ask for a path."""
        cpu, began = self._cpu(), time.perf_counter()
        body = self._ask("GET", path)
        return Answer(body, time.perf_counter() - began, self._cpu() - cpu)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def _cpu(self) -> float:
        trees = [(one, *one.children(recursive=True)) for one in self._processes]
        times = [one.cpu_times() for tree in trees for one in tree]
        # PostgreSQL's parallel workers end with their query.
        return float(sum(one.user + one.system + one.children_user + one.children_system for one in times))

    def _ask(self, method: str, path: str, body: str | None = None) -> bytes:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"}
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        said = answer.read()
        if answer.status >= 300:
            raise AssertionError(f"{method} {path}: {answer.status} {said[:500]!r}")
        return said


@contextmanager
def api_server(env: Mapping[str, str], log: Path, name: str, database: int) -> Iterator[Visitor]:
    """Start an API server; give a visitor of it, logged in by a name that is also the password.

    :param database: the process of the database.
    """
    [port] = free_ports(1)
    command = [sys.executable, "-m", "airflow", "api-server", "--host", LOOPBACK, "--port", str(port), "--apps", "core"]
    with log.open("ab") as output:
        process = subprocess.Popen([*command, "--workers", "1"], env=env, cwd=CHECKOUT, stdout=output, stderr=output)
    try:
        _wait(process, port, log)
        visitor = Visitor(port, (process.pid, database))
        try:
            visitor.log_in(name)
            yield visitor
        finally:
            visitor.close()
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _READY_WITHIN_S
    while not _answers(port):
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"the API server does not answer:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.5)  # An HTTP server that comes up tells nobody: it is asked twice a second.


def _answers(port: int) -> bool:
    connection = HTTPConnection(LOOPBACK, port, timeout=5)
    try:
        connection.request("GET", "/api/v2/version")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
