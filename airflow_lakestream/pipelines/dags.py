"""Compiled pipelines as DAGs of Airflow."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from importlib import import_module
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.hooks.variables import airflow_variables
from airflow_lakestream.pipelines.compiled import Compiled
from airflow_lakestream.pipelines.errors import PipelineError, Problem
from airflow_lakestream.pipelines.folder import read_folder
from airflow_lakestream.pipelines.operator import calls_of
from airflow_lakestream.pipelines.variables import looked_up


def load_folder(folder: Path) -> dict[str, DAG]:
    """Make the DAGs; see `airflow_lakestream.pipelines.load`."""
    dags: dict[str, DAG] = {}
    problems: list[Problem] = []
    for compiled in read_folder(folder, cache(looked_up(*airflow_variables()))):
        try:
            dags[compiled.name] = make_dag(compiled)
        except PipelineError as error:
            problems += error.problems
    if problems:
        raise PipelineError(problems)
    return dags


def find_functions(paths: Iterable[Path]) -> None:
    """Let modules be imported that lie beside DAG files, as Airflow does, or beside these files of pipelines."""
    folders = [conf.get("core", "dags_folder", fallback=""), *(str(path.resolve().parent) for path in paths)]
    sys.path += [folder for folder in dict.fromkeys(folders) if folder and folder not in sys.path]


def make_dag(compiled: Compiled) -> DAG:
    """Make a pipeline's DAG. Raises PipelineError."""
    try:
        return _made(compiled)
    except PipelineError:
        raise
    except Exception as error:  # noqa: BLE001  # Airflow's own checks raise what they like
        text = " ".join(str(error).split())
        raise PipelineError([Problem(compiled.file, 1, 1, f"Airflow refuses the DAG: {text}")]) from None


def _made(compiled: Compiled) -> DAG:
    cron = compiled.cron
    failing, late = _alerts(compiled)
    schedule = CronDataIntervalTimetable(cron, timezone="UTC") if compiled.replaces and cron else cron
    with DAG(
        compiled.name,
        description=compiled.description,
        schedule=schedule,
        start_date=datetime.combine(date.fromisoformat(compiled.start_date), time(), UTC),
        catchup=compiled.catchup,
        # Runs of one consumer group take turns.
        max_active_runs=1,
        tags=list(compiled.tags),
        doc_md=f"{compiled.description or ''}\n\nThe pipeline `{compiled.file}`, by the engine `{compiled.engine}`.",
        default_args={
            "retries": compiled.retries,
            "retry_delay": timedelta(seconds=compiled.retry_delay),
            **({"owner": compiled.owner} if compiled.owner else {}),
            **({"pool": compiled.pool} if compiled.pool else {}),
            **failing,
        },
        **late,
    ) as dag:
        _make_tasks(compiled)
    return dag


def _make_tasks(compiled: Compiled) -> None:
    made: dict[str, Any] = {}
    problems: list[Problem] = []
    for call in calls_of(compiled):
        make = getattr(import_module(call.module), call.name)
        try:
            task = made[call.task_id] = make(**call.first, **call.arguments)
        except InvalidArgument as error:
            problems.append(call.told.problem(compiled.file, error))
            continue
        for before in call.after:
            if before in made:
                made[before] >> task
    if problems:
        raise PipelineError(problems)


def _alerts(compiled: Compiled) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return who is told of a run that goes wrong: the arguments of each task, and of the DAG."""
    told, most = compiled.on_failure, compiled.deadline
    try:
        failing = {"on_failure_callback": [_function("on_failure", one) for one in told]} if told else {}
        late = {} if most is None else {"deadline": _deadline(most, compiled.on_deadline)}
    except InvalidArgument as error:
        raise PipelineError([compiled.alerts.problem(compiled.file, error)]) from None
    return failing, late


def _deadline(most: float, function: str) -> Any:
    # Not at the top: parsing 500 files does without it. Airflow 3.1 has it in this module alone.
    from airflow.sdk.definitions.deadline import (  # type: ignore[attr-defined]  # 3.3 has moved one, and leaves it here
        AsyncCallback,
        DeadlineAlert,
        DeadlineReference,
    )

    called = _function("on_deadline", function)
    if not iscoroutinefunction(called):
        raise InvalidArgument("on_deadline", f"{function} is no async function: Airflow calls it in the triggerer.")
    reference = DeadlineReference.DAGRUN_QUEUED_AT
    return DeadlineAlert(reference=reference, interval=timedelta(seconds=most), callback=AsyncCallback(called))


def _function(argument: str, name: str) -> Any:
    """Import a function. Raises InvalidArgument."""
    module, _, function = name.partition(":")
    try:
        found = getattr(import_module(module), function)
    except Exception as error:  # noqa: BLE001  # a user's module may raise anything
        problem = f"{name} can't be imported ({type(error).__name__}: {error})."
        remedy = "Put the module beside the DAG file, or install it."
        raise InvalidArgument(argument, problem, remedy) from None
    if not callable(found):
        raise InvalidArgument(argument, f"{name} is no function.")
    return found
