"""A compiled pipeline as the Python of a DAG file: equal to the DAG of `load`, for reading or for further use."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_lakestream.pipelines.compiled import CompiledPipeline
from airflow_lakestream.pipelines.operator import OperatorCall, calls_of

_TEMPLATE = '''\
"""The pipeline {file}."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG
{imports}
{modules}
with DAG(
{settings}):
{tasks}'''


_DEADLINES = "from airflow.sdk.definitions.deadline import AsyncCallback, DeadlineAlert, DeadlineReference\n"


def python_of(compiled: CompiledPipeline) -> str:
    """Return the text of a DAG file whose DAG equals the pipeline's."""
    calls = list(calls_of(compiled))
    replaces = compiled.replaces and compiled.cron
    year, month, day = (int(part) for part in compiled.start_date.split("-"))
    default_args = {
        "retries": compiled.retries,
        "retry_delay": _PythonCode(f"timedelta(seconds={compiled.retry_delay:g})"),
    }
    for name in ("owner", "pool"):
        if getattr(compiled, name):
            default_args[name] = getattr(compiled, name)
    if compiled.on_failure:
        default_args["on_failure_callback"] = [_called(one) for one in compiled.on_failure]
    cron = _PythonCode(f"CronDataIntervalTimetable({compiled.cron!r}, timezone='UTC')") if replaces else compiled.cron
    settings = {
        "dag_id": compiled.name,
        "description": compiled.description,
        "schedule": cron,
        "start_date": _PythonCode(f"datetime({year}, {month}, {day}, tzinfo=UTC)"),
        "catchup": compiled.catchup,
        "max_active_runs": 1,
        "tags": list(compiled.tags),
        "default_args": default_args,
    }
    alerted = list(compiled.on_failure)
    imports = "from airflow.timetables.interval import CronDataIntervalTimetable\n" if replaces else ""
    if compiled.deadline is not None:
        alerted.append(compiled.on_deadline)
        imports = _DEADLINES + imports
        called = f"interval=timedelta(seconds={compiled.deadline:g}), callback=AsyncCallback({_called(alerted[-1])})"
        settings["deadline"] = _PythonCode(f"DeadlineAlert(reference=DeadlineReference.DAGRUN_QUEUED_AT, {called})")
    return _TEMPLATE.format(
        # The path is in triple quotes.
        file=compiled.file.encode("unicode_escape").decode().replace('"', "'"),
        imports=imports,
        modules="".join(
            [
                *(f"import {one}\n" for one in sorted({one.partition(":")[0] for one in alerted})),
                *sorted({f"from {one.module} import {one.name}\n" for one in calls}),
            ]
        ),
        settings=_keywords(settings, 4),
        tasks=_tasks(calls),
    )


def _tasks(calls: Sequence[OperatorCall]) -> str:
    """Return the text of the calls, and of the dependencies between tasks.

    A task is assigned to a variable only if it has a dependency.
    """
    waited = {one for call in calls for one in call.after}
    names: dict[str, str] = {}
    made, waits = [], []
    for call in calls:
        # Ids that differ only in such a character get a suffix, so that names stay unique.
        name = re.sub(r"\W", "_", call.task_id)
        while name in names.values():
            name += "_"
        names[call.task_id] = name
        is_named = call.after or call.task_id in waited
        arguments = _keywords({**call.first, **call.arguments}, 8)
        made.append(f"    {f'{name} = ' if is_named else ''}{call.name}(\n{arguments}    )\n")
        if call.after:
            before = ", ".join(names[one] for one in call.after)
            waits.append(f"    {before if len(call.after) == 1 else f'[{before}]'} >> {name}\n")
    return "".join([*made, *waits])


class _PythonCode(str):
    """Python code, for output without quotes among values."""

    __slots__ = ()


def _called(function: str) -> _PythonCode:
    return _PythonCode(function.replace(":", "."))


# One line for each keyword argument.
def _keywords(given: Mapping[str, Any], indent: int) -> str:
    return "".join(f"{' ' * indent}{name}={_python(value, indent)},\n" for name, value in given.items())


# A value as Python code: `repr`, but nested mappings and texts of several lines are broken into lines.
def _python(value: Any, indent: int) -> str:
    if isinstance(value, _PythonCode):
        return str(value)
    if isinstance(value, Mapping) and value:
        inner = " " * (indent + 4)
        rows = "".join(f"{inner}{name!r}: {_python(one, indent + 4)},\n" for name, one in value.items())
        return f"{{\n{rows}{' ' * indent}}}"
    if isinstance(value, list):
        return f"[{', '.join(_python(one, indent) for one in value)}]"
    if isinstance(value, str) and "\n" in value:
        inner = " " * (indent + 4)
        rows = "".join(f"{inner}{line!r}\n" for line in value.splitlines(keepends=True))
        return f"(\n{rows}{' ' * indent})"
    return repr(value)
