"""Rows landed by each task in each table, hour by hour over the last day, from the reports of runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.models.dagrun import DagRun
from airflow.models.xcom import XComModel
from sqlalchemy import ColumnElement, Float, case, cast, func, or_, select

from airflow_lakestream.ui.page.landings import Key, chunks, table_in, table_of, valid_json

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

HOURS = 24
_HOUR = timedelta(hours=1)
# Reading a day of 1,000 streams takes half a second of the database: once for all users within this many seconds.
_FRESH_S = 60
# Precision of the search for the first run of the day: up to this many runs more are read.
RUNS = 1000
_MOST_DIGITS = 18
_RETURNED = XComModel.key == "return_value"


class HourlyRows:
    """Rows by task and hour. A run's rows belong to the hour of the report."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read_at: float | None = None
        self._floor = 0
        self._first = datetime.now(UTC)
        self._rows: dict[Key, dict[str | None, list[int]]] = {}
        self._goes_on: dict[str, bool] = {}

    def of(
        self, session: Session, tasks: Mapping[Key, bool]
    ) -> tuple[datetime, dict[Key, dict[str | None, list[int]] | None]]:
        """Return the first hour, and each task's rows by table and hour.

        A task whose runs may last for days has None if a run of its DAG took more than an hour: its reports then have
        only the sums of a run. Rows of reports without a table have the table None. The rows may be a minute old.

        :param tasks: by task whether a run may last for days.
        """
        with self._lock:
            if self._read_at is None or time.monotonic() - self._read_at > _FRESH_S:
                self._read(session)
            lasting = {key[0] for key, lasts in tasks.items() if lasts} - self._goes_on.keys()
            going_on = _long_running_dags(session, lasting, self._floor)
            self._goes_on |= {dag_id: dag_id in going_on for dag_id in lasting}
            rows = {
                key: None if lasts and self._goes_on[key[0]] else self._rows.get(key, {})
                for key, lasts in tasks.items()
            }
            return self._first, rows

    def _read(self, session: Session) -> None:
        self._first = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - (HOURS - 1) * _HOUR
        self._floor = _first_run(session, self._first - _HOUR)
        # The latest hour comes first: SQL's CASE takes the first condition that holds.
        hours = [(XComModel.timestamp >= self._first + n * _HOUR, n) for n in reversed(range(HOURS))]
        landed = (
            select(
                XComModel.dag_id,
                XComModel.task_id,
                case(*hours).label("hour"),
                _number(session, valid_json(session, XComModel.value)["rows"]).label("rows"),
                table_in(session, XComModel.value),
            )
            .where(XComModel.dag_run_id >= self._floor, _RETURNED, XComModel.timestamp >= self._first)
            # Without it, PostgreSQL carries the whole reports through a sort, on disk.
            .offset(0)
            .subquery()
        )
        place = (landed.c.dag_id, landed.c.task_id, landed.c.report_table, landed.c.hour)
        by_hour = select(*place, func.sum(landed.c.rows)).where(landed.c.rows.is_not(None)).group_by(*place)
        self._rows = {}
        for dag_id, task_id, table, hour, rows in session.execute(by_hour):
            of_task = self._rows.setdefault((dag_id, task_id), {})
            of_task.setdefault(table_of(table), [0] * HOURS)[hour] += int(rows)
        self._goes_on = {}
        self._read_at = time.monotonic()


def _number(session: Session, value: Any) -> ColumnElement[Any]:
    """Return a JSON number as SQL number, or NULL. These are XComs of any task: the value may be a text.

    Numbers of more digits are not rows, and PostgreSQL can't cast all of them; only PostgreSQL refuses to cast a text.
    """
    text = value.as_string()
    is_number = func.length(text) <= _MOST_DIGITS
    if session.get_bind().dialect.name == "postgresql":
        is_number &= func.jsonb_typeof(value) == "number"
    return case((is_number, cast(text, Float(53))), else_=None)


def _first_run(session: Session, since: datetime) -> int:
    """Return the id of a run: all runs with lower ids reported before `since`.

    Ids are in the order of time. The id is found by binary search, and may be lower than necessary by `RUNS`.
    """
    low, high = 0, session.scalar(select(func.max(DagRun.id))) or 0
    while high - low > RUNS + 1:
        middle = (low + high) // 2
        some = select(XComModel.timestamp).where(XComModel.dag_run_id >= middle).order_by(XComModel.dag_run_id)
        # The oldest of several: any single report may be of a cleared task, which reported again.
        oldest = session.scalar(select(func.min(some.limit(20).subquery().c.timestamp)))
        low, high = (middle, high) if oldest is not None and oldest < since else (low, middle)
    return low


def _long_running_dags(session: Session, dags: Iterable[str], floor: int) -> set[str]:
    """Return the DAGs with a run of more than an hour, ended or not.

    :param floor: ended runs with a lower id are from before the day, and do not count.
    """
    dag_ids: set[str] = set()
    now = datetime.now(UTC)
    for chunk in chunks(sorted(dags)):
        runs = select(DagRun.dag_id, DagRun.start_date, DagRun.end_date).where(DagRun.dag_id.in_(chunk))
        lately = or_(DagRun.id >= floor, DagRun.state == "running")
        for dag_id, started, ended in session.execute(runs.where(lately)):
            if started is not None and (ended or now) - started > _HOUR:
                dag_ids.add(dag_id)
    return dag_ids
