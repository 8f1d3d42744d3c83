"""The newest landing of each task, from the asset events that tell of it; and all landings of one task."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.models.asset import AssetEvent
from airflow.models.xcom import XComModel
from sqlalchemy import func, select

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# A task, as (dag_id, task_id).
Key = tuple[str, str]

# The XComs of a task that landed: its report, and how far a run is that goes on.
TOLD = ("return_value", "progress")
# SQLite takes no more than 32,766 values in a statement.
_CHUNK = 500
# A later event may be committed first: so many ids are looked at again.
_AGAIN = 1000


_Item = TypeVar("_Item")


def chunks(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """Yield what one statement can take at a time."""
    for start in range(0, len(items), _CHUNK):
        yield items[start : start + _CHUNK]


@dataclass(frozen=True, slots=True)
class Landing:
    """What one run of a task has landed, as its report has it."""

    at: datetime
    run_id: str
    map_index: int
    report: Mapping[str, Any] = field(repr=False)

    @property
    def rows(self) -> int:
        """The rows of all tables that the run wrote."""
        tables = self.report.get("tables")
        if isinstance(tables, Mapping) and tables:
            return sum(int(rows or 0) for rows in tables.values())
        return int(self.report.get("rows", self.report.get("rows_out")) or 0)

    @property
    def lag(self) -> int | None:
        """The offsets that the run left; None where it does not know."""
        lag = self.report.get("remaining_lag", self.report.get("lag"))
        return None if lag is None else int(lag)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; ids are text, since browsers round 64-bit numbers."""
        report = self.report
        ids = [str(one) for one in report.get("snapshot_ids") or ()]
        return {
            "at": self.at.isoformat(),
            "run_id": self.run_id,
            "map_index": self.map_index,
            "rows": self.rows,
            "rejected": int(report.get("rejected") or 0),
            "skipped": int(report.get("skipped") or 0),
            "lag": self.lag,
            "snapshot_id": ids[-1] if ids else None,
            "schema_changes": [str(one) for one in report.get("schema_changes") or ()],
        }


def landing_of(at: datetime, run_id: str | None, map_index: int | None, report: Any) -> Landing | None:
    """Return the landing that a report tells of; None for a run that read nothing, and for what is no report."""
    if isinstance(report, str):
        # Written by `XCom.set`, which makes a text of it first.
        try:
            report = json.loads(report)
        except ValueError:
            return None
    if not isinstance(report, Mapping) or not (report.get("read") or report.get("rows_in") or report.get("lost")):
        return None
    return Landing(at, str(run_id or ""), -1 if map_index is None else int(map_index), report)


class Newest:
    """The newest asset event of each task.

    All events are read once. After that only those are that came since: a page that many people have open costs the
    database next to nothing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen = 0
        self._ids: dict[Key, int] = {}
        self._landings: dict[int, Landing | None] = {}

    def of(self, session: Session, keys: Iterable[Key]) -> dict[Key, Landing]:
        """Return the newest landing of each of the tasks that has one."""
        with self._lock:
            self._look(session)
            ids = {key: self._ids[key] for key in keys if key in self._ids}
            self._read(session, [one for one in ids.values() if one not in self._landings])
            return {key: landing for key, one in ids.items() if (landing := self._landings[one]) is not None}

    def event_of(self, key: Key) -> int | None:
        """Return the id of a task's newest event."""
        return self._ids.get(key)

    def _look(self, session: Session) -> None:
        newest = (
            select(AssetEvent.source_dag_id, AssetEvent.source_task_id, func.max(AssetEvent.id))
            .where(AssetEvent.id > self._seen - _AGAIN, AssetEvent.source_task_id.is_not(None))
            .group_by(AssetEvent.source_dag_id, AssetEvent.source_task_id)
        )
        for dag_id, task_id, event_id in session.execute(newest):
            key = (str(dag_id), str(task_id))
            before = self._ids.get(key)
            if before is None or event_id > before:
                self._ids[key] = event_id
                self._landings.pop(before or 0, None)
                self._seen = max(self._seen, event_id)

    def _read(self, session: Session, ids: Sequence[int]) -> None:
        columns = (
            AssetEvent.id,
            AssetEvent.timestamp,
            AssetEvent.source_run_id,
            AssetEvent.source_map_index,
            AssetEvent.extra,
        )
        for chunk in chunks(ids):
            self._landings.update(dict.fromkeys(chunk))
            for event_id, *told in session.execute(select(*columns).where(AssetEvent.id.in_(chunk))):
                self._landings[event_id] = landing_of(*told)


def from_xcoms(session: Session, keys: Sequence[Key]) -> dict[Key, Landing]:
    """Return the newest landing of each of the tasks by its XCom: for tasks without outlets."""
    found: dict[Key, Landing] = {}
    for chunk in chunks(sorted(keys)):
        dags, tasks = zip(*chunk, strict=True)
        newest = (
            select(func.max(XComModel.dag_run_id).label("run"), XComModel.task_id.label("task"))
            .where(XComModel.dag_id.in_(set(dags)), XComModel.task_id.in_(set(tasks)), XComModel.key == "return_value")
            .where(XComModel.value["read"].as_integer() > 0)
            .group_by(XComModel.dag_id, XComModel.task_id)
            .subquery()
        )
        columns = (XComModel.dag_id, XComModel.task_id, XComModel.timestamp, XComModel.run_id, XComModel.map_index)
        wanted = select(*columns, XComModel.value).join(
            newest, (newest.c.run == XComModel.dag_run_id) & (newest.c.task == XComModel.task_id)
        )
        for dag_id, task_id, *told in session.execute(wanted.where(XComModel.key == "return_value")):
            if (dag_id, task_id) in chunk and (landing := landing_of(*told)) is not None:
                found[dag_id, task_id] = landing
    return found


def history(session: Session, key: Key, newest: int | None, most: int) -> list[Landing]:
    """Return the newest landings of one task, the newest first.

    Its XComs tell of them; the events of its asset also of runs that are deleted.

    :param newest: the id of its newest event.
    """
    xcoms = (
        select(XComModel.timestamp, XComModel.run_id, XComModel.map_index, XComModel.value)
        .where(XComModel.dag_id == key[0], XComModel.task_id == key[1], XComModel.key.in_(TOLD))
        .order_by(XComModel.timestamp.desc())
        .limit(most * 2)
    )
    events = (
        select(AssetEvent.timestamp, AssetEvent.source_run_id, AssetEvent.source_map_index, AssetEvent.extra)
        .where(AssetEvent.asset_id == select(AssetEvent.asset_id).where(AssetEvent.id == newest).scalar_subquery())
        .where(AssetEvent.source_dag_id == key[0], AssetEvent.source_task_id == key[1])
        .order_by(AssetEvent.timestamp.desc())
        .limit(most)
    )
    by_run: dict[tuple[str, int], Landing] = {}
    for wanted in (xcoms, events) if newest is not None else (xcoms,):
        for told in session.execute(wanted):
            if (landing := landing_of(*told)) is not None:
                by_run.setdefault((landing.run_id, landing.map_index), landing)
    return sorted(by_run.values(), key=lambda one: one.at, reverse=True)[:most]
