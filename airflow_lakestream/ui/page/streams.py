"""The streams that a user may see, for the page. The number of statements is the same for any number of streams."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from airflow.models.dag import DagModel
from airflow.models.dag_version import DagVersion
from airflow.models.serialized_dag import SerializedDagModel
from sqlalchemy import func, select

from airflow_lakestream.ui.page.landings import HOURS, HourlyRows, Key, TaskLanding, chunks, read_history
from airflow_lakestream.ui.page.newest import MOST_TABLES, Conf, NewestLandings, NewestRuns, RunStates, TaskTry
from airflow_lakestream.ui.page.presses import ButtonStream, buttons_of, copy_command
from airflow_lakestream.ui.page.states import StateFacts, state_of, with_advice
from airflow_lakestream.ui.page.supervision import SupervisionResult, SupervisionResults, contents_of
from airflow_lakestream.ui.page.tasks import DagStreams, StreamTask, find_streams

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


@dataclass(frozen=True, slots=True)
class StreamDag:
    """A DAG with streams, or with looks at streams.

    `next_run` is the time at which Airflow starts the next run, or None.
    """

    dag_id: str
    paused: bool
    schedule: str | None
    next_run: datetime | None
    parsed: DagStreams


@dataclass(frozen=True, slots=True)
class PageStream:
    """All facts for a stream's row.

    :param table: the table of the landings, or None if it is unknown or changes with each run.
    :param names: topic, table and consumer group of the newest landing, or else of the DAG file.
    :param newest: the task in the newest run, or None.
    :param landing: the newest landing, or None.
    :param conf: conf of a run that lands in the table, or None if unknown.
    :param is_usual: whether the scheduler's runs land in the table.
    :param look: the last looks of `supervise_lakestream`, or None.
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
        """The tables that the stream's reports name, None for reports without a table; empty: all tables."""
        if self.table is None:
            return ()
        return (self.table, None) if self.table == self.task.table_of({}) else (self.table,)


def streams_of(
    dag: StreamDag, task: StreamTask, landings: Mapping[str | None, TaskLanding], runs: RunStates
) -> list[PageStream]:
    """Return a stream for each table of a task: first the table of the scheduler's runs, then the newest tables.

    A task whose tables are chosen by records or by the time has a single stream, with the table None.

    :param landings: by table, the newest landing; the key None is for reports without a table.
    :param runs: the newest runs, whose own landings may be newer.
    """
    key, usual, by_run = (dag.dag_id, task.task_id), task.table_of({}), task.has_table_by_run
    tries, confs = runs.tries.get(key, {}), runs.confs.get(key, {})
    newest_landings: dict[str | None, TaskLanding] = {}
    for by_table in (landings, runs.reported.get(key, {})):
        for reported_table, landing in by_table.items():
            table = None if by_run else reported_table or usual
            if table not in newest_landings or landing.at > newest_landings[table].at:
                newest_landings[table] = landing
    by_time = sorted(newest_landings, key=lambda table: newest_landings[table].at, reverse=True)
    other_tables = [table for table in dict.fromkeys((*by_time, *tries)) if table not in (None, usual)][:MOST_TABLES]
    # The scheduler's runs land in all tables of a mapped task.
    is_mapped = usual is None and not by_run and not task.has_table_by_form

    def stream(table: str | None) -> PageStream:
        is_usual = table == usual or is_mapped
        # A run whose table is unknown counts as a run of the scheduler.
        try_tables = {table, None} if is_usual else {table} - {None}
        newest_tries = [tries[try_table] for try_table in try_tables if try_table in tries]
        return PageStream(
            dag,
            task,
            table,
            _names(dag, task, newest_landings.get(table), None if table == usual else table),
            max(newest_tries, key=lambda task_try: task_try.run, default=None),
            newest_landings.get(table),
            () if is_usual else confs.get(table),
            is_usual,
        )

    # Without a usual table, None stands for the task only if no other table is known.
    tables = [usual, *other_tables] if usual is not None or not other_tables else other_tables
    return [stream(table) for table in tables]


