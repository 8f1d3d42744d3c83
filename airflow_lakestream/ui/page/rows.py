"""The rows of the page: a stream is a task and a table that it lands in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_lakestream.ui.page.advice import with_advice
from airflow_lakestream.ui.page.landings import Key, Landing
from airflow_lakestream.ui.page.newest import MOST_TABLES
from airflow_lakestream.ui.page.presses import Pressed
from airflow_lakestream.ui.page.runs import Conf, Runs, Try
from airflow_lakestream.ui.page.states import Seen, state_of
from airflow_lakestream.ui.page.supervision import Supervised
from airflow_lakestream.ui.page.tasks import Found, StreamTask


@dataclass(frozen=True, slots=True)
class KnownDag:
    """A DAG with something of ours in it."""

    dag_id: str
    paused: bool
    schedule: str | None
    next_run: datetime | None
    found: Found


@dataclass(frozen=True, slots=True)
class SeenStream:
    """All that a stream's row is made of.

    :param table: the one that it lands in; None where it is not known, or each run has another one.
    :param names: its topic, table and consumer group, as its newest landing has told them, or the DAG file.
    :param conf: what a run is given that lands there; None where that is not known.
    :param is_usual: whether the scheduler's runs land there.
    """

    dag: KnownDag
    task: StreamTask
    table: str | None
    names: Mapping[str, str | None]
    newest: Try | None
    landing: Landing | None
    conf: Conf | None
    is_usual: bool
    look: Supervised | None = None

    @property
    def key(self) -> Key:
        """Its task."""
        return self.dag.dag_id, self.task.task_id

    @property
    def pressed(self) -> Pressed:
        """The stream as its buttons know it."""
        return Pressed(self.key, self.task, self.names["table"], self.names["consumer_group"])

    @property
    def told_tables(self) -> tuple[str | None, ...]:
        """The tables that its reports name, where None is for those that name none; all of them if it is empty."""
        if self.table is None:
            return ()
        return (self.table, None) if self.table == self.task.table_of({}) else (self.table,)


def streams_of(dag: KnownDag, task: StreamTask, landings: Mapping[str | None, Landing], runs: Runs) -> list[SeenStream]:
    """Return the streams of a task, first the one that the scheduler's runs land in, then the newest.

    :param landings: the newest one by table, as far as reports name it.
    """
    key, usual, by_run = (dag.dag_id, task.task_id), task.table_of({}), task.has_table_by_run
    tries, confs = runs.tries.get(key, {}), runs.confs.get(key, {})
    found: dict[str | None, Landing] = {}
    for told in (landings, runs.told.get(key, {})):
        for named, one in told.items():
            table = None if by_run else named or usual
            if table not in found or one.at > found[table].at:
                found[table] = one
    newest = sorted(found, key=lambda table: found[table].at, reverse=True)
    others = [table for table in dict.fromkeys((*newest, *tries)) if table not in (None, usual)][:MOST_TABLES]
    # The tables of a mapped task are all its own.
    is_mapped = usual is None and not by_run and not task.has_table_by_form

    def stream(table: str | None) -> SeenStream:
        is_usual = table == usual or is_mapped
        # A run of which nobody knows where it lands is one of the scheduler's.
        those = [tries[one] for one in {table, None} if one in tries and (is_usual or one is not None)]
        return SeenStream(
            dag,
            task,
            table,
            _names(dag, task, found.get(table), None if table == usual else table),
            max(those, key=lambda one: one.run, default=None),
            found.get(table),
            () if is_usual else confs.get(table),
            is_usual,
        )

    return [stream(table) for table in ([usual, *others] if usual is not None or not others else others)]


def row_of(seen: SeenStream) -> dict[str, Any]:
    """Return JSON-ready values."""
    dag, task, landing, look = seen.dag, seen.task, seen.landing, seen.look
    # Only the scheduler's runs wait until the DAG is unpaused.
    state, why = state_of(Seen(dag.paused and seen.is_usual, task.lasts, seen.newest, landing, look))
    return {
        "dag_id": dag.dag_id,
        "task_id": task.task_id,
        "engine": task.engine,
        **seen.names,
        "written": task.written(dict(seen.conf or ())),
        "conf": None if seen.conf is None else dict(seen.conf),
        "usual": seen.is_usual,
        "tags": list(dag.found.tags),
        "paused": dag.paused,
        "schedule": dag.schedule if seen.is_usual else None,
        "next_run": dag.next_run.isoformat() if dag.next_run and seen.is_usual and not dag.paused else None,
        "newest_run": seen.newest and seen.newest.to_dict(),
        "landing": landing and landing.to_dict(),
        "supervised": look and look.to_dict(),
        "state": state.value,
        "why": with_advice(why),
    }


def _names(dag: KnownDag, task: StreamTask, landing: Landing | None, table: str | None) -> dict[str, str | None]:
    """Return names as the newest landing had them, or as the DAG file has them, unless they are templates there."""
    told: Mapping[str, str] = landing.names if landing is not None else {}
    return {
        "topic": told.get("topic") or task.topic,
        "table": told.get("table") or table or task.table,
        "consumer_group": told.get("consumer_group") or task.consumer_group or dag.dag_id,
    }
