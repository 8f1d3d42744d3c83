"""Landings from the reports in Airflow's database, and the history of a task."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.models.asset import AssetEvent, TaskOutletAssetReference
from airflow.models.xcom import XComModel
from sqlalchemy import JSON, ColumnElement, String, Text, and_, case, cast, func, null, or_, select, true, type_coerce

from airflow_lakestream.ui.page.shapes import Odd, count, identifier, integer, keyed, listed, mapped, offsets, text

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# A task, as (dag_id, task_id).
Key = tuple[str, str]
# A partition, and the offsets from the first on to the second.
Offsets = tuple[int, int, int]

# Keys of the XComs of a task that landed: the report, and the progress of a run that goes on.
REPORT_KEYS = ("return_value", "progress")
_RANGES = {"ranges": listed(offsets), "lost": listed(offsets)}
_REPORT = mapped(
    **_RANGES,
    topics=keyed(mapped(**_RANGES)),
    tables=keyed(count),
    **dict.fromkeys(("topic", "table", "consumer_group"), text),
    **dict.fromkeys(("rejected", "skipped"), count),
    **dict.fromkeys(("read", "rows_in", "rows", "rows_out", "remaining_lag", "lag"), integer),
    snapshot_ids=listed(identifier),
    schema_changes=listed(text),
)
# Fields of which one has another value in the report of a landing.
_NOTHING: Mapping[str, Any] = {"read": 0, "rows_in": 0, "lost": []}
# Half of a surrogate pair without the other half, as escaped by JSON: Python accepts the text, PostgreSQL does not.
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF_OF_A_PAIR = f"{_HIGH}(?!{_LOW})|(?<!{_HIGH}){_LOW}"
# SQLite takes no more than 32,766 values in a statement.
_CHUNK = 500


_Item = TypeVar("_Item")


def chunks(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """Yield parts of a small enough size for a statement."""
    for start in range(0, len(items), _CHUNK):
        yield items[start : start + _CHUNK]


@dataclass(frozen=True, slots=True)
class TaskLanding:
    """Landing of a run of a task, from the report.

    :param rows: rows in all tables that the run wrote.
    :param lag: the offsets that the run left, or None if unknown.
    :param names: topic, table and consumer group, if the report has them.
    :param landed: the landed ranges of offsets, by topic; `lost` are the ranges that Kafka no longer had.
    :param problem: the error of reading the report; of all other fields, only the table may then be known.
    """

    at: datetime
    run_id: str
    map_index: int
    rows: int = 0
    rejected: int = 0
    skipped: int = 0
    lag: int | None = None
    snapshot_id: str | None = None
    schema_changes: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    landed: Mapping[str, Sequence[Offsets]] = field(default_factory=dict, repr=False)
    lost: Mapping[str, Sequence[Offsets]] = field(default_factory=dict, repr=False)
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; ids are text, since browsers round 64-bit numbers."""
        return {
            "at": self.at.isoformat(),
            "run_id": self.run_id,
            "map_index": self.map_index,
            "rows": self.rows,
            "rejected": self.rejected,
            "skipped": self.skipped,
            "lag": self.lag,
            "snapshot_id": self.snapshot_id,
            "schema_changes": list(self.schema_changes),
            "problem": self.problem or None,
        }


def landing_of(at: datetime, run_id: str | None, map_index: int | None, report: Any) -> TaskLanding | None:
    """Return the landing in a report.

    Returns None for a run without records. If the value is not a report, or a field is not of the expected kind, the
    landing has only the `problem`, and the table if this is a text.

    :param report: the value of an XCom or of an event, as a mapping or as JSON text.
    """
    if isinstance(report, str):
        # Written by `XCom.set`, which makes a text of the report first.
        with suppress(ValueError, RecursionError):
            report = json.loads(report)
    given = report if isinstance(report, Mapping) else {}
    if report is None or (given is report and _has_landed_nothing(given)):
        return None
    place = at, str(run_id or ""), -1 if map_index is None else int(map_index)
    try:
        return TaskLanding(*place, **_fields_of(report))
    except Odd as odd:
        table = given.get("table")
        names = {"table": str(text("table", table))} if table and isinstance(table, str) else {}
        return TaskLanding(*place, names=names, problem=str(odd))


def _has_landed_nothing(report: Mapping[str, Any]) -> bool:
    given = [(report.get(name), nothing) for name, nothing in _NOTHING.items()]
    return all(value is None or (value == nothing and not isinstance(value, bool)) for value, nothing in given)


