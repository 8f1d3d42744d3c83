"""All streams that a user may see, as the page shows them: by a handful of statements, however many there are."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.models.dag import DagModel
from airflow.models.dag_version import DagVersion
from airflow.models.serialized_dag import SerializedDagModel
from sqlalchemy import func, select

from airflow_lakestream.ui.page.advice import with_advice
from airflow_lakestream.ui.page.hours import Hours
from airflow_lakestream.ui.page.landings import Key, Landing, chunks, history
from airflow_lakestream.ui.page.newest import Newest
from airflow_lakestream.ui.page.offsets import offsets_of
from airflow_lakestream.ui.page.presses import Pressed, buttons
from airflow_lakestream.ui.page.runs import NewestRuns, Try
from airflow_lakestream.ui.page.states import Seen, state_of
from airflow_lakestream.ui.page.supervision import Supervised, Supervision, contents_of
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


@dataclass(frozen=True, slots=True)
class SeenStream:
    """All that a stream's row is made of."""

    dag: KnownDag
    task: StreamTask
    names: Mapping[str, str | None]
    newest: Try | None
    landing: Landing | None
    look: Supervised | None

    @property
    def key(self) -> Key:
        """Its task."""
        return self.dag.dag_id, self.task.task_id

    @property
    def pressed(self) -> Pressed:
        """The stream as its buttons know it."""
        return Pressed(self.key, self.task, self.names["table"], self.names["consumer_group"])


class Streams:
    """Reads Airflow's database, and keeps what can't change: what a serialized DAG of a given hash has of ours."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, Found] = {}
        self._texts: dict[Key, tuple[SeenStream, str]] = {}
        self._landings = Newest()
        self._runs = NewestRuns()
        self._supervision = Supervision()
        self._hours = Hours()

    def all(self, session: Session, readable: Collection[str]) -> str:
        """Return all streams of the DAGs that may be read, as JSON."""
        with self._lock:
            rows = ",".join([self._text(seen) for seen in self._seen(session, readable)])
        return f'{{"streams":[{rows}],"at":{json.dumps(datetime.now(UTC).isoformat())}}}'

    def hours(self, session: Session, readable: Collection[str]) -> dict[str, Any]:
        """Return the rows that each stream landed in each hour of the last day."""
        with self._lock:
            dags = self._dags(session, readable)
        tasks = {(dag.dag_id, task.task_id): task.lasts for dag in dags for task in dag.found.streams}
        first, found = self._hours.of(session, tasks)
        rows = [{"dag_id": key[0], "task_id": key[1], "rows": rows} for key, rows in sorted(found.items())]
        return {"first": first.isoformat(), "streams": rows}

    def one(self, session: Session, key: Key, readable: Collection[str]) -> dict[str, Any] | None:
        """Return one stream with its history; None where there is none that may be read."""
        found, newest = self._find(session, key, readable)
        if found is None:
            return None
        landings = history(session, key, newest, _MOST)
        return {
            **_row(found),
            "no_backfill": found.task.no_backfill,
            "buttons": buttons(session, found.pressed, readable),
            "contents": contents_of(session, found.look),
            "landings": [one.to_dict() for one in landings],
            "offsets": offsets_of(landings),
        }

    def pressed(self, session: Session, key: Key, readable: Collection[str]) -> Pressed | None:
        """Return one stream as its buttons know it; None where there is none that may be read."""
        found, _ = self._find(session, key, readable)
        return None if found is None else found.pressed

    def _find(self, session: Session, key: Key, readable: Collection[str]) -> tuple[SeenStream | None, int | None]:
        """Return a stream, and the id of its newest event."""
        with self._lock:
            found = next((seen for seen in self._seen(session, readable, key[0]) if seen.key == key), None)
            return found, self._landings.event_of(key)

    def _text(self, seen: SeenStream) -> str:
        """Return a row as JSON. Most are as they were when somebody last looked."""
        before = self._texts.get(seen.key)
        if before is None or before[0] != seen:
            before = self._texts[seen.key] = (seen, json.dumps(_row(seen), separators=(",", ":")))
        return before[1]

    def _seen(self, session: Session, readable: Collection[str], dag_id: str | None = None) -> Iterator[SeenStream]:
        dags = self._dags(session, readable)
        said = self._supervision.of(session, {dag.dag_id: dag.found.looks for dag in dags if dag.found.looks})
        tasks = {
            (dag.dag_id, task.task_id): (dag, task)
            for dag in dags
            if dag_id in (None, dag.dag_id)
            for task in dag.found.streams
        }
        landings = self._landings.of(session, {key: task.has_outlets for key, (_, task) in tasks.items()})
        runs = self._runs.of(
            session, tasks, [key for key, (_, task) in tasks.items() if task.lasts or key not in landings]
        )
        landings |= _newer(runs.told, landings)
        for key, (dag, task) in sorted(tasks.items()):
            landing = landings.get(key)
            names = _names(dag, task, landing)
            look = said.get((names["table"] or "", names["consumer_group"] or ""))
            yield SeenStream(dag, task, names, runs.tries.get(key), landing, look)

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


def _row(seen: SeenStream) -> dict[str, Any]:
    dag, task, landing, look = seen.dag, seen.task, seen.landing, seen.look
    state, why = state_of(Seen(dag.paused, task.lasts, seen.newest, landing, look))
    return {
        "dag_id": dag.dag_id,
        "task_id": task.task_id,
        "engine": task.engine,
        **seen.names,
        "written": dict(task.written),
        "paused": dag.paused,
        "schedule": dag.schedule,
        "next_run": None if dag.paused or dag.next_run is None else dag.next_run.isoformat(),
        "newest_run": seen.newest and seen.newest.to_dict(),
        "landing": landing and landing.to_dict(),
        "supervised": look and look.to_dict(),
        "state": state.value,
        "why": with_advice(why),
    }


def _names(dag: KnownDag, task: StreamTask, landing: Landing | None) -> dict[str, str | None]:
    """Return names as the newest run had them, or as the DAG file has them, unless they are templates there."""
    told: Mapping[str, str] = landing.names if landing is not None else {}
    return {
        "topic": told.get("topic") or task.topic,
        "table": told.get("table") or task.table,
        "consumer_group": told.get("consumer_group") or task.consumer_group or dag.dag_id,
    }
