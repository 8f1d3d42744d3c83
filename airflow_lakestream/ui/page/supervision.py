"""Last results of the bundled DAG `supervise_lakestream` for each stream, read from XComs."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from sqlalchemy import JSON, Text, cast, func, select, type_coerce

from airflow_lakestream.ui.page.landings import valid_json
from airflow_lakestream.ui.page.shapes import Odd, count, integer, listed, mapped, number, plain, text
from airflow_lakestream.ui.page.tasks import CONTENTS, LookTask
from airflow_lakestream.watching.causes import UNSEEN

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# Shapes of the list of streams, of the sensors' values, and of a table's contents: the fields that the page shows.
_LISTED = mapped(table=text, consumer_group=text)
_LOOK = mapped(lag=integer, lost=integer, time_left=number, reasons=listed(mapped(cause=text, text=text)))
_SAMPLE = mapped(topic=text, partition=integer, offset=integer, error=text, value=text, bytes=integer, run_id=text)
_REASON = mapped(stage=text, reason=text, records=integer, samples=listed(_SAMPLE))
_SNAPSHOT = mapped(**dict.fromkeys(("snapshot_id", "at", "operation", "kind", "consumer_group"), text), rows=integer)
_CONTENTS = mapped(
    table=text,
    consumer_group=text,
    files=mapped(
        **dict.fromkeys(("data_files", "delete_files", "bytes", "rows", "small_files"), integer), compacted_at=text
    ),
    snapshots=mapped(count=integer, newest=listed(_SNAPSHOT)),
    rejects=mapped(count=count, looked_at=count, kinds=count, reasons=listed(_REASON)),
)
# A stream in the list of streams, as (table, consumer_group).
Named = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ContentsPlace:
    """Place of a report about a table's contents: an instance of a mapped task in a run.

    `is_well` is True if the task succeeded. `at` is the time at which the run ended.
    """

    run: int
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    at: datetime
    is_well: bool


@dataclass
class SupervisionResult:
    """Last results for a stream.

    :param at: the time at which the run ended.
    :param looks: by kind of look: `well`, whether the sensor succeeded, and `value`, the sensor's value or None.
    :param problems: by kind of look, the error of reading the value.
    :param contents: the place of the report about the table's contents, or None.
    :param open_rejects: number of rejected records that were not landed again, or None if unknown.
    """

    dag_id: str
    run_id: str
    at: datetime
    looks: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    contents: ContentsPlace | None = None
    open_rejects: int | None = None

    def value(self, kind: str, name: str) -> Any:
        """Return a field of a look's value, or None if there is no look, or no such field."""
        return (self.looks.get(kind, {}).get("value") or {}).get(name)

    def is_bad(self, kind: str) -> bool:
        """Return whether the sensor failed."""
        return self.looks.get(kind, {}).get("well") is False

    def unseen(self) -> dict[str, str]:
        """Return by kind of look the reason for a look that failed, and not only found a bad state."""
        bad = {kind: look.get("value") for kind, look in self.looks.items() if look.get("well") is False}
        default = "The task that looks failed: the error in its log has the reason."
        return {
            kind: str(value[UNSEEN]) if value is not None else default
            for kind, value in bad.items()
            if value is None or UNSEEN in value
        }

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        shown = {"looks": self.looks, "open_rejects": self.open_rejects}
        return {"dag_id": self.dag_id, "run_id": self.run_id, "at": self.at.isoformat(), **shown}


