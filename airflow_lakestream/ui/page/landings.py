"""What a report in Airflow's database tells of a landing; and all landings of one task."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.models.asset import AssetEvent, TaskOutletAssetReference
from airflow.models.xcom import XComModel
from sqlalchemy import JSON, ColumnElement, String, cast, func, or_, select, type_coerce

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# A task, as (dag_id, task_id).
Key = tuple[str, str]

# The XComs of a task that landed: its report, and how far a run is that goes on.
TOLD = ("return_value", "progress")
# SQLite takes no more than 32,766 values in a statement.
_CHUNK = 500


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


def tells(column: Any) -> ColumnElement[bool]:
    """Whether a JSON column has what `landing_of` makes a landing of: by text, since it may hold anybody's values."""
    nothing = (("read", "0"), ("rows_in", "0"), ("lost", "[]"))
    # In Airflow 3.1 the column of events is JSON that SQLAlchemy does not know as such.
    known = type_coerce(column, JSON)
    return or_(*(cast(known[name].as_string(), String(64)) != empty for name, empty in nothing))


def history(session: Session, key: Key, newest: int | None, most: int) -> list[Landing]:
    """Return the newest landings of one task, the newest first.

    Its XComs tell of them; the events of its asset also of runs that are deleted.

    :param newest: the id of its newest event; where it is not known, its DAG says which asset it is.
    """
    xcoms = (
        select(XComModel.timestamp, XComModel.run_id, XComModel.map_index, XComModel.value)
        .where(XComModel.dag_id == key[0], XComModel.task_id == key[1], XComModel.key.in_(TOLD))
        .order_by(XComModel.timestamp.desc())
        .limit(most * 2)
    )
    outlet = TaskOutletAssetReference
    asset = (
        select(func.min(outlet.asset_id)).where(outlet.dag_id == key[0], outlet.task_id == key[1])
        if newest is None
        else select(AssetEvent.asset_id).where(AssetEvent.id == newest)
    )
    events = (
        select(AssetEvent.timestamp, AssetEvent.source_run_id, AssetEvent.source_map_index, AssetEvent.extra)
        .where(AssetEvent.asset_id == asset.scalar_subquery())
        .where(AssetEvent.source_dag_id == key[0], AssetEvent.source_task_id == key[1])
        .order_by(AssetEvent.timestamp.desc())
        .limit(most)
    )
    by_run: dict[tuple[str, int], Landing] = {}
    for wanted in (xcoms, events):
        for told in session.execute(wanted):
            if (landing := landing_of(*told)) is not None:
                by_run.setdefault((landing.run_id, landing.map_index), landing)
    return sorted(by_run.values(), key=lambda one: one.at, reverse=True)[:most]
