"""All streams that a user may see, as the page shows them: by a handful of statements, however many there are."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.models.dag import DagModel
from airflow.models.dag_version import DagVersion
from airflow.models.serialized_dag import SerializedDagModel
from sqlalchemy import func, select

from airflow_lakestream.ui.page.advice import with_advice
from airflow_lakestream.ui.page.landings import Key, Landing, Newest, chunks, from_xcoms, history
from airflow_lakestream.ui.page.offsets import offsets_of
from airflow_lakestream.ui.page.runs import NewestRuns, Try
from airflow_lakestream.ui.page.states import Seen, state_of
from airflow_lakestream.ui.page.supervision import Supervised, supervised
from airflow_lakestream.ui.page.tasks import Found, StreamTask, find

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# Of one stream so many landings are shown.
_MOST = 200


@dataclass(frozen=True, slots=True)
class KnownDag:
    """A DAG with something of ours in it."""

    dag_id: str
    paused: bool
    schedule: str | None
    next_run: datetime | None
    found: Found


class Streams:
    """Reads Airflow's database, and keeps what can't change: what a serialized DAG of a given hash has of ours."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, Found] = {}
        self._landings = Newest()
        self._runs = NewestRuns()

    def all(self, session: Session, readable: Collection[str]) -> dict[str, Any]:
        """Return all streams of the DAGs that may be read."""
        return {"streams": self._rows(session, readable), "at": datetime.now(UTC).isoformat()}

    def one(self, session: Session, key: Key, readable: Collection[str]) -> dict[str, Any] | None:
        """Return one stream with its history; None where there is none that may be read."""
        row = next((row for row in self._rows(session, readable, key[0]) if row["task_id"] == key[1]), None)
        if row is None:
            return None
        landings = history(session, key, self._landings.event_of(key), _MOST)
        return {**row, "landings": [one.to_dict() for one in landings], "offsets": offsets_of(landings)}

    def _rows(self, session: Session, readable: Collection[str], dag_id: str | None = None) -> list[dict[str, Any]]:
        dags = self._dags(session, readable)
        said = supervised(session, {dag.dag_id: dag.found.looks for dag in dags if dag.found.looks})
        tasks = {
            (dag.dag_id, task.task_id): (dag, task)
            for dag in dags
            if dag_id in (None, dag.dag_id)
            for task in dag.found.streams
        }
        landings = self._landings.of(session, tasks)
        runs = self._runs.of(
            session, tasks, [key for key, (_, task) in tasks.items() if task.lasts or key not in landings]
        )
        landings |= _newer(runs.told, landings)
        landings |= from_xcoms(session, [key for key in tasks if key not in landings and key in runs.tries])
        return [
            _row(dag, task, runs.tries.get(key), landings.get(key), said) for key, (dag, task) in sorted(tasks.items())
        ]

    def _dags(self, session: Session, readable: Collection[str]) -> list[KnownDag]:
        newest = (
            select(DagVersion.dag_id, func.max(DagVersion.version_number).label("number"))
            .group_by(DagVersion.dag_id)
            .subquery()
        )
        rows = session.execute(
            select(
                SerializedDagModel.id,
                SerializedDagModel.dag_hash,
                DagModel.dag_id,
                DagModel.is_paused,
                DagModel.timetable_summary,
                DagModel.next_dagrun_create_after,
            )
            .join(DagVersion, DagVersion.id == SerializedDagModel.dag_version_id)
            .join(newest, (newest.c.dag_id == DagVersion.dag_id) & (newest.c.number == DagVersion.version_number))
            .join(DagModel, DagModel.dag_id == DagVersion.dag_id)
            .where(~DagModel.is_stale)
        ).all()
        rows = [row for row in rows if row.dag_id in readable]
        with self._lock:
            self._read(session, {row.dag_hash: row.id for row in rows if row.dag_hash not in self._found})
            found = [self._found.get(row.dag_hash, Found()) for row in rows]
        return [
            KnownDag(row.dag_id, row.is_paused, row.timetable_summary, row.next_dagrun_create_after, one)
            for row, one in zip(rows, found, strict=True)
            if one.streams or one.looks
        ]

    def _read(self, session: Session, ids: dict[str, Any]) -> None:
        for chunk in chunks(list(ids.values())):
            for one in session.scalars(select(SerializedDagModel).where(SerializedDagModel.id.in_(chunk))):
                self._found[one.dag_hash] = find(one.data or {})
                session.expunge(one)


def _newer(told: dict[Key, Landing], landings: dict[Key, Landing]) -> dict[Key, Landing]:
    return {key: one for key, one in told.items() if key not in landings or one.at > landings[key].at}


def _row(
    dag: KnownDag,
    task: StreamTask,
    newest: Try | None,
    landing: Landing | None,
    said: dict[tuple[str, str], Supervised],
) -> dict[str, Any]:
    names = {name: _name(task, landing, name) for name in ("topic", "table", "consumer_group")}
    group = names["consumer_group"] or dag.dag_id
    look = said.get((names["table"] or "", group))
    state, why = state_of(Seen(dag.paused, task.lasts, newest, landing, look))
    return {
        "dag_id": dag.dag_id,
        "task_id": task.task_id,
        "engine": task.engine,
        **names,
        "consumer_group": group,
        "written": dict(task.written),
        "paused": dag.paused,
        "schedule": dag.schedule,
        "next_run": None if dag.paused or dag.next_run is None else dag.next_run.isoformat(),
        "newest_run": newest and newest.to_dict(),
        "landing": landing and landing.to_dict(),
        "supervised": look and look.to_dict(),
        "state": state.value,
        "why": with_advice(why),
    }


def _name(task: StreamTask, landing: Landing | None, name: str) -> str | None:
    """Return a name: as the newest run had it, or as the DAG file has it, unless it is a template there."""
    rendered = landing.report.get(name) if landing is not None else None
    return str(rendered) if rendered else getattr(task, name)
