"""The newest run of each DAG: how its tasks are, and what they have told so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from sqlalchemy import ColumnElement, func, select

from airflow_lakestream.ui.page.landings import TOLD, Key, Landing, chunks, landing_of
from airflow_lakestream.ui.page.newest import WINDOW

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# Of mapped tasks the first of these counts.
_WORST_FIRST = ("failed", "upstream_failed", "up_for_retry", "running", "deferred", "queued", "scheduled")
# A later run may be committed first: so many ids are looked at again.
_AGAIN = 1000


@dataclass(frozen=True, slots=True)
class Try:
    """A task in its DAG's newest run. `state` is Airflow's word; None before it is scheduled."""

    run_id: str
    state: str | None
    at: datetime | None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {"run_id": self.run_id, "state": self.state, "at": self.at and self.at.isoformat()}


@dataclass
class Runs:
    """What the newest runs of some DAGs have."""

    tries: dict[Key, Try] = field(default_factory=dict)
    told: dict[Key, Landing] = field(default_factory=dict)


class NewestRuns:
    """The newest run of each DAG: among the newest runs of all, or, looked for once, among its own."""

    def __init__(self) -> None:
        self._seen: int | None = None
        self._ids: dict[str, int] = {}
        self._searched: set[str] = set()

    def of(self, session: Session, keys: Iterable[Key], telling: Iterable[Key]) -> Runs:
        """Return how tasks are in their DAGs' newest runs.

        :param telling: of these tasks also what they have told by XCom.
        """
        wanted, told = set(keys), set(telling)
        self._look(session, {dag_id for dag_id, _ in wanted})
        runs = Runs()
        for chunk in chunks(_runs_of(wanted, self._ids)):
            self._tries(session, chunk, wanted, runs)
        for chunk in chunks(_runs_of(told, self._ids)):
            self._told(session, chunk, told, runs)
        return runs

    def _look(self, session: Session, dags: set[str]) -> None:
        top = session.scalar(select(func.max(DagRun.id))) or 0
        self._take(session, DagRun.id > (top - WINDOW if self._seen is None else self._seen - _AGAIN))
        self._seen = max(top, self._seen or 0)
        # What did not run lately has few runs.
        for chunk in chunks(sorted(dags - self._ids.keys() - self._searched)):
            self._take(session, DagRun.dag_id.in_(chunk))
            self._searched.update(chunk)

    def _take(self, session: Session, where: ColumnElement[bool]) -> None:
        newest = select(DagRun.dag_id, func.max(DagRun.id)).where(where).group_by(DagRun.dag_id)
        for dag_id, run in session.execute(newest):
            self._ids[dag_id] = max(run, self._ids.get(dag_id, 0))

    def _tries(self, session: Session, ids: Sequence[int], wanted: set[Key], runs: Runs) -> None:
        ti = TaskInstance
        rows = (
            select(ti.dag_id, ti.task_id, ti.run_id, ti.state, func.coalesce(ti.end_date, ti.start_date))
            .join(DagRun, (DagRun.dag_id == ti.dag_id) & (DagRun.run_id == ti.run_id))
            .where(DagRun.id.in_(ids), ti.task_id.in_(_tasks_of(wanted)))
        )
        for dag_id, task_id, run_id, state, at in session.execute(rows):
            key, one = (
                (dag_id, task_id),
                Try(run_id, None if state is None else str(state), at),
            )
            if key in wanted and (key not in runs.tries or _rank(one) < _rank(runs.tries[key])):
                runs.tries[key] = one

    def _told(self, session: Session, ids: Sequence[int], wanted: set[Key], runs: Runs) -> None:
        xcom = XComModel
        rows = (
            select(xcom.dag_id, xcom.task_id, xcom.timestamp, xcom.run_id, xcom.map_index, xcom.value)
            .where(
                xcom.dag_run_id.in_(ids),
                xcom.task_id.in_(_tasks_of(wanted)),
                xcom.key.in_(TOLD),
            )
            .order_by(xcom.timestamp)
        )
        for dag_id, task_id, *told in session.execute(rows):
            if (dag_id, task_id) in wanted and (landing := landing_of(*told)) is not None:
                runs.told[dag_id, task_id] = landing


def _rank(one: Try) -> int:
    return _WORST_FIRST.index(one.state) if one.state in _WORST_FIRST else len(_WORST_FIRST)


def _runs_of(keys: Iterable[Key], ids: Mapping[str, int]) -> list[int]:
    return [ids[dag_id] for dag_id in {dag_id for dag_id, _ in keys} if dag_id in ids]


def _tasks_of(keys: Iterable[Key]) -> set[str]:
    return {task_id for _, task_id in keys}
