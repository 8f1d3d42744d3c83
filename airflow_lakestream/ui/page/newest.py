"""The newest landing of each task in each table, and the newest run of each DAG with its tasks' states and reports.

The cost of a statement does not grow with the number of landings: ids of asset events and XComs are in the order of
time, so that the newest are read by id. For a task without any among the newest, older events and XComs are searched
once.
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


# A task, and a table, or None for reports without a table.
_Place = tuple[Key, str | None]
# Number of newest events and runs that are read: the last landings of some thousand streams.
WINDOW = 10_000
MOST_TABLES = 20  # most tables of a task, the last written: each run may make a new name
# Number of ids that are read again: an event or a run with a lower id may be committed after a higher one.
_READ_AGAIN = 1000
_RETURNED = XComModel.key == "return_value"


class NewestLandings:
    """The newest landing of each task in each table. Only one thread at a time may use it.

    Each report is read once and kept. A landing whose report has no table has the key None.
    """

    def __init__(self) -> None:
        self._last_id: int | None = None
        self._events: dict[Key, dict[str | None, int]] = {}
        # By task and table: the newest run, and the time of its report.
        self._reports: dict[Key, dict[str | None, tuple[int, datetime]]] = {}
        self._searched: set[Key] = set()
        self._read: dict[_Place, tuple[Any, Any]] = {}
        self._landings: dict[Key, dict[str | None, TaskLanding]] = {}

    def of(self, session: Session, tasks: Mapping[Key, StreamTask]) -> dict[Key, dict[str | None, TaskLanding]]:
        """Return the newest landings by task and table. Tasks without a landing are left out.

        For a task with outlets the events of the outlets are enough. XComs are read for any other task, and if an event
        is missing.
        """
        self._look_at_events(session)
        if any(not task.has_outlets or key not in self._events for key, task in tasks.items()):
            self._look_at_xcoms(session)
        missing = [key for key, task in tasks.items() if not self._knows_table(key, task) and key not in self._searched]
        self._search(session, missing)
        self._read_landings(session, tasks)
        return {key: _newest(self._landings[key]) for key in tasks if key in self._landings}

    def event_of(self, key: Key, table: str | None) -> int | None:
        """Return the id of a task's newest event for a table, or else for any table, or None without an event."""
        events = self._events.get(key, {})
        return events.get(table, max(events.values(), default=None))

    def _knows_table(self, key: Key, task: StreamTask) -> bool:
        tables = self._events.get(key, {}).keys() | self._reports.get(key, {}).keys()
        usual = task.table_of({})
        # A landing in another table is not enough: the DAG file's table may have an older landing to search for.
        return bool(tables) and (usual is None or not tables.isdisjoint((usual, None)))

    def _look_at_events(self, session: Session) -> None:
        top = session.scalar(select(func.max(AssetEvent.id))) or 0
        since = top - WINDOW if self._last_id is None else self._last_id - _READ_AGAIN
        self._take_events(session, AssetEvent.id > since)
        self._last_id = max(top, self._last_id or 0)

    def _take_events(self, session: Session, *where: Any) -> None:
        """Remember the newest event with a landing, by task and table, among the events of a condition."""
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
        """Remember the newest report with a landing, by task and table, among the XComs of a condition."""
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
            # Several values that are no text all become the table None: the newest counts.
            of_task[table_of(table)] = max((run, at), of_task.get(table_of(table), (run, at)))

    def _search(self, session: Session, missing: Sequence[Key]) -> None:
        """Search for older landings of tasks: in all their XComs, then in the events of their outlets."""
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
            self._take_events(session, AssetEvent.id.in_([event_id for event_id in event_ids if event_id is not None]))
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
                newest = events.get(table), reports.get(table)
                if self._read.get((key, table), (None, None)) != newest:
                    new[key, table] = newest
        self._read_events(session, {event: key for (key, _), (event, _) in new.items() if event is not None})
        self._read_xcoms(session, {(key, report[0]) for (key, _), (_, report) in new.items() if report is not None})
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
    newest = sorted(landings.items(), key=lambda item: item[1].at, reverse=True)
    return dict(newest[:MOST_TABLES])


# The state of a mapped task is the first of these that one of its instances has.
_WORST_FIRST = ("failed", "upstream_failed", "up_for_retry", "running", "deferred", "queued", "scheduled")

# The params of a run's conf on which the names of its streams depend: pairs of a name and a text.
Conf = tuple[tuple[str, str | None], ...]
# A DAG's id, and the params on which the names of its streams depend.
_Dag = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class TaskTry:
    """State of a task in a run.

    `state` is Airflow's word, or None for a task that is not scheduled yet. A later run has a greater `run`.
    """

    run_id: str
    state: str | None
    at: datetime | None
    run: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {"run_id": self.run_id, "state": self.state, "at": self.at and self.at.isoformat()}


@dataclass
class RunStates:
    """The newest runs of DAGs, by task and by the table of the run; None is for a table that only the run knows.

    `tries` has the states of the tasks, `reported` the landings in the runs' XComs, and `confs` the params of the runs'
    confs on which names of streams depend.
    """

    tries: dict[Key, dict[str | None, TaskTry]] = field(default_factory=dict)
    reported: dict[Key, dict[str | None, TaskLanding]] = field(default_factory=dict)
    confs: dict[Key, dict[str | None, Conf]] = field(default_factory=dict)


