"""The newest landing of each task in each table, by statements of a constant cost for any number of landings.

Events of assets and XComs have ids in the order of time, so the newest are read by id. Older events and XComs are
searched once, task by task, for tasks without any among the newest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.models.asset import AssetEvent, TaskOutletAssetReference
from airflow.models.dagrun import DagRun
from airflow.models.xcom import XComModel
from sqlalchemy import func, select

from airflow_lakestream.ui.page.landings import Key, TaskLanding, chunks, has_landing, landing_of, table_in, table_of

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy.orm import Session

    from airflow_lakestream.ui.page.tasks import StreamTask

_Place = tuple[Key, str | None]
# Number of newest events and runs that are read: the last landings of some thousand streams.
WINDOW = 10_000
# Per task only the tables written last: names of tables may be made by each run.
MOST_TABLES = 20
# A later event may be committed first: this many ids are read again.
_READ_AGAIN = 1000
_RETURNED = XComModel.key == "return_value"


class NewestLandings:
    """The newest landing of each task in each of the tables. For one thread at a time.

    Reports are kept, and read once. A landing without a table in its report has the key None.
    """

    def __init__(self) -> None:
        self._last_id: int | None = None
        self._events: dict[Key, dict[str | None, int]] = {}
        # The run, and the time of the report.
        self._reports: dict[Key, dict[str | None, tuple[int, datetime]]] = {}
        self._searched: set[Key] = set()
        self._read: dict[_Place, tuple[Any, Any]] = {}
        self._landings: dict[Key, dict[str | None, TaskLanding]] = {}

    def of(self, session: Session, tasks: Mapping[Key, StreamTask]) -> dict[Key, dict[str | None, TaskLanding]]:
        """Return the newest landings by task and table. Tasks without a landing are left out.

        For a task with outlets the outlets' events are enough; XComs are read only for other tasks, or if an event is
        missing.
        """
        self._look_at_events(session)
        if any(not task.has_outlets or key not in self._events for key, task in tasks.items()):
            self._look_at_xcoms(session)
        missing = [key for key, task in tasks.items() if not self._knows_table(key, task) and key not in self._searched]
        self._search(session, missing)
        self._read_landings(session, tasks)
        return {key: _newest(self._landings[key]) for key in tasks if key in self._landings}

    def event_of(self, key: Key, table: str | None) -> int | None:
        """Return the id of a task's newest event for a table.

        Without an event for the table, the newest event for any table counts; None without an event.
        """
        events = self._events.get(key, {})
        return events.get(table, max(events.values(), default=None))

    def _knows_table(self, key: Key, task: StreamTask) -> bool:
        tables = self._events.get(key, {}).keys() | self._reports.get(key, {}).keys()
        usual = task.table_of({})
        # A landing in another table is not enough: the DAG file's table may have an older landing, for the search.
        return bool(tables) and (usual is None or not tables.isdisjoint((usual, None)))

    def _look_at_events(self, session: Session) -> None:
        top = session.scalar(select(func.max(AssetEvent.id))) or 0
        since = top - WINDOW if self._last_id is None else self._last_id - _READ_AGAIN
        self._take_events(session, AssetEvent.id > since)
        self._last_id = max(top, self._last_id or 0)

    def _take_events(self, session: Session, *where: Any) -> None:
        events = (
            select(
                AssetEvent.id, AssetEvent.source_dag_id, AssetEvent.source_task_id, table_in(session, AssetEvent.extra)
            )
            .where(*where, AssetEvent.source_task_id.is_not(None), has_landing(session, AssetEvent.extra))
            .subquery()
        )
        place = (events.c.source_dag_id, events.c.source_task_id, events.c.report_table)
        for dag_id, task_id, table, event in session.execute(select(*place, func.max(events.c.id)).group_by(*place)):
            of_task = self._events.setdefault((str(dag_id), str(task_id)), {})
            of_task[table_of(table)] = max(event, of_task.get(table_of(table), 0))

    def _look_at_xcoms(self, session: Session) -> None:
        top = session.scalar(select(func.max(DagRun.id))) or 0
        self._take_reports(session, XComModel.dag_run_id > top - WINDOW)

    def _take_reports(self, session: Session, *where: Any) -> None:
        xcom = XComModel
        reports = (
            select(xcom.dag_id, xcom.task_id, xcom.dag_run_id, xcom.timestamp, table_in(session, xcom.value))
            .where(*where, _RETURNED, has_landing(session, xcom.value))
            .subquery()
        )
        place = (reports.c.dag_id, reports.c.task_id, reports.c.report_table)
        newest = select(*place, func.max(reports.c.dag_run_id), func.max(reports.c.timestamp)).group_by(*place)
        for dag_id, task_id, table, run, at in session.execute(newest):
            of_task = self._reports.setdefault((dag_id, task_id), {})
            # Several odd tables are no table.
            of_task[table_of(table)] = max((run, at), of_task.get(table_of(table), (run, at)))

    def _search(self, session: Session, missing: Sequence[Key]) -> None:
        """Search older landings: in all XComs of the tasks, then in the events of the outlets."""
        for chunk in chunks(missing):
            dags, tasks = ({key[n] for key in chunk} for n in (0, 1))
            self._take_reports(session, XComModel.dag_id.in_(dags), XComModel.task_id.in_(tasks))
            outlet = TaskOutletAssetReference
            event = (
                select(AssetEvent.id)
                .where(AssetEvent.asset_id == outlet.asset_id, AssetEvent.source_dag_id == outlet.dag_id)
                .where(AssetEvent.source_task_id == outlet.task_id, has_landing(session, AssetEvent.extra))
                .order_by(AssetEvent.timestamp.desc())
                .limit(1)
                .scalar_subquery()
            )
            event_ids = session.scalars(select(event).select_from(outlet).where(outlet.dag_id.in_(dags))).all()
            self._take_events(session, AssetEvent.id.in_([one for one in event_ids if one is not None]))
            self._searched.update(chunk)

    def _read_landings(self, session: Session, tasks: Mapping[Key, StreamTask]) -> None:
        new: dict[_Place, tuple[Any, Any]] = {}
        for key, task in tasks.items():
            events, reports = self._events.get(key, {}), self._reports.get(key, {})
            # Events outlive XComs, and have the same reports.
            if events and task.has_outlets:
                reports = {}
            for table in _newest_tables(events) | _newest_tables(reports):
                now = events.get(table), reports.get(table)
                if self._read.get((key, table), (None, None)) != now:
                    new[key, table] = now
        self._read_events(session, {one[0]: place[0] for place, one in new.items() if one[0] is not None})
        self._read_xcoms(session, {(place[0], one[1][0]) for place, one in new.items() if one[1] is not None})
        self._read.update(new)

    def _read_events(self, session: Session, events: Mapping[int, Key]) -> None:
        columns = (
            AssetEvent.id,
            AssetEvent.timestamp,
            AssetEvent.source_run_id,
            AssetEvent.source_map_index,
            AssetEvent.extra,
        )
        for chunk in chunks(list(events)):
            for event, *report in session.execute(select(*columns).where(AssetEvent.id.in_(chunk))):
                self._keep(events[event], landing_of(*report))

    def _read_xcoms(self, session: Session, wanted: Collection[tuple[Key, int]]) -> None:
        xcom = XComModel
        columns = (xcom.dag_run_id, xcom.dag_id, xcom.task_id, xcom.timestamp, xcom.run_id, xcom.map_index, xcom.value)
        for chunk in chunks(sorted(wanted)):
            of_runs = xcom.dag_run_id.in_({run for _, run in chunk})
            of_tasks = xcom.task_id.in_({key[1] for key, _ in chunk})
            for run, dag_id, task_id, *report in session.execute(select(*columns).where(of_runs, of_tasks, _RETURNED)):
                if ((dag_id, task_id), run) in wanted:
                    self._keep((dag_id, task_id), landing_of(*report))

    def _keep(self, key: Key, landing: TaskLanding | None) -> None:
        if landing is None:
            return
        known, table = self._landings.setdefault(key, {}), landing.names.get("table")
        if table not in known or landing.at >= known[table].at:
            known[table] = landing


def _newest_tables(newest: Mapping[str | None, Any]) -> set[str | None]:
    return set(sorted(newest, key=lambda table: newest[table], reverse=True)[:MOST_TABLES])


def _newest(landings: Mapping[str | None, TaskLanding]) -> dict[str | None, TaskLanding]:
    newest = sorted(landings.items(), key=lambda one: one[1].at, reverse=True)
    return dict(newest[:MOST_TABLES])
