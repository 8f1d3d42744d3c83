"""Clients of Flink's SQL Gateway and JobManager, by the REST APIs of Flink 1.20 and 2.0. Waits are bounded."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_lakestream.exceptions import LakestreamError, Transient
from airflow_lakestream.stores.http import HttpClient, NoAnswer

# Seconds for an answer.
_TIMEOUT = 60.0
# Seconds for the submit of a program, whose `main` runs in the JobManager before the JobManager answers.
_JAR_TIMEOUT = 300.0
# Seconds between two questions for a result.
_PAUSE = 0.2
_JAR_TYPE = "application/x-java-archive"
# The gateway's API: the newest version in both releases is v3, and v2 has everything needed.
_API = "v2"
_NOT_FOUND = 404
# Characters of a statement in a message.
_MOST_CHARACTERS = 100


class FlinkUnreachable(LakestreamError, Transient):
    """Error of a REST API of Flink without an answer."""

    def __init__(self, url: str, cause: BaseException) -> None:
        super().__init__(f"Flink at {url} does not answer ({cause}). Check flink_conn_id, and whether it is up.")


class FlinkRefused(LakestreamError, Transient):
    """Error in an answer of Flink, with `causes`: the innermost causes of the stack trace, the deepest last."""

    def __init__(self, doing: str, status: int, body: str) -> None:
        self.status = status
        self.causes = causes_in(body)
        super().__init__(f"Flink refused {doing} ({status}): {' | '.join(self.causes) or body[:500]}")


class FlinkJobState(StrEnum):
    """The state of a job, as far as the driver needs.

    STARTING is any state without another name here, such as a restart. GONE: the JobManager does not know the job.
    """

    RUNNING = "running"
    STARTING = "starting"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELED = "canceled"
    GONE = "gone"


_STATES = {
    "RUNNING": FlinkJobState.RUNNING,
    "FINISHED": FlinkJobState.FINISHED,
    "FAILED": FlinkJobState.FAILED,
    "FAILING": FlinkJobState.FAILED,
    "CANCELED": FlinkJobState.CANCELED,
    "CANCELLING": FlinkJobState.CANCELED,
}


def causes_in(trace: str) -> tuple[str, ...]:
    """Return the innermost causes of a stack trace of Flink, the deepest last."""
    matches = re.findall(r"(?:Caused by: )?((?:[\w$]+\.)+[\w$]*(?:Exception|Error): [^\\\n]*)", trace)
    causes = [line.strip() for line in matches if "Failed to fetch next results" not in line]
    return tuple(dict.fromkeys(causes))[-3:]


@dataclass(frozen=True)
class FlinkAddress:
    """Address of a REST API of Flink, with a login; `token` wins over `login` and `password`."""

    url: str
    login: str = ""
    password: str = ""
    token: str = ""

    def call(self, method: str, path: str, body: object = None, timeout: float = _TIMEOUT, **options: Any) -> Any:
        """Call the API. Raises FlinkUnreachable, FlinkRefused.

        :param options: further options of `HttpClient.send`.
        """
        http = HttpClient(self.login or None, self.password, self.token)
        try:
            answer = http.send(method, f"{self.url.rstrip('/')}{path}", body, timeout=timeout, **options)
            if not answer.is_error:
                return answer.json() if answer.body else {}
        except (NoAnswer, ValueError) as e:
            raise FlinkUnreachable(self.url, e) from e
        # The path alone: statements may hold secrets.
        raise FlinkRefused(f"{method} {path}", answer.status, answer.body.decode(errors="replace"))


class SqlSession:
    """A session of the SQL Gateway, closed at the end of the context. Jobs go on without the session."""

    def __init__(self, gateway: FlinkAddress) -> None:
        self._gateway = gateway
        self._path = ""

    def __enter__(self) -> SqlSession:
        opened = self._gateway.call("POST", f"/{_API}/sessions", {"sessionName": "lakestream"})
        self._path = f"/{_API}/sessions/{opened['sessionHandle']}"
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._gateway.call("DELETE", self._path)
        except LakestreamError:
            # The session times out by itself.
            return

    def run(self, statement: str, within: float = 120.0) -> tuple[list[list[Any]], str | None]:
        """Run a statement; return the rows, and the id of the job, if any. Raises FlinkRefused, FlinkUnreachable.

        :param within: seconds for statement and rows. Raises FlinkUnreachable if the rows are not complete by then.
        """
        handle = self._gateway.call("POST", f"{self._path}/statements", {"statement": statement})["operationHandle"]
        path, deadline = f"{self._path}/operations/{handle}", time.monotonic() + within

        def check_deadline(doing: str) -> None:
            """Raise FlinkUnreachable after the deadline; `doing` continues "the statement ..."."""
            if time.monotonic() >= deadline:
                raise FlinkUnreachable(
                    self._gateway.url,
                    TimeoutError(f"the statement {_shown(statement)} {doing} for more than {within:g} s"),
                )

        while self._gateway.call("GET", f"{path}/status")["status"] in ("PENDING", "RUNNING", "INITIALIZED"):
            check_deadline("runs, as if a catalog or store did not answer Flink,")
            time.sleep(_PAUSE)  # The API has no call that waits.
        rows: list[list[Any]] = []
        job: str | None = None
        token = 0
        while True:
            answer = self._gateway.call("GET", f"{path}/result/{token}?rowFormat=JSON")
            job = answer.get("jobID") or job
            rows += [row["fields"] for row in answer.get("results", {}).get("data", ())]
            if answer["resultType"] == "EOS":
                return rows, job
            check_deadline("has given only some of its rows")
            if answer["resultType"] == "NOT_READY":
                time.sleep(_PAUSE)  # As above.
            else:
                token = int(answer["nextResultUri"].split("/result/")[1].split("?")[0])


def _shown(statement: str) -> str:
    """Return the beginning of a statement, up to the first text or parenthesis: options may have secrets."""
    shown = " ".join(re.split(r"['(]", statement, maxsplit=1)[0].split())
    return f"{shown[:_MOST_CHARACTERS]}..."


class JobManager:
    """The jobs of a cluster. Methods raise FlinkUnreachable and FlinkRefused, if not stated otherwise."""

    def __init__(self, address: FlinkAddress) -> None:
        self._address = address

    def state(self, job: str) -> FlinkJobState:
        """Return a job's state. Raises FlinkUnreachable."""
        try:
            return _STATES.get(self._address.call("GET", f"/jobs/{job}", timeout=10)["state"], FlinkJobState.STARTING)
        except FlinkRefused as e:
            if e.status == _NOT_FOUND:
                return FlinkJobState.GONE
            raise

    def completed(self, job: str) -> int:
        """Return the number of a job's newest completed checkpoint; 0 if none was completed."""
        answer = self._address.call("GET", f"/jobs/{job}/checkpoints", timeout=10)
        newest = (answer.get("latest") or {}).get("completed")
        return int(newest["id"]) if newest else 0

    def causes(self, job: str) -> tuple[str, ...]:
        """Return the innermost causes of a job's failure, the deepest last; empty if the JobManager knows none."""
        try:
            answer = self._address.call("GET", f"/jobs/{job}/exceptions?maxExceptions=1", timeout=10)
        except LakestreamError:
            return ()
        entries: list[dict[str, Any]] = (answer.get("exceptionHistory") or {}).get("entries") or [{}]
        return causes_in(str(entries[0].get("stacktrace", "")))

    def kept_checkpoints(self) -> int:
        """Return the number of checkpoints kept by the cluster for a job; 1, Flink's default, without a setting."""
        answer = self._address.call("GET", "/jobmanager/config", timeout=10)
        settings = {setting["key"]: setting["value"] for setting in answer}
        names = ("execution.checkpointing.num-retained", "state.checkpoints.num-retained")
        return next((int(settings[name]) for name in names if name in settings), 1)

    def run_jar(self, name: str, content: bytes, request: Mapping[str, Any]) -> None:
        """Run a program, and return after the job's submit. Raises FlinkUnreachable, FlinkRefused.

        :param request: the body of `/jars/:jarid/run`.
        """
        form = {"jarfile": (name, content, _JAR_TYPE)}
        uploaded = self._address.call("POST", "/jars/upload", timeout=_JAR_TIMEOUT, files=form)["filename"]
        jar = str(uploaded).rsplit("/", 1)[-1]
        try:
            self._address.call("POST", f"/jars/{jar}/run", request, _JAR_TIMEOUT)
        finally:
            self._delete_jar(jar)

    def _delete_jar(self, jar: str) -> None:
        """Delete an uploaded jar; a failure is ignored, since the jar then stays only until the JobManager ends."""
        try:
            self._address.call("DELETE", f"/jars/{jar}")
        except LakestreamError:
            return

    def cancel(self, job: str) -> None:
        """Cancel a job; the checkpoints stay."""
        self._address.call("PATCH", f"/jobs/{job}?mode=cancel", timeout=30)

    def stop(self, job: str, folder: str, within: float) -> str:
        """Stop a job with a savepoint below a folder; return the savepoint's location.

        Raises FlinkRefused if Flink can't make the savepoint, and FlinkUnreachable if it is not complete after `within`
        seconds.
        """
        deadline = time.monotonic() + within
        body = {"drain": False, "targetDirectory": folder}
        request = self._address.call("POST", f"/jobs/{job}/stop", body)["request-id"]
        while time.monotonic() < deadline:
            answer = self._address.call("GET", f"/jobs/{job}/savepoints/{request}")
            if answer["status"]["id"] == "COMPLETED":
                if failure := answer["operation"].get("failure-cause"):
                    raise FlinkRefused("the savepoint", 200, str(failure.get("stack-trace", failure)))
                return str(answer["operation"]["location"])
            time.sleep(_PAUSE)  # As above.
        raise FlinkUnreachable(self._address.url, TimeoutError(f"no savepoint within {within:g} s"))
