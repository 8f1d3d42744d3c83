"""All streams visible to a user, for the page: read by a handful of statements, for any number of streams."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.models.dag import DagModel
from airflow.models.dag_version import DagVersion
from airflow.models.serialized_dag import SerializedDagModel
from sqlalchemy import func, select

from airflow_lakestream.ui.page.hours import HOURS, HourlyRows
from airflow_lakestream.ui.page.landings import Key, chunks, read_history
from airflow_lakestream.ui.page.newest import NewestLandings
from airflow_lakestream.ui.page.offsets import offsets_of
from airflow_lakestream.ui.page.presses import ButtonStream, buttons_of
from airflow_lakestream.ui.page.rows import PageStream, StreamDag, row_of, streams_of
from airflow_lakestream.ui.page.runs import NewestRuns
from airflow_lakestream.ui.page.supervision import SupervisionResults, contents_of
from airflow_lakestream.ui.page.tasks import DagStreams, find_streams

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# At most this many landings of a stream are shown.
_MOST = 200


class StreamsPage:
    """Reads Airflow's database, and caches constant facts: the streams in a serialized DAG, by hash."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_hash: dict[str, DagStreams] = {}
        self._texts: dict[tuple[Key, str | None], tuple[PageStream, str]] = {}
        self._landings = NewestLandings()
        self._runs = NewestRuns()
        self._supervision = SupervisionResults()
        self._hours = HourlyRows()

    def all(self, session: Session, readable: Collection[str]) -> str:
        """Return all streams of the readable DAGs, and the DAGs with looks, as JSON."""
        with self._lock:
            dags = self._dags(session, readable)
            rows = ",".join([self._text(stream) for stream in self._streams(session, dags)])
        supervisors = json.dumps(_supervisors(dags))
        return f'{{"streams":[{rows}],"supervisors":{supervisors},"at":{json.dumps(datetime.now(UTC).isoformat())}}}'

    def hours(self, session: Session, readable: Collection[str]) -> dict[str, Any]:
        """Return the landed rows by task, table and hour of a day; table None is for reports without a table."""
        with self._lock:
            dags = self._dags(session, readable)
        tasks = {(dag.dag_id, task.task_id): task.lasts for dag in dags for task in dag.parsed.streams}
        by_run = {(dag.dag_id, task.task_id) for dag in dags for task in dag.parsed.streams if task.has_table_by_run}
        first, by_stream = self._hours.of(session, tasks)
        rows = []
        for key, by_table in sorted(by_stream.items()):
            own: dict[str | None, list[int] | None] = {None: None if by_table is None else [0] * HOURS}
            if key in by_run and by_table:
                own = {None: [sum(hours) for hours in zip(*by_table.values(), strict=True)]}
            else:
                own |= by_table or {}
            rows += [{"dag_id": key[0], "task_id": key[1], "table": table, "rows": one} for table, one in own.items()]
        return {"first": first.isoformat(), "streams": rows}

    def one(
        self, session: Session, key: Key, readable: Collection[str], table: str | None = None
    ) -> dict[str, Any] | None:
        """Return a stream with history, or None if no readable stream has this key.

        :param table: one of the task's tables; None for the usual table.
        """
        stream, newest, supervisors = self._find(session, key, table, readable)
        if stream is None:
            return None
        landings = read_history(session, key, newest, _MOST, stream.report_tables)
        return {
            **row_of(stream),
            "supervisors": supervisors,
            "no_backfill": stream.task.no_backfill,
            "buttons": buttons_of(session, stream.pressed, readable),
            "contents": contents_of(session, stream.look),
            "landings": [one.to_dict() for one in landings],
            "offsets": offsets_of(landings),
        }

    def pressed(
        self, session: Session, key: Key, readable: Collection[str], table: str | None = None
    ) -> ButtonStream | None:
        """Return a stream as seen by the buttons, or None if no readable stream has this key."""
        stream = self._find(session, key, table, readable)[0]
        return None if stream is None else stream.pressed

    def _find(
        self, session: Session, key: Key, table: str | None, readable: Collection[str]
    ) -> tuple[PageStream | None, int | None, list[str]]:
        """Return a stream, the id of the newest event, and the DAGs with looks."""
        with self._lock:
            dags = [dag for dag in self._dags(session, readable) if dag.dag_id == key[0] or dag.parsed.looks]
            of_task = [stream for stream in self._streams(session, dags, key[0]) if stream.key == key]
            stream = next((one for one in of_task if table in (None, one.table) or one.table is None), None)
            return stream, None if stream is None else self._landings.event_of(key, stream.table), _supervisors(dags)

    def _text(self, stream: PageStream) -> str:
        """Return a row as JSON. Most rows are unchanged since the last call, and kept as text."""
        place = stream.key, stream.table
        before = self._texts.get(place)
        if before is None or before[0] != stream:
            before = self._texts[place] = (stream, json.dumps(row_of(stream), separators=(",", ":")))
        return before[1]

    def _streams(
        self, session: Session, dags: Collection[StreamDag], dag_id: str | None = None
    ) -> Iterator[PageStream]:
        """Yield the streams of the DAGs, or of a single DAG, task by task: first the usual table."""
        results = self._supervision.of(session, {dag.dag_id: dag.parsed.looks for dag in dags if dag.parsed.looks})
        by_key = {
            (dag.dag_id, task.task_id): (dag, task)
            for dag in dags
            if dag_id in (None, dag.dag_id)
            for task in dag.parsed.streams
        }
        tasks = {key: task for key, (_, task) in by_key.items()}
        landings = self._landings.of(session, tasks)
        runs = self._runs.of(session, tasks, [key for key, task in tasks.items() if task.lasts or key not in landings])
        for key, (dag, task) in sorted(by_key.items()):
            for one in streams_of(dag, task, landings.get(key, {}), runs):
                look = results.get((one.names["table"] or "", one.names["consumer_group"] or ""))
                yield replace(one, look=look)

    def _dags(self, session: Session, readable: Collection[str]) -> list[StreamDag]:
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
        self._read(session, {row.dag_hash: row.id for row in rows if row.dag_hash not in self._by_hash})
        parsed = [self._by_hash.get(row.dag_hash, DagStreams()) for row in rows]
        return [
            StreamDag(row.dag_id, row.is_paused, row.timetable_summary, row.next_dagrun_create_after, one)
            for row, one in zip(rows, parsed, strict=True)
            if one.streams or one.looks
        ]

    def _read(self, session: Session, ids: dict[str, Any]) -> None:
        for chunk in chunks(list(ids.values())):
            for one in session.scalars(select(SerializedDagModel).where(SerializedDagModel.id.in_(chunk))):
                self._by_hash[one.dag_hash] = find_streams(one.data or {})
                session.expunge(one)


def _supervisors(dags: Collection[StreamDag]) -> list[str]:
    return [dag.dag_id for dag in dags if dag.parsed.looks]
