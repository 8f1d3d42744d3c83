"""The process for checks: runs the checks, and requests parts of the files from the task."""

from __future__ import annotations

import io
import os
import threading
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from airflow_lakestream.checks.looking import CheckFiles, CheckRunner, LandingCheck, bind, opened, selected
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.transform.bounds import ProcessBounds
from airflow_lakestream.transform.child import (
    OUT_OF_MEMORY,
    ProcessorTimer,
    RequestQueue,
    be_bounded,
    listening,
    memory_error_text,
)
from airflow_lakestream.transform.messages import send


def main() -> None:
    """Answer the task's requests in order, until the task closes the pipe."""
    requests, answers = listening()
    words, _ = requests.get()
    bounds = ProcessBounds(**words)
    be_bounded(bounds)
    _CheckServer(requests, answers, bounds).serve()


class _CheckServer:
    """Server of the task's requests: a request is named as its method, such as "bind" for `_bind`."""

    def __init__(self, requests: RequestQueue, answers: io.FileIO, bounds: ProcessBounds) -> None:
        self._requests, self._answers, self._bounds = requests, answers, bounds
        # For one read at a time: several threads of DuckDB read.
        self._lock = threading.Lock()
        self._open = ExitStack()

    def serve(self) -> None:
        while True:
            words, table = self._requests.get()
            with ProcessorTimer(words.pop("seconds") * self._bounds.threads):
                answer = self._answer(words, table.schema)
            send(self._answers, answer, pa.table({}))

    def _answer(self, words: dict[str, Any], columns: pa.Schema) -> dict[str, Any]:
        (request,) = words
        try:
            answer: dict[str, Any] = getattr(self, f"_{request}")(words[request], columns)
        except InvalidArgument as error:
            # The error's text begins with the argument's name, which the task's error adds again.
            return {"invalid": [error.argument, str(error).removeprefix(f"{error.argument}: ")]}
        except RecursionError:
            return {"invalid": ["checks.sql", "a statement is nested too deeply."]}
        except OUT_OF_MEMORY as error:
            # Little memory may be left: end the process at once, without any cleaning up.
            send(self._answers, {"memory": memory_error_text(error)}, pa.table({}))
            os._exit(0)
        return answer

    def _select(self, sql: str, _: pa.Schema) -> dict[str, Any]:
        return {"statement": selected(sql, self._bounds.memory_limit)}

    def _bind(self, labelled: list[str], columns: pa.Schema) -> dict[str, Any]:
        label, statement = labelled
        bind(label, statement, columns, self._bounds.memory_limit)
        return {}

    def _files(self, files: dict[str, Any], columns: pa.Schema) -> dict[str, Any]:
        """Open a database over the files of a commit; return the number of rows."""
        limits = self._bounds.memory_limit, self._bounds.threads
        database = self._open.enter_context(opened(CheckFiles(**files), columns, self._read, *limits))
        self._runner = CheckRunner(database, columns)
        return {"count": self._runner.count()}

    def _check(self, check: dict[str, Any], _: pa.Schema) -> dict[str, Any]:
        return {"findings": [asdict(finding) for finding in self._runner.findings(LandingCheck(**check))]}

    def _places(self, *_: object) -> dict[str, Any]:
        return {"places": self._runner.places()}

    def _read(self, number: int, start: int, size: int) -> bytes:
        """Request a part of a file from the task."""
        with self._lock:
            send(self._answers, {"read": [number, start, size]}, pa.table({}))
            _, table = self._requests.get()
        data: bytes = table.column(0)[0].as_py()
        return data
