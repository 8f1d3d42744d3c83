"""Compiled pipelines as DAGs of Airflow."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from importlib import import_module
from inspect import iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException, BaseOperator, conf
from airflow.sdk import DAG, get_parsing_context
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.hooks.variables import airflow_variables
from airflow_lakestream.pipelines.compiled import CompiledPipeline, FileArguments
from airflow_lakestream.pipelines.folder import BrokenFile, PipelineFolder, read_folder
from airflow_lakestream.pipelines.operator import calls_of
from airflow_lakestream.pipelines.reading import looked_up
from airflow_lakestream.pipelines.yaml_file import FileProblem, PipelineError

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

log = logging.getLogger(__name__)

BROKEN = "broken"
# Seconds of a processor for checks of changed files in a parse; see `read_folder`.
_PATIENCE = 3.0
_REMEDY = "Correct the file; `lakestream pipeline validate` checks it. The next parse of the DAG file takes it."
_ABOUT_BROKEN = """\
**This pipeline is broken: no run of it is scheduled.** A run that is under way continues with the last
correct version of the file; a new run fails.

{problems}

{remedy}
"""


def load_folder(folder: Path, *, strict: bool = False) -> dict[str, DAG]:
    """Make the DAGs of a folder and register them with Airflow; see `airflow_lakestream.pipelines.load`."""
    # A task's process, or a command, looks for one DAG, and its run checks the arguments.
    asked = get_parsing_context().dag_id
    patience = None if strict else 0 if asked else _PATIENCE
    dags, wrong = make_dags(read_folder(folder, cache(looked_up(*airflow_variables())), patience=patience))
    if strict and wrong:
        raise PipelineError([problem for one in wrong for problem in one.problems])
    for one in wrong:
        # The DAG processor logs all; the log of a task has nothing about other pipelines.
        if asked in (None, one.name):
            problems = "; ".join(map(str, one.problems))
            log.error("The pipeline %s is broken, and not scheduled: %s", one.name, problems)
        dags[one.name] = broken_dag(one)
        # Tables are maintained meanwhile, by the last correct version of the file.
        if (upkeep := one.last and one.last.upkeep) is not None and upkeep.name not in dags:
            with suppress(PipelineError):
                dags[upkeep.name] = make_dag(upkeep)
    for dag in dags.values():
        # Airflow registers each DAG that a `with` has left: only here, or it would also register half-made DAGs.
        dag.auto_register = True
        with dag:
            pass
    return dags


def make_dags(found: PipelineFolder) -> tuple[dict[str, DAG], list[BrokenFile]]:
    """Make the DAGs of a folder's correct files, by id; also return the wrong files.

    A file of which Airflow or an operator refuses the DAG is wrong, too. The DAGs are not registered yet.
    """
    dags: dict[str, DAG] = {}
    wrong = list(found.wrong)
    for compiled in found.right:
        try:
            dags |= {one.name: make_dag(one) for one in compiled.dags}
        except PipelineError as error:
            wrong.append(BrokenFile(compiled.file, compiled.name, tuple(error.problems), compiled))
    return dags, wrong


def make_functions_importable(paths: Iterable[Path]) -> None:
    """Make modules importable from Airflow's DAG folder and from the folders of the given pipeline files.

    The command line needs this for the functions in files; Airflow does the same for DAG files.
    """
    folders = [conf.get("core", "dags_folder", fallback=""), *(str(path.resolve().parent) for path in paths)]
    sys.path += [folder for folder in dict.fromkeys(folders) if folder and folder not in sys.path]


def make_dag(compiled: CompiledPipeline) -> DAG:
    """Make a pipeline's DAG, without registering it.

    Raises PipelineError if an argument, a function to call, or Airflow refuses the DAG.
    """
    cron = compiled.cron
    schedule = CronDataIntervalTimetable(cron, timezone="UTC") if compiled.replaces and cron else cron
    about = f"{compiled.description or ''}\n\nThe pipeline `{compiled.file}`, by the engine `{compiled.engine}`."
    try:
        dag = _dag_of(compiled, schedule=schedule, description=compiled.description, doc_md=about)
        # Airflow validates only after the whole DAG file is read, and then skips all DAGs of the file.
        dag.validate()  # type: ignore[no-untyped-call]  # it has no types
    except PipelineError:
        raise
    except Exception as error:  # for any refusal by Airflow, the other files are loaded
        problem = f"Airflow refuses the DAG ({type(error).__name__}): {' '.join(str(error).split())}"
        raise PipelineError([FileProblem(compiled.file, 1, 1, problem)]) from error
    return dag


def _dag_of(compiled: CompiledPipeline, *tags: str, **settings: Any) -> DAG:
    """Return the DAG with its tasks, not registered with Airflow.

    :param tags: tags in addition to the file's.
    :param settings: arguments of DAG.
    """
    failing, late = _alerts(compiled)
    with DAG(
        compiled.name,
        start_date=datetime.combine(date.fromisoformat(compiled.start_date), time(), UTC),
        catchup=compiled.catchup,
        # Runs of one consumer group take turns.
        max_active_runs=1,
        tags=[*compiled.tags, *tags],
        auto_register=False,
        default_args={
            "retries": compiled.retries,
            "retry_delay": timedelta(seconds=compiled.retry_delay),
            **({"owner": compiled.owner} if compiled.owner else {}),
            **({"pool": compiled.pool} if compiled.pool else {}),
            **failing,
        },
        **late,
        **settings,
    ) as dag:
        _make_tasks(compiled)
    return dag


def broken_dag(broken: BrokenFile) -> DAG:
    """Make the DAG of a wrong file: without a schedule, with the problems as text, and with failing tasks.

    If the last correct version of the file is remembered, the DAG has the tasks of that version. Runs that began before
    the change of the file continue with these tasks: deferred tasks, retries, and later tasks. If these tasks can't be
    made, tasks with the same ids fail in any run; without a last version, a single task does.
    """
    problems = "\n".join(f"* `{one}`" for one in broken.problems)
    more = len(broken.problems) - 1
    settings: dict[str, Any] = {
        "schedule": None,
        "description": f"Broken: {broken.problems[0]}" + (f" And {more} more, on the DAG's page." if more else ""),
        "doc_md": _ABOUT_BROKEN.format(problems=problems, remedy=_REMEDY),
    }
    text = "The pipeline is broken. " + " ".join(map(str, broken.problems)) + f" {_REMEDY}"
    last = broken.last
    # If a function to call is the problem, the tasks can be made without it.
    for known in () if last is None else (last, replace(last, alerts=FileArguments(arguments={}))):
        with suppress(Exception):
            dag = _dag_of(known, BROKEN, **settings)
            for task in dag.tasks:
                if isinstance(task, BaseOperator):
                    task.execute = _failing(text, broken.since)  # type: ignore[method-assign]  # of this task alone
            return dag
    start = datetime(2026, 1, 1, tzinfo=UTC)
    with DAG(broken.name, start_date=start, catchup=False, tags=[BROKEN], auto_register=False, **settings) as dag:
        # The last version's ids, so that the page keeps the history of these tasks.
        for task_id in ["land"] if last is None else dict.fromkeys(call.task_id for call in calls_of(last)):
            BrokenPipeline(task_id=task_id, problem=text)
    return dag


class BrokenPipeline(BaseOperator):
    """Task of a wrong file, if no correct version of the file is remembered.

    :param problem: the problem, and the remedy.
    """

    def __init__(self, *, problem: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.problem = problem

    def execute(self, context: Context) -> None:
        """Fail with the problem of the file."""
        raise AirflowFailException(self.problem)


def _failing(text: str, since: float) -> Callable[..., Any]:
    """Return the `execute` of a task of a broken pipeline: it fails, except in runs from before `since`."""

    def execute(context: Context) -> Any:
        run = context.get("dag_run")
        if run is not None and run.start_date is not None and run.start_date.timestamp() < since:
            # The task that runs is a copy, whose arguments are rendered.
            running: Any = context["task"]
            return type(running).execute(running, context)
        raise AirflowFailException(text)

    return execute


def _make_tasks(compiled: CompiledPipeline) -> None:
    """Make the tasks in the current DAG. Raises PipelineError with all arguments that operators refuse."""
    made: dict[str, Any] = {}
    problems: list[FileProblem] = []
    for call in calls_of(compiled):
        make = getattr(import_module(call.module), call.name)
        try:
            task = made[call.task_id] = make(**call.first, **call.arguments)
        except InvalidArgument as error:
            problems.append(call.in_file.problem(compiled.file, error))
            continue
        for before in call.after:
            if before in made:
                made[before] >> task
    if problems:
        raise PipelineError(problems)


def _alerts(compiled: CompiledPipeline) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the alert arguments of each task, and of the DAG. Raises PipelineError for an unusable function."""
    functions, most = compiled.on_failure, compiled.deadline
    try:
        failing = {"on_failure_callback": [_function("on_failure", one) for one in functions]} if functions else {}
        late = {} if most is None else {"deadline": _deadline(most, compiled.on_deadline)}
    except InvalidArgument as error:
        raise PipelineError([compiled.alerts.problem(compiled.file, error)]) from None
    return failing, late


