"""Rows of the page: a stream is a task with a table of landings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_lakestream.ui.page.advice import with_advice
from airflow_lakestream.ui.page.landings import Key, TaskLanding
from airflow_lakestream.ui.page.newest import MOST_TABLES
from airflow_lakestream.ui.page.presses import ButtonStream
from airflow_lakestream.ui.page.runs import Conf, RunStates, TaskTry
from airflow_lakestream.ui.page.states import StateFacts, state_of
from airflow_lakestream.ui.page.supervision import SupervisionResult
from airflow_lakestream.ui.page.tasks import DagStreams, StreamTask


@dataclass(frozen=True, slots=True)
class StreamDag:
    """A DAG with streams or looks."""

    dag_id: str
    paused: bool
    schedule: str | None
    next_run: datetime | None
    parsed: DagStreams


@dataclass(frozen=True, slots=True)
class PageStream:
    """All facts for a stream's row.

    :param table: the table of the landings, or None if it is unknown or changes with each run.
    :param names: topic, table and consumer group of the newest landing, or of the DAG file.
    :param conf: conf of a run that lands in the table, or None if unknown.
    :param is_usual: whether the scheduler's runs land in the table.
    """

    dag: StreamDag
    task: StreamTask
    table: str | None
    names: Mapping[str, str | None]
    newest: TaskTry | None
    landing: TaskLanding | None
    conf: Conf | None
    is_usual: bool
    look: SupervisionResult | None = None

    @property
    def key(self) -> Key:
        """Key of the task."""
        return self.dag.dag_id, self.task.task_id

    @property
    def pressed(self) -> ButtonStream:
        """The stream as seen by the buttons."""
        return ButtonStream(self.key, self.task, self.names["table"], self.names["consumer_group"])

    @property
    def report_tables(self) -> tuple[str | None, ...]:
        """Tables of the stream's reports, with None for reports without a table; empty: all tables."""
        if self.table is None:
            return ()
        return (self.table, None) if self.table == self.task.table_of({}) else (self.table,)


def streams_of(
    dag: StreamDag, task: StreamTask, landings: Mapping[str | None, TaskLanding], runs: RunStates
) -> list[PageStream]:
    """Return the streams of a task: first the table of the scheduler's runs, then the newest tables.

    :param landings: the newest landing by table, if the report names the table.
    """
    key, usual, by_run = (dag.dag_id, task.task_id), task.table_of({}), task.has_table_by_run
    tries, confs = runs.tries.get(key, {}), runs.confs.get(key, {})
    newest_landings: dict[str | None, TaskLanding] = {}
    for by_table in (landings, runs.reported.get(key, {})):
        for named, one in by_table.items():
            table = None if by_run else named or usual
            if table not in newest_landings or one.at > newest_landings[table].at:
                newest_landings[table] = one
    newest = sorted(newest_landings, key=lambda table: newest_landings[table].at, reverse=True)
    other_tables = [table for table in dict.fromkeys((*newest, *tries)) if table not in (None, usual)][:MOST_TABLES]
    # All tables of a mapped task are usual.
    is_mapped = usual is None and not by_run and not task.has_table_by_form

    def stream(table: str | None) -> PageStream:
        is_usual = table == usual or is_mapped
        # A run with an unknown table counts as a run of the scheduler.
        newest_tries = [tries[one] for one in {table, None} if one in tries and (is_usual or one is not None)]
        return PageStream(
            dag,
            task,
            table,
            _names(dag, task, newest_landings.get(table), None if table == usual else table),
            max(newest_tries, key=lambda one: one.run, default=None),
            newest_landings.get(table),
            () if is_usual else confs.get(table),
            is_usual,
        )

    tables = [usual, *other_tables] if usual is not None or not other_tables else other_tables
    return [stream(table) for table in tables]


def row_of(stream: PageStream) -> dict[str, Any]:
    """Return JSON-ready values."""
    dag, task, landing, look = stream.dag, stream.task, stream.landing, stream.look
    # Only the scheduler's runs wait until the DAG is unpaused.
    state, reasons = state_of(StateFacts(dag.paused and stream.is_usual, task.lasts, stream.newest, landing, look))
    return {
        "dag_id": dag.dag_id,
        "task_id": task.task_id,
        "engine": task.engine,
        **stream.names,
        "written": task.written(dict(stream.conf or ())),
        "conf": None if stream.conf is None else dict(stream.conf),
        "usual": stream.is_usual,
        "tags": list(dag.parsed.tags),
        "paused": dag.paused,
        "schedule": dag.schedule if stream.is_usual else None,
        "next_run": dag.next_run.isoformat() if dag.next_run and stream.is_usual and not dag.paused else None,
        "newest_run": stream.newest and stream.newest.to_dict(),
        "landing": landing and landing.to_dict(),
        "supervised": look and look.to_dict(),
        "state": state.value,
        "why": with_advice(reasons),
    }


def _names(dag: StreamDag, task: StreamTask, landing: TaskLanding | None, table: str | None) -> dict[str, str | None]:
    """Return the names in the newest landing, or else in the DAG file, except templates."""
    reported: Mapping[str, str] = landing.names if landing is not None else {}
    return {
        "topic": reported.get("topic") or task.topic,
        "table": reported.get("table") or table or task.table,
        "consumer_group": reported.get("consumer_group") or task.consumer_group or dag.dag_id,
    }