class SupervisionResults:
    """Last results for each stream. Each ended run is read once."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[Any, dict[Named, SupervisionResult], list[str]]] = {}

    def problems(self, dag_ids: Collection[str]) -> list[str]:
        """Return the errors of reading the lists of streams of these DAGs."""
        return [problem for dag_id in dag_ids if dag_id in self._read for problem in self._read[dag_id][2]]

    def of(self, session: Session, looks: Mapping[str, Sequence[LookTask]]) -> dict[Named, SupervisionResult]:
        """Return the last results by (table, consumer group), from the newest ended run of each DAG.

        If several DAGs look at a stream, their results are merged.

        :param looks: by DAG, the tasks that look at streams.
        """
        newest = (
            select(func.max(DagRun.id))
            .where(DagRun.dag_id.in_(list(looks)), DagRun.state.in_(("success", "failed")))
            .group_by(DagRun.dag_id)
        )
        runs = select(DagRun.id, DagRun.dag_id, DagRun.run_id, DagRun.end_date).where(DagRun.id.in_(newest))
        results: dict[Named, SupervisionResult] = {}
        for run, dag_id, run_id, at in session.execute(runs):
            if at is None:
                continue
            # With the time: a run with cleared tasks ends again, with other results.
            version = (run, at, looks[dag_id])
            if self._read.get(dag_id, (None,))[0] != version:
                self._read[dag_id] = (version, *_results_of(session, run, dag_id, run_id, at, looks[dag_id]))
            for name, result in self._read[dag_id][1].items():
                other = results.get(name)
                results[name] = result if other is None else _merged_results(other, result)
        return results


def contents_of(session: Session, result: SupervisionResult | None) -> dict[str, Any] | None:
    """Return the contents of a stream's table at the last look, with the run and its time, or None without a look.

    `document` is None if the look failed, or if its report could not be read: `problem` then has the error.
    """
    place = result.contents if result is not None else None
    if place is None:
        return None
    document = session.scalar(
        select(XComModel.value).where(
            XComModel.dag_run_id == place.run,
            XComModel.task_id == place.task_id,
            XComModel.map_index == place.map_index,
            XComModel.key == "return_value",
        )
    )
    document, problem = _read(document), None
    try:
        document = _CONTENTS("", document) if place.is_well else None
    except Odd as odd:
        document, problem = None, str(odd)
    return {
        "dag_id": place.dag_id,
        "run_id": place.run_id,
        "task_id": place.task_id,
        "map_index": place.map_index,
        "at": place.at.isoformat(),
        "document": document,
        "problem": problem,
    }


def _merged_results(first: SupervisionResult, second: SupervisionResult) -> SupervisionResult:
    """Return the results of two DAGs that look at the same stream; those of the second count if both have them."""
    return replace(
        first,
        looks={**first.looks, **second.looks},
        problems={**first.problems, **second.problems},
        contents=second.contents or first.contents,
        open_rejects=(second if second.contents else first).open_rejects,
    )


def _results_of(
    session: Session, run: int, dag_id: str, run_id: str, at: datetime, looks: Sequence[LookTask]
) -> tuple[dict[Named, SupervisionResult], list[str]]:
    """Return a pair: the results by stream, and the errors of reading the lists of streams.

    :param run: the id of the run in the database.
    :param looks: the tasks of the DAG that look at streams.
    """
    results: dict[Named, SupervisionResult] = {}
    tasks = {look.task_id: look for look in looks}
    # Reports about the contents of tables are long: `contents_of` reads a single one.
    with_values = {task_id for task_id, look in tasks.items() if look.kind != CONTENTS}
    with_values |= {look.listed_by for look in looks}
    of_run = select(XComModel.task_id, XComModel.map_index, XComModel.value).where(
        XComModel.dag_run_id == run, XComModel.key == "return_value", XComModel.task_id.in_(with_values)
    )
    values = {(task_id, index): _read(value) for task_id, index, value in session.execute(of_run)}
    states = select(TaskInstance.task_id, TaskInstance.map_index, TaskInstance.state).where(
        TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id, TaskInstance.task_id.in_(list(tasks))
    )
    rejects = _open_rejects(session, run, {task_id for task_id, look in tasks.items() if look.kind == CONTENTS})
    lists, problems = {}, []
    for task_id in dict.fromkeys(look.listed_by for look in looks):
        lists[task_id], problem = _stream_names(values.get((task_id, -1)))
        if problem:
            report = f"The list that the task {task_id} of the run {run_id} of {dag_id} reported"
            problems.append(f"{report} could not be read: {problem}.")
    for task_id, index, state in session.execute(states):
        name = lists[tasks[task_id].listed_by].get(index)
        if name is None or state not in ("success", "failed"):
            continue
        result = results.setdefault(name, SupervisionResult(dag_id, run_id, at))
        if tasks[task_id].kind == CONTENTS:
            result.contents = ContentsPlace(run, dag_id, run_id, task_id, index, at, state == "success")
            result.open_rejects = rejects.get((task_id, index)) if state == "success" else None
            continue
        kind, value = tasks[task_id].kind, values.get((task_id, index))
        try:
            value = None if value is None else look_value(value)
        except Odd as odd:
            value, result.problems[kind] = None, str(odd)
        result.looks[kind] = {"well": state == "success", "value": value}
    return results, problems


def _open_rejects(session: Session, run: int, task_ids: Collection[str]) -> dict[tuple[str, int], int]:
    """Return by task and map index the number of open rejected records, without reading whole reports."""
    if not task_ids:
        return {}
    counted = cast(type_coerce(valid_json(session, XComModel.value), JSON)[("rejects", "count")], Text)
    reports = select(XComModel.task_id, XComModel.map_index, counted).where(
        XComModel.dag_run_id == run, XComModel.key == "return_value", XComModel.task_id.in_(task_ids)
    )
    rejects = {}
    for task_id, index, text_of_count in session.execute(reports):
        with suppress(ValueError, RecursionError):
            if (rejected := integer("rejects.count", json.loads(text_of_count or "null"))) is not None:
                rejects[task_id, index] = rejected
    return rejects


def look_value(value: Any) -> dict[str, Any]:
    """Return a sensor's value with the fields that the page shows checked. Raises Odd."""
    shown: dict[str, Any] = _LOOK("", value)
    return {**plain("", value), **shown}


def _stream_names(value: Any) -> tuple[dict[int, Named], str]:
    """Return a pair: the streams of a list by index, and the error of the first stream that could not be read.

    The error is empty if all streams could be read.
    """
    names, problem = {}, ""
    if value is not None and not isinstance(value, list):
        return {}, str(Odd("the report", value, "list"))
    for index, stream in enumerate(value or []):
        try:
            named = _LISTED(f"[{index}]", stream)
        except Odd as odd:
            problem = problem or str(odd)
        else:
            names[index] = (str(named["table"]), str(named["consumer_group"]))
    return names, problem


def _read(value: Any) -> Any:
    """Return the value of an XCom, parsed if it is JSON text."""
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value
