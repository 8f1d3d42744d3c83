"""One task of a supervised stream in real processes, moved along as Airflow's scheduler and executor do it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import psutil

from tests.support.airflow_home import AirflowHome, TaskProcess
from tests.support.sensing import Triggerer
from tests.support.spark_stream import kill_the_worker

TASK = "stream"
_DAG = """
import datetime
from pathlib import Path

from airflow.sdk import DAG
from {module} import {operator}

with DAG({dag_id!r}, schedule=None) as dag:
    # Each process parses the file anew.
    {operator}(task_id="stream", deferrable=Path({switch!r}).exists(), **{arguments!r})
"""
# However often it is killed, it goes on.
_TRIED_AGAIN = {"retries": 100_000, "max_restarts": 100_000, "restart_backoff": "200ms"}
# A machine that does many things at once.
PATIENCE = 900.0
_EVERY = 0.3


class StreamTask:
    """The task of one run, in a process or deferred to a triggerer; both are started where they are missing.

    :param operator: its class, `module.Class`.
    :param folder: of the stream.
    """

    def __init__(
        self,
        airflow: AirflowHome,
        triggerer: Triggerer,
        dag_id: str,
        operator: str,
        folder: Path,
        arguments: dict[str, Any],
    ) -> None:
        self._airflow = airflow
        self.triggerer = triggerer
        self._switch = folder / "deferrable"
        module, _, name = operator.rpartition(".")
        given = {"module": module, "operator": name, "dag_id": dag_id, "switch": str(self._switch)}
        self._file = airflow.write(dag_id, _DAG.format(arguments=arguments | _TRIED_AGAIN, **given))
        self._run = airflow.start(airflow.dag(self._file))
        self._process: TaskProcess | None = None
        self._ending = ExitStack()
        self.tries = 0
        self.failed = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.close()
        self.triggerer.kill()

    @property
    def state(self) -> str:
        """The task's state."""
        return self._run.task(TASK).state

    @property
    def process(self) -> TaskProcess | None:
        """The process that runs the task; None while it is deferred, or before somebody starts it."""
        return self._process if self._process is not None and self._process.supervisor.poll() is None else None

    @property
    def log(self) -> str:
        """The end of what the newest process said."""
        return "" if self._process is None else self._process.log[-6000:]

    def defer_next(self, wanted: bool) -> None:
        """Say how the next try waits."""
        self._switch.touch() if wanted else self._switch.unlink(missing_ok=True)

    def tick(self) -> None:
        """Do what Airflow's processes do now."""
        if self.process is not None:
            return
        state = self.state
        if state == "failed":
            raise AssertionError(f"the task has failed for good\n{self.log}")
        if state == "deferred":
            if self.triggerer.process is None or self.triggerer.process.poll() is not None:
                self.triggerer.start()
        elif state != "success":
            if state == "up_for_retry":
                self.failed += 1
                print(f"a try of the task ended with an error, and is tried again: {self.log[-2000:]}")
            self._start(is_lost=state == "running")

    def go_on(self, seconds: float) -> None:
        """Let time pass: what is killed next is killed at any moment."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.tick()
            time.sleep(min(_EVERY, max(0.0, end - time.monotonic())))  # the seed says how long

    def until(self, done: Callable[[], bool], what: str, patience: float = PATIENCE, every: float = _EVERY) -> None:
        """Let time pass until something is so; the error is the task's log."""
        deadline, next_tick = time.monotonic() + patience, 0.0
        while not done():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {patience:.0f} s for {what}; the task is {self.state}\n{self.log}")
            if time.monotonic() >= next_tick:
                self.tick()
                next_tick = time.monotonic() + _EVERY
            time.sleep(every)  # Not for luck: between two questions.

    def kill(self) -> bool:
        """Kill the task and its supervisor; tell whether they were still there."""
        if (process := self.process) is None:
            return False
        try:
            kill_the_worker(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            # It ended meanwhile.
            return False
        return True

    def into_triggerer(self) -> None:
        """Have the task deferred, and a triggerer; a process that waits is killed for it."""
        self.defer_next(True)
        if self.state != "deferred":
            self.until(lambda: self.process is None or self.kill(), "the worker's end")
        self.until(lambda: self.state == "deferred" and self.triggerer.process is not None, "the task to be deferred")

    def _start(self, is_lost: bool) -> None:
        if is_lost:
            self._forget_event()
        self._ending.close()
        self._process = self._ending.enter_context(self._airflow.process(self._run, self._file, TASK))
        self.tries += 1

    def _forget_event(self) -> None:
        """Do what the scheduler does with a task whose worker is lost: the next try begins from the beginning."""
        from airflow.models.taskinstance import TaskInstance
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            key = {"dag_id": self._run.dag_id, "run_id": self._run.run_id, "task_id": TASK}
            session.scalars(select(TaskInstance).filter_by(**key)).one().clear_next_method_args()