def row_of(stream: PageStream) -> dict[str, Any]:
    """Return the page's row of a stream, as JSON-ready values."""
    dag, task, landing, look = stream.dag, stream.task, stream.landing, stream.look
    # Only the scheduler's runs wait until the DAG is unpaused.
    is_paused = dag.paused and stream.is_usual
    state, reasons = state_of(StateFacts(is_paused, task.lasts, stream.newest, landing, look, dag.parsed.broken))
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
    """Return topic, table and consumer group: of the newest landing, or else of the DAG file if it has no template.

    :param table: the table for a report without a table; None: the table of the DAG file.
    """
    reported: Mapping[str, str] = landing.names if landing is not None else {}
    return {
        "topic": reported.get("topic") or task.topic,
        "table": reported.get("table") or table or task.table,
        "consumer_group": reported.get("consumer_group") or task.consumer_group or dag.dag_id,
    }


SUPERVISION = "supervise_lakestream"  # the bundled DAG whose sensors look at the streams
_MOST_PARTITIONS = 200  # most partitions that are drawn: nobody can distinguish more bars


def offsets_of(landings: Iterable[TaskLanding]) -> list[dict[str, Any]]:
    """Return for each partition the landed and the lost ranges, as [from, until], and the holes between them.

    Earlier landings are not known here, so that there is no hole before the first range. At most `_MOST_PARTITIONS`
    partitions are returned.
    """
    landed: dict[tuple[str, int], list[tuple[int, int]]] = {}
    lost: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for landing in landings:
        for by_topic, into in ((landing.landed, landed), (landing.lost, lost)):
            for topic, ranges in by_topic.items():
                for partition, start, until in ranges:
                    into.setdefault((topic, partition), []).append((start, until))
    bars = []
    for topic, partition in sorted(landed.keys() | lost.keys())[:_MOST_PARTITIONS]:
        landed_ranges = _merged(landed.get((topic, partition), []))
        lost_ranges = _merged(lost.get((topic, partition), []))
        known = _merged([*landed_ranges, *lost_ranges])
        bars.append(
            {
                "topic": topic,
                "partition": partition,
                "landed": landed_ranges,
                "lost": lost_ranges,
                "holes": [[end, next_start] for (_, end), (next_start, _) in pairwise(known)],
            }
        )
    return bars


def _merged(ranges: Iterable[Sequence[int]]) -> list[list[int]]:
    """Return ranges as sorted [from, until] lists, overlapping and adjacent ranges as one."""
    merged: list[list[int]] = []
    for start, until in sorted(map(tuple, ranges)):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], until)
        else:
            merged.append([start, until])
    return merged


_MOST_LANDINGS = 200  # most landings of a stream that are shown


