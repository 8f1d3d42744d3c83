"""The newest landing of each task, by statements that cost about the same however many landings there are.

Events of assets and XComs have ids in the order of time, so the newest of them are read by these. What is older is
looked for once, task by task, of those tasks that none of the newest belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.models.asset import AssetEvent, TaskOutletAssetReference
from airflow.models.dagrun import DagRun
from airflow.models.xcom import XComModel
from sqlalchemy import func, select

from airflow_lakestream.ui.page.landings import Key, Landing, chunks, landing_of, tells

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy.orm import Session

# So many of the newest events and runs are looked at: the last landings of some thousand streams.
WINDOW = 10_000
# A later event may be committed first: so many ids are looked at again.
_AGAIN = 1000
_RETURNED = XComModel.key == "return_value"


class Newest:
    """The newest landing of each task that has one. Reports are kept, and read once. For one thread at a time."""

    def __init__(self) -> None:
        self._seen: int | None = None
        self._events: dict[Key, int] = {}
        # By task the run, and when it told.
        self._told: dict[Key, tuple[int, datetime]] = {}
        self._searched: set[Key] = set()
        self._read: dict[Key, tuple[Any, Any]] = {}
        self._landings: dict[Key, Landing] = {}

    def of(self, session: Session, tasks: Mapping[Key, bool]) -> dict[Key, Landing]:
        """Return the newest landing of each of the tasks that has one.

        :param tasks: by task whether it has outlets, whose events tell of all its landings.
        """
        self._look_at_events(session)
        if any(not has_outlets or key not in self._events for key, has_outlets in tasks.items()):
            self._look_at_xcoms(session)
        self._search(session, [key for key in tasks if not self._is_known(key) and key not in self._searched])
        self._read_those(session, tasks)
        return {key: self._landings[key] for key in tasks if key in self._landings}

    def event_of(self, key: Key) -> int | None:
        """Return the id of a task's newest event, where it is known."""
        return self._events.get(key)

    def _is_known(self, key: Key) -> bool:
        return key in self._events or key in self._told

    def _look_at_events(self, session: Session) -> None:
        top = session.scalar(select(func.max(AssetEvent.id))) or 0
        since = top - WINDOW if self._seen is None else self._seen - _AGAIN
        newest = (
            select(AssetEvent.source_dag_id, AssetEvent.source_task_id, func.max(AssetEvent.id))
            .where(AssetEvent.id > since, AssetEvent.source_task_id.is_not(None), tells(session, AssetEvent.extra))
            .group_by(AssetEvent.source_dag_id, AssetEvent.source_task_id)
        )
        for dag_id, task_id, event in session.execute(newest):
            key = (str(dag_id), str(task_id))
            self._events[key] = max(event, self._events.get(key, 0))
        self._seen = max(top, self._seen or 0)

    def _look_at_xcoms(self, session: Session) -> None:
        top = session.scalar(select(func.max(DagRun.id))) or 0
        self._take_told(session, XComModel.dag_run_id > top - WINDOW)

    def _take_told(self, session: Session, *where: Any) -> None:
        newest = (
            select(XComModel.dag_id, XComModel.task_id, func.max(XComModel.dag_run_id), func.max(XComModel.timestamp))
            .where(*where, _RETURNED, tells(session, XComModel.value))
            .group_by(XComModel.dag_id, XComModel.task_id)
        )
        for dag_id, task_id, run, at in session.execute(newest):
            self._told[dag_id, task_id] = (run, at)

    def _search(self, session: Session, missing: Sequence[Key]) -> None:
        """Look for what is older: in all XComs of the tasks, then in the events of their outlets."""
        for chunk in chunks(missing):
            dags, tasks = ({key[n] for key in chunk} for n in (0, 1))
            self._take_told(session, XComModel.dag_id.in_(dags), XComModel.task_id.in_(tasks))
            outlet = TaskOutletAssetReference
            event = (
                select(AssetEvent.id)
                .where(AssetEvent.asset_id == outlet.asset_id, AssetEvent.source_dag_id == outlet.dag_id)
                .where(AssetEvent.source_task_id == outlet.task_id, tells(session, AssetEvent.extra))
                .order_by(AssetEvent.timestamp.desc())
                .limit(1)
                .scalar_subquery()
            )
            of_outlets = select(outlet.dag_id, outlet.task_id, event).where(outlet.dag_id.in_(dags))
            for dag_id, task_id, found in session.execute(of_outlets):
                if found is not None:
                    self._events[dag_id, task_id] = max(found, self._events.get((dag_id, task_id), 0))
            self._searched.update(chunk)

    def _read_those(self, session: Session, tasks: Mapping[Key, bool]) -> None:
        new: dict[Key, tuple[Any, Any]] = {}
        for key, has_outlets in tasks.items():
            event = self._events.get(key)
            told = self._told.get(key) if event is None or not has_outlets else None
            if self._read.get(key, (None, None)) != (event, told):
                new[key] = (event, told)
        self._read_events(session, {one[0]: key for key, one in new.items() if one[0] is not None})
        self._read_xcoms(session, {key: one[1][0] for key, one in new.items() if one[1] is not None})
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
            for event, *told in session.execute(select(*columns).where(AssetEvent.id.in_(chunk))):
                self._keep(events[event], landing_of(*told))

    def _read_xcoms(self, session: Session, runs: Mapping[Key, int]) -> None:
        columns = (XComModel.dag_id, XComModel.task_id, XComModel.timestamp, XComModel.run_id, XComModel.map_index)
        for chunk in chunks(list(runs)):
            wanted = XComModel.dag_run_id.in_({runs[key] for key in chunk})
            of_tasks = XComModel.task_id.in_({task_id for _, task_id in chunk})
            reports = select(*columns, XComModel.value).where(wanted, of_tasks, _RETURNED)
            for dag_id, task_id, *told in session.execute(reports):
                if (dag_id, task_id) in runs:
                    self._keep((dag_id, task_id), landing_of(*told))

    def _keep(self, key: Key, landing: Landing | None) -> None:
        before = self._landings.get(key)
        if landing is not None and (before is None or landing.at >= before.at):
            self._landings[key] = landing
