"""The newest landing of each task in each table, and the newest run of each DAG with states and reports up to now.

Statements have a constant cost for any number of landings. Events of assets and XComs have ids in the order of time, so
the newest are read by id. Older events and XComs are searched once, task by task, for tasks that have none among the
newest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.models.asset import AssetEvent, TaskOutletAssetReference
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from sqlalchemy import ColumnElement, func, select

from airflow_lakestream.ui.page.landings import (
    REPORT_KEYS,
    Key,
    TaskLanding,
    chunks,
    has_landing,
    landing_of,
    table_in,
    table_of,
)
from airflow_lakestream.ui.page.tasks import StreamTask, param_text

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


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
        """Read the newest landing of each table that has a newer event or report than at the last look."""
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


# Of a mapped task the first of these states counts.
_WORST_FIRST = ("failed", "upstream_failed", "up_for_retry", "running", "deferred", "queued", "scheduled")
# A later run may be committed first: this many ids are read again.

# Conf of a run, as far as the names of its streams depend on it.
Conf = tuple[tuple[str, str | None], ...]
_Dag = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class TaskTry:
    """State of a task in a run; a later run has a greater `run`. `state` is Airflow's word; None: not scheduled."""

    run_id: str
    state: str | None
    at: datetime | None
    run: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {"run_id": self.run_id, "state": self.state, "at": self.at and self.at.isoformat()}


@dataclass
class RunStates:
    """The newest runs of DAGs: by task, and by the run's table. Key None: only the run knows the table.

    `tries` has the states of the tasks, `reported` the landings in the runs' XComs, and `confs` the part of each run's
    conf that the names of streams depend on.
    """

    tries: dict[Key, dict[str | None, TaskTry]] = field(default_factory=dict)
    reported: dict[Key, dict[str | None, TaskLanding]] = field(default_factory=dict)
    confs: dict[Key, dict[str | None, Conf]] = field(default_factory=dict)