class NewestRuns:
    """The newest run of each DAG, for each `Conf`.

    A run is looked for among the newest runs of all DAGs, and then, once, among all runs of its DAG.
    """

    def __init__(self) -> None:
        self._last_id: int | None = None
        # By DAG and conf, the id of the newest run.
        self._ids: dict[_Dag, dict[Conf, int]] = {}
        self._params: dict[str, tuple[str, ...]] = {}
        self._searched: set[_Dag] = set()

    def of(self, session: Session, tasks: Mapping[Key, StreamTask], landed: Mapping[Key, Collection[str]]) -> RunStates:
        """Return the states of tasks in the newest runs of their DAGs, with reports that are not known yet.

        :param tasks: all tasks with streams.
        :param landed: by task, the ids of the runs whose landings are known.
        """
        runs = RunStates()
        self._read_new_runs(session, _dags_of(tasks))
        confs = self._confs(tasks)
        for chunk in chunks(list(confs)):
            self._read_tries(session, chunk, tasks, confs, runs)
        with_xcoms = {
            key: task
            for key, task in tasks.items()
            if task.lasts
            or any(newest_try.run_id not in landed.get(key, ()) for newest_try in runs.tries.get(key, {}).values())
        }
        for chunk in chunks(list(self._confs(with_xcoms))):
            self._read_reports(session, chunk, with_xcoms, confs, runs)
        return runs

    def _confs(self, tasks: Iterable[Key]) -> dict[int, Conf]:
        """Return by run the confs of the newest runs of each DAG."""
        confs: dict[int, Conf] = {}
        for dag_id in sorted({dag_id for dag_id, _ in tasks}):
            runs_by_conf = self._ids.get((dag_id, self._params[dag_id]), {})
            confs |= {run: conf for conf, run in _newest_runs(runs_by_conf)}
        return confs

    def _read_new_runs(self, session: Session, dags: Collection[_Dag]) -> None:
        # Also for the DAGs of earlier calls, by other users: these runs are not read again.
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
        """Remember the newest run by DAG and conf among the runs of a condition."""
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

    def _read_tries(
        self,
        session: Session,
        ids: Sequence[int],
        tasks: Mapping[Key, StreamTask],
        confs: Mapping[int, Conf],
        states: RunStates,
    ) -> None:
        """Add the states of the tasks in the runs `ids` to `states`."""
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
            newest_tries = states.tries.setdefault((dag_id, task_id), {})
            task_try = TaskTry(run_id, None if state is None else str(state), at, run)
            # The newest run counts, and within a run the worst state of a mapped task's instances.
            other = newest_tries.get(table)
            if other is None or (-run, _rank(task_try)) < (-other.run, _rank(other)):
                newest_tries[table] = task_try
                states.confs.setdefault((dag_id, task_id), {})[table] = confs[run]

    def _read_reports(
        self,
        session: Session,
        ids: Sequence[int],
        tasks: Mapping[Key, StreamTask],
        confs: Mapping[int, Conf],
        states: RunStates,
    ) -> None:
        """Add the landings that the runs `ids` have reported to `states`."""
        xcom = XComModel
        rows = (
            select(xcom.dag_run_id, xcom.dag_id, xcom.task_id, xcom.timestamp, xcom.run_id, xcom.map_index, xcom.value)
            .where(xcom.dag_run_id.in_(ids), xcom.task_id.in_(_tasks_of(tasks)), xcom.key.in_(REPORT_KEYS))
            .order_by(xcom.timestamp)
        )
        for run, dag_id, task_id, *report in session.execute(rows):
            if (task := tasks.get((dag_id, task_id))) is not None and (landing := landing_of(*report)) is not None:
                table = landing.names.get("table") or task.table_of(dict(confs[run]))
                states.reported.setdefault((dag_id, task_id), {})[table] = landing


def _dags_of(tasks: Mapping[Key, StreamTask]) -> list[_Dag]:
    params: dict[str, set[str]] = {}
    for (dag_id, _), task in tasks.items():
        params.setdefault(dag_id, set()).update(task.defaults)
    return [(dag_id, tuple(sorted(names))) for dag_id, names in params.items()]


def _conf_of(conf: Any, params: Sequence[str]) -> Conf:
    """Return the params that a run's conf sets, as text.

    :param conf: the run's conf, of any kind.
    :param params: the names of the params.
    """
    values = conf if isinstance(conf, Mapping) else {}
    return tuple((name, param_text(values[name])) for name in params if name in values)


def _newest_runs(runs: Mapping[Conf, int]) -> list[tuple[Conf, int]]:
    return sorted(runs.items(), key=lambda item: item[1], reverse=True)[:MOST_TABLES]


def _rank(task_try: TaskTry) -> int:
    """Return the rank of a try's state; the worst state has the rank 0."""
    return _WORST_FIRST.index(task_try.state) if task_try.state in _WORST_FIRST else len(_WORST_FIRST)


def _tasks_of(keys: Iterable[Key]) -> set[str]:
    return {task_id for _, task_id in keys}