def _fields_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a landing in a report. Raises Odd."""
    fields = _REPORT("", report)
    topics = fields["topics"] or {fields["topic"] or "": fields}
    names = {name: fields[name] for name in ("topic", "table", "consumer_group") if fields[name]}
    lag = "remaining_lag" if "remaining_lag" in report else "lag"
    rows = "rows" if "rows" in report else "rows_out"
    # An alias has an event for each table that was written.
    own = {table: count for table, count in fields["tables"].items() if table == fields["table"]} or fields["tables"]
    return {
        "rows": sum(own.values()) if own else fields[rows] or 0,
        "rejected": fields["rejected"],
        "skipped": fields["skipped"],
        "lag": fields[lag],
        "snapshot_id": fields["snapshot_ids"][-1] if fields["snapshot_ids"] else None,
        "schema_changes": tuple(one or "" for one in fields["schema_changes"]),
        "names": names,
        "landed": {topic: one["ranges"] for topic, one in topics.items()},
        "lost": {topic: one["lost"] for topic, one in topics.items()},
    }


def has_landing(session: Session, column: Any) -> ColumnElement[bool]:
    """Return the SQL condition for a landing in a JSON column.

    True if one of `read`, `rows_in` and `lost` is there and not empty, and for JSON that the database can't look into.
    Texts are compared, since the column may have values of any task.
    """
    # In Airflow 3.1 SQLAlchemy does not know that the column of events is JSON.
    known = type_coerce(valid_json(session, column), JSON)
    # Compares JSON texts, not their contents: for a single NUL inside, PostgreSQL fails for all rows.
    empty = {name: (json.dumps(nothing), "null") for name, nothing in _NOTHING.items()}
    landed = (cast(known[name], String(64)).notin_(texts) for name, texts in empty.items())
    return or_(*landed, and_(known.is_(null()), column.is_not(null())))


def valid_json(session: Session, column: Any) -> Any:
    """Return a JSON column, with NULL for values that break the database's functions for all rows.

    These values are NaN on SQLite, and half of a surrogate pair on PostgreSQL.
    """
    dialect = session.get_bind().dialect.name
    if dialect not in ("sqlite", "postgresql"):
        return column
    is_json = func.json_valid(column) == 1 if dialect == "sqlite" else cast(column, Text).op("!~")(_HALF_OF_A_PAIR)
    return type_coerce(case((is_json, column)), JSON)


def table_in(session: Session, column: Any) -> ColumnElement[str]:
    """Return a report's table, as JSON text; see `has_landing`."""
    return cast(type_coerce(valid_json(session, column), JSON)["table"], Text).label("report_table")


def table_of(document: str | None) -> str | None:
    """Return the table of a JSON text, or None for a report without a table."""
    try:
        table = json.loads(document or "null")
    except (ValueError, RecursionError):
        return None
    return table if isinstance(table, str) and table else None


def read_history(
    session: Session, key: Key, newest: int | None, most: int, tables: Collection[str | None]
) -> list[TaskLanding]:
    """Return the newest landings of a task, the newest first.

    The landings are in the XComs of the task, and in the events of the task's asset, which outlive deleted runs. The
    XCom counts if both have the landing.

    :param newest: the id of the asset's newest event from the task; None: the asset is found through the DAG.
    :param most: at most this many landings.
    :param tables: only landings in these tables, None for reports without a table; if empty, all landings.
    """

    def wanted(column: Any) -> ColumnElement[bool]:
        if not tables:
            return true()
        reported = func.coalesce(table_in(session, column), "null")
        # PostgreSQL's JSON has the text as it was written, its JSONB the letters.
        named = reported.in_([json.dumps(one, ensure_ascii=is_ascii) for one in tables for is_ascii in (False, True)])
        # A table that is no text is no table; see `table_of`.
        return or_(named, reported == '""', ~reported.startswith('"')) if None in tables else named

    xcoms = (
        select(XComModel.timestamp, XComModel.run_id, XComModel.map_index, XComModel.value)
        .where(XComModel.dag_id == key[0], XComModel.task_id == key[1], XComModel.key.in_(REPORT_KEYS))
        .where(wanted(XComModel.value))
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
        .where(wanted(AssetEvent.extra))
        .order_by(AssetEvent.timestamp.desc())
        .limit(most)
    )
    by_run: dict[tuple[str, int], TaskLanding] = {}
    for statement in (xcoms, events):
        for row in session.execute(statement):
            if (landing := landing_of(*row)) is not None:
                by_run.setdefault((landing.run_id, landing.map_index), landing)
    return sorted(by_run.values(), key=lambda one: one.at, reverse=True)[:most]