class NewestRuns:
    """The newest run of each DAG, and of each conf with an effect on the names of streams.

    The run is among the newest runs of all DAGs, or found by a search among the DAG's own runs, done once.
    """

    def __init__(self) -> None:
        self._last_id: int | None = None
        # By DAG, and the params that its names depend on.
        self._ids: dict[_Dag, dict[Conf, int]] = {}
        self._params: dict[str, tuple[str, ...]] = {}
        self._searched: set[_Dag] = set()

    def of(self, session: Session, tasks: Mapping[Key, StreamTask], landed: Mapping[Key, Collection[str]]) -> RunStates:
        """Return the states of tasks in the newest runs of the DAGs, with reports that are not known yet.

        :param tasks: all tasks with streams.
        :param landed: the runs of the known landings, by task.
        """
        runs = RunStates()
        self._read_new_runs(session, _dags_of(tasks))
        confs = self._confs(tasks)
        for chunk in chunks(list(confs)):
            self._tries(session, chunk, tasks, confs, runs)
        with_xcoms = {
            key: task
            for key, task in tasks.items()
            if task.lasts or any(one.run_id not in landed.get(key, ()) for one in runs.tries.get(key, {}).values())
        }
        for chunk in chunks(list(self._confs(with_xcoms))):
            self._read_reports(session, chunk, with_xcoms, confs, runs)
        return runs

    def _confs(self, tasks: Iterable[Key]) -> dict[int, Conf]:
        """Return the confs of the newest runs of each DAG, by run."""
        dags = sorted({dag_id for dag_id, _ in tasks})
        return {
            run: conf for dag_id in dags for conf, run in _newest_run(self._ids.get((dag_id, self._params[dag_id]), {}))
        }

    def _read_new_runs(self, session: Session, dags: Collection[_Dag]) -> None:
        # Also for DAGs of other users' looks: runs that are read now are not read again.
        self._params.update(dags)
        top = session.scalar(select(func.max(DagRun.id))) or 0
        since = top - WINDOW if self._last_id is None else self._last_id - _READ_AGAIN
        self._take_runs(session, self._params, DagRun.id > since)
        self._last_id = max(top, self._last_id or 0)
        # A DAG without a recent run, or with recent runs only for another table, has few runs.
        missing = sorted(dag for dag in dags if () not in self._ids.get(dag, {}) and dag not in self._searched)
        for chunk in chunks(missing):
            self._take_runs(session, dict(chunk), DagRun.dag_id.in_([dag_id for dag_id, _ in chunk]))
            self._searched.update(chunk)

    def _take_runs(self, session: Session, params: Mapping[str, tuple[str, ...]], where: ColumnElement[bool]) -> None:
        newest = select(DagRun.dag_id, func.max(DagRun.id)).where(where).group_by(DagRun.dag_id)
        for dag_id, run in session.execute(newest):
            if not params.get(dag_id):
                self._keep((dag_id, ()), (), run)
        for chunk in chunks(sorted(dag_id for dag_id, names in params.items() if names)):
            rows = select(DagRun.dag_id, DagRun.id, DagRun.conf).where(where, DagRun.dag_id.in_(chunk))
            for dag_id, run, conf in session.execute(rows):
                self._keep((dag_id, params[dag_id]), _conf_of(conf, params[dag_id]), run)

    def _keep(self, dag: _Dag, conf: Conf, run: int) -> None:
        known = self._ids.setdefault(dag, {})
        known[conf] = max(run, known.get(conf, 0))

    def _tries(
        self,
        session: Session,
        ids: Sequence[int],
        tasks: Mapping[Key, StreamTask],
        confs: Mapping[int, Conf],
        to: RunStates,
    ) -> None:
        ti = TaskInstance
        rows = (
            select(DagRun.id, ti.dag_id, ti.task_id, ti.run_id, ti.state, func.coalesce(ti.end_date, ti.start_date))
            .join(DagRun, (DagRun.dag_id == ti.dag_id) & (DagRun.run_id == ti.run_id))
            .where(DagRun.id.in_(ids), ti.task_id.in_(_tasks_of(tasks)))
        )
        for run, dag_id, task_id, run_id, state, at in session.execute(rows):
            if (task := tasks.get((dag_id, task_id))) is None:
                continue
            table = task.table_of(dict(confs[run]))
            newest_tries = to.tries.setdefault((dag_id, task_id), {})
            one = TaskTry(run_id, None if state is None else str(state), at, run)
            # The newest run counts; and of the instances of a mapped task in a run, the worst state.
            if table not in newest_tries or (-run, _rank(one)) < (-newest_tries[table].run, _rank(newest_tries[table])):
                newest_tries[table] = one
                to.confs.setdefault((dag_id, task_id), {})[table] = confs[run]

    def _read_reports(
        self,
        session: Session,
        ids: Sequence[int],
        tasks: Mapping[Key, StreamTask],
        confs: Mapping[int, Conf],
        to: RunStates,
    ) -> None:
        xcom = XComModel
        rows = (
            select(xcom.dag_run_id, xcom.dag_id, xcom.task_id, xcom.timestamp, xcom.run_id, xcom.map_index, xcom.value)
            .where(
                xcom.dag_run_id.in_(ids),
                xcom.task_id.in_(_tasks_of(tasks)),
                xcom.key.in_(REPORT_KEYS),
            )
            .order_by(xcom.timestamp)
        )
        for run, dag_id, task_id, *report in session.execute(rows):
            if (task := tasks.get((dag_id, task_id))) is not None and (landing := landing_of(*report)) is not None:
                table = landing.names.get("table") or task.table_of(dict(confs[run]))
                to.reported.setdefault((dag_id, task_id), {})[table] = landing


def _dags_of(tasks: Mapping[Key, StreamTask]) -> list[_Dag]:
    params: dict[str, set[str]] = {}
    for (dag_id, _), task in tasks.items():
        params.setdefault(dag_id, set()).update(task.defaults)
    return [(dag_id, tuple(sorted(names))) for dag_id, names in params.items()]


def _conf_of(conf: Any, params: Sequence[str]) -> Conf:
    """Return the params of a DAG that a run's conf sets, as text."""
    given = conf if isinstance(conf, Mapping) else {}
    return tuple((name, param_text(given[name])) for name in params if name in given)


def _newest_run(runs: Mapping[Conf, int]) -> list[tuple[Conf, int]]:
    return sorted(runs.items(), key=lambda one: one[1], reverse=True)[:MOST_TABLES]


def _rank(one: TaskTry) -> int:
    return _WORST_FIRST.index(one.state) if one.state in _WORST_FIRST else len(_WORST_FIRST)


def _tasks_of(keys: Iterable[Key]) -> set[str]:
    return {task_id for _, task_id in keys}