def _deadline(most: float, function: str) -> Any:
    """Return the alert of a deadline. Raises InvalidArgument if the function can't be imported, or is not async."""
    # Not at the top: a parse of 500 files works without it. Airflow 3.1 has it in this module alone.
    from airflow.sdk.definitions.deadline import (  # type: ignore[attr-defined]  # 3.3 has moved one, and leaves it here
        AsyncCallback,
        DeadlineAlert,
        DeadlineReference,
    )

    called = _function("on_deadline", function)
    if not iscoroutinefunction(called):
        raise InvalidArgument("on_deadline", f"{function} is not an async function: Airflow calls it in the triggerer.")
    reference = DeadlineReference.DAGRUN_QUEUED_AT
    return DeadlineAlert(reference=reference, interval=timedelta(seconds=most), callback=AsyncCallback(called))


def _function(argument: str, name: str) -> Any:
    """Return the function `module:function`.

    Raises InvalidArgument if the import fails or if the result is not callable.

    :param argument: the file's key with the name, for the error.
    """
    module, _, function = name.partition(":")
    try:
        found = getattr(import_module(module), function)
    except Exception as error:  # noqa: BLE001  # a user's module may raise anything
        problem = f"{name} can't be imported ({type(error).__name__}: {error})."
        remedy = "Put the module next to the DAG file, or install it."
        raise InvalidArgument(argument, problem, remedy) from None
    if not callable(found):
        raise InvalidArgument(argument, f"{name} is not a function.")
    return found