class StreamsPage:
    """The page's content, read from Airflow's database. The streams of a serialized DAG are cached by its hash."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_hash: dict[str, DagStreams] = {}
        self._texts: dict[tuple[Key, str | None], tuple[PageStream, str]] = {}
        self._landings = NewestLandings()
        self._runs = NewestRuns()
        self._supervision = SupervisionResults()
        self._hours = HourlyRows()

    def all(self, session: Session, readable: Collection[str]) -> str:
        """Return as JSON the streams of the readable DAGs, the DAGs that look at streams, and errors of their lists."""
        with self._lock:
            dags = self._dags(session, readable)
            rows = ",".join([self._text(stream) for stream in self._streams(session, dags)])
            supervisors = _supervisors(dags)
            problems = self._supervision.problems(supervisors)
            more = {"supervisors": supervisors, "add_supervision": copy_command(SUPERVISION), "problems": problems}
        return f'{{"streams":[{rows}],{json.dumps(more | {"at": datetime.now(UTC).isoformat()})[1:]}'

    def hours(self, session: Session, readable: Collection[str]) -> dict[str, Any]:
        """Return the landed rows by task, table and hour of a day.

        `first` is the first of the 24 hours. Each entry of `streams` has a task, a table, and a number for each hour as
        `rows`, or None if the runs report only sums. Each task has an entry with the table None, for reports without a
        table. If records or the time choose the task's tables, this is the only entry, with the sum of all tables.
        """
        with self._lock:
            dags = self._dags(session, readable)
        tasks = {(dag.dag_id, task.task_id): task.lasts for dag in dags for task in dag.parsed.streams}
        by_run = {(dag.dag_id, task.task_id) for dag in dags for task in dag.parsed.streams if task.has_table_by_run}
        first, by_stream = self._hours.of(session, tasks)
        rows = []
        for key, by_table in sorted(by_stream.items()):
            of_task: dict[str | None, list[int] | None] = {None: None if by_table is None else [0] * HOURS}
            if key in by_run and by_table:
                of_task = {None: [sum(hour) for hour in zip(*by_table.values(), strict=True)]}
            else:
                of_task |= by_table or {}
            rows += [
                {"dag_id": key[0], "task_id": key[1], "table": table, "rows": numbers}
                for table, numbers in of_task.items()
            ]
        return {"first": first.isoformat(), "streams": rows}

    def one(
        self, session: Session, key: Key, readable: Collection[str], table: str | None = None
    ) -> dict[str, Any] | None:
        """Return a stream's row with history, buttons, table contents and offsets.

        Returns None if no readable stream has this key.

        :param table: one of the task's tables; None for the usual table.
        """
        stream, newest, supervisors = self._find(session, key, table, readable)
        if stream is None:
            return None
        landings = read_history(session, key, newest, _MOST_LANDINGS, stream.report_tables)
        return {
            **row_of(stream),
            "supervisors": supervisors,
            "no_backfill": stream.task.no_backfill,
            "buttons": buttons_of(session, stream.pressed, readable),
            "contents": contents_of(session, stream.look),
            "landings": [landing.to_dict() for landing in landings],
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
        """Return a triple: a stream, the id of its newest event, and the ids of the DAGs that look at streams.

        The stream is None if no readable stream has this key and table. The id is None if unknown.
        """
        with self._lock:
            dags = [dag for dag in self._dags(session, readable) if dag.dag_id == key[0] or dag.parsed.looks]
            of_task = [stream for stream in self._streams(session, dags, key[0]) if stream.key == key]
            stream = next(
                (candidate for candidate in of_task if table in (None, candidate.table) or candidate.table is None),
                None,
            )
            return stream, None if stream is None else self._landings.event_of(key, stream.table), _supervisors(dags)

    def _text(self, stream: PageStream) -> str:
        """Return a stream's row as JSON. The text is kept: most rows do not change between calls."""
        place = stream.key, stream.table
        cached = self._texts.get(place)
        if cached is None or cached[0] != stream:
            cached = self._texts[place] = (stream, json.dumps(row_of(stream), separators=(",", ":")))
        return cached[1]

    def _streams(
        self, session: Session, dags: Collection[StreamDag], dag_id: str | None = None
    ) -> Iterator[PageStream]:
        """Yield the streams of the DAGs, or of one of these DAGs, task by task, with the usual table first."""
        results = self._supervision.of(session, {dag.dag_id: dag.parsed.looks for dag in dags if dag.parsed.looks})
        by_key = {
            (dag.dag_id, task.task_id): (dag, task)
            for dag in dags
            if dag_id in (None, dag.dag_id)
            for task in dag.parsed.streams
        }
        tasks = {key: task for key, (_, task) in by_key.items()}
        landings = self._landings.of(session, tasks)
        landed = {key: {landing.run_id for landing in by_table.values()} for key, by_table in landings.items()}
        runs = self._runs.of(session, tasks, landed)
        for key, (dag, task) in sorted(by_key.items()):
            for stream in streams_of(dag, task, landings.get(key, {}), runs):
                look = results.get((stream.names["table"] or "", stream.names["consumer_group"] or ""))
                yield replace(stream, look=look)

    def _dags(self, session: Session, readable: Collection[str]) -> list[StreamDag]:
        """Return the readable DAGs with streams or looks, by the newest version of each DAG."""
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
            StreamDag(row.dag_id, row.is_paused, row.timetable_summary, row.next_dagrun_create_after, streams)
            for row, streams in zip(rows, parsed, strict=True)
            if streams.streams or streams.looks
        ]

    def _read(self, session: Session, ids: dict[str, Any]) -> None:
        for chunk in chunks(list(ids.values())):
            for serialized in session.scalars(select(SerializedDagModel).where(SerializedDagModel.id.in_(chunk))):
                self._by_hash[serialized.dag_hash] = find_streams(serialized.data or {})
                session.expunge(serialized)


def _supervisors(dags: Collection[StreamDag]) -> list[str]:
    return [dag.dag_id for dag in dags if dag.parsed.looks]
