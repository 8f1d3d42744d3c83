"""The newest run of each DAG, by the tables of the run: states of tasks, and reports up to now."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from sqlalchemy import ColumnElement, func, select

from airflow_lakestream.ui.page.landings import REPORT_KEYS, Key, TaskLanding, chunks, landing_of
from airflow_lakestream.ui.page.newest import MOST_TABLES, WINDOW
from airflow_lakestream.ui.page.tasks import StreamTask, param_text

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# Of a mapped task the first of these states counts.
_WORST_FIRST = ("failed", "upstream_failed", "up_for_retry", "running", "deferred", "queued", "scheduled")
# A later run may be committed first: this many ids are read again.
_READ_AGAIN = 1000
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
            run: conf for dag_id in dags for conf, run in _newest(self._ids.get((dag_id, self._params[dag_id]), {}))
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
    given = conf if isinstance(conf, Mapping) else {}
    return tuple((name, param_text(given[name])) for name in params if name in given)


def _newest(runs: Mapping[Conf, int]) -> list[tuple[Conf, int]]:
    return sorted(runs.items(), key=lambda one: one[1], reverse=True)[:MOST_TABLES]


def _rank(one: TaskTry) -> int:
    return _WORST_FIRST.index(one.state) if one.state in _WORST_FIRST else len(_WORST_FIRST)


def _tasks_of(keys: Iterable[Key]) -> set[str]:
    return {task_id for _, task_id in keys}
