"""Landings from the reports in Airflow's database, and the history of a task."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.models.asset import AssetEvent, TaskOutletAssetReference
from airflow.models.dagrun import DagRun
from airflow.models.xcom import XComModel
from sqlalchemy import (
    JSON,
    ColumnElement,
    Float,
    String,
    Text,
    and_,
    case,
    cast,
    func,
    null,
    or_,
    select,
    true,
    type_coerce,
)

from airflow_lakestream.ui.page.shapes import Odd, count, identifier, integer, keyed, listed, mapped, offsets, text

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


# A task, as (dag_id, task_id).
Key = tuple[str, str]
# A range of offsets: partition, first offset, offset after the last.
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
# Values of a report without a landing. In a landing's report at least one of these fields has another value.
_NOTHING: Mapping[str, Any] = {"read": 0, "rows_in": 0, "lost": []}
# Half of a surrogate pair, as escaped in JSON: Python accepts such a text, PostgreSQL fails.
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF_OF_A_PAIR = f"{_HIGH}(?!{_LOW})|(?<!{_HIGH}){_LOW}"
_CHUNK = 500  # SQLite takes no more than 32,766 values in a statement


_Item = TypeVar("_Item")


def chunks(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """Yield parts of a small enough size for a statement."""
    for start in range(0, len(items), _CHUNK):
        yield items[start : start + _CHUNK]


@dataclass(frozen=True, slots=True)
class TaskLanding:
    """Landing of a run of a task, from the report.

    :param at: time of the report.
    :param map_index: index of a mapped task; -1 for any other task.
    :param rows: number of rows in all tables that the run wrote.
    :param lag: number of offsets that the run left for later runs, or None if unknown.
    :param names: topic, table and consumer group, as far as the report has them.
    :param landed: the landed ranges, by topic.
    :param lost: by topic, the ranges that Kafka no longer had.
    :param problem: the error of reading the report, or empty. After an error only the table may be known.
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
    """Return the landing in a report, or None for a run that landed nothing.

    If the value is not a report, or a field has another kind than expected, the landing has only a `problem`, and the
    table if it is a text.

    :param report: the value of an XCom or of an event, as a mapping or as JSON text.
    """
    if isinstance(report, str):
        # `XCom.set` has made a text of the report.
        with suppress(ValueError, RecursionError):
            report = json.loads(report)
    fields = report if isinstance(report, Mapping) else {}
    if report is None or (fields is report and _has_landed_nothing(fields)):
        return None
    place = at, str(run_id or ""), -1 if map_index is None else int(map_index)
    try:
        return TaskLanding(*place, **_fields_of(report))
    except Odd as odd:
        table = fields.get("table")
        names = {"table": str(text("table", table))} if table and isinstance(table, str) else {}
        return TaskLanding(*place, names=names, problem=str(odd))


def _has_landed_nothing(report: Mapping[str, Any]) -> bool:
    values = [(report.get(name), nothing) for name, nothing in _NOTHING.items()]
    # False equals 0, but is no number of records.
    return all(value is None or (value == nothing and not isinstance(value, bool)) for value, nothing in values)


def _fields_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a landing in a report. Raises Odd."""
    fields = _REPORT("", report)
    topics = fields["topics"] or {fields["topic"] or "": fields}
    names = {name: fields[name] for name in ("topic", "table", "consumer_group") if fields[name]}
    # A run that goes on has other names in its progress than an ended run in its report.
    lag = "remaining_lag" if "remaining_lag" in report else "lag"
    rows = "rows" if "rows" in report else "rows_out"
    rows_by_table = fields["tables"]
    if fields["table"] in rows_by_table:
        # An alias of assets has an event for each table of the run: each counts the rows of its own table.
        rows_by_table = {fields["table"]: rows_by_table[fields["table"]]}
    return {
        "rows": sum(rows_by_table.values()) if rows_by_table else fields[rows] or 0,
        "rejected": fields["rejected"],
        "skipped": fields["skipped"],
        "lag": fields[lag],
        "snapshot_id": fields["snapshot_ids"][-1] if fields["snapshot_ids"] else None,
        "schema_changes": tuple(change or "" for change in fields["schema_changes"]),
        "names": names,
        "landed": {topic: topic_fields["ranges"] for topic, topic_fields in topics.items()},
        "lost": {topic: topic_fields["lost"] for topic, topic_fields in topics.items()},
    }


def has_landing(session: Session, column: Any) -> ColumnElement[bool]:
    """Return the SQL condition for a landing in a JSON column, whose values may be of any task.

    The condition is true if one of `read`, `rows_in` and `lost` is there and not empty, and for JSON that the database
    can't read.
    """
    # In Airflow 3.1 SQLAlchemy does not know that the column of events is JSON.
    readable = type_coerce(valid_json(session, column), JSON)
    # JSON texts are compared, not values: for a single NUL in a value, PostgreSQL would fail for all rows.
    empty_texts = {name: (json.dumps(nothing), "null") for name, nothing in _NOTHING.items()}
    has_landed = (cast(readable[name], String(64)).notin_(texts) for name, texts in empty_texts.items())
    return or_(*has_landed, and_(readable.is_(null()), column.is_not(null())))


def valid_json(session: Session, column: Any) -> Any:
    """Return a JSON column, with NULL in place of values for which the database's functions fail.

    Such values (NaN on SQLite, half of a surrogate pair on PostgreSQL) would fail the statement for all rows.
    """
    dialect = session.get_bind().dialect.name
    if dialect not in ("sqlite", "postgresql"):
        return column
    is_json = func.json_valid(column) == 1 if dialect == "sqlite" else cast(column, Text).op("!~")(_HALF_OF_A_PAIR)
    return type_coerce(case((is_json, column)), JSON)


def table_in(session: Session, column: Any) -> ColumnElement[str]:
    """Return the SQL expression for a report's table, as JSON text."""
    return cast(type_coerce(valid_json(session, column), JSON)["table"], Text).label("report_table")


def table_of(document: str | None) -> str | None:
    """Return the table in the JSON text of `table_in`, or None for a report without a table."""
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

    :param newest: the id of the newest event that the task made for its asset; None: the DAG's outlets have the asset.
    :param most: number of landings, at most.
    :param tables: the tables whose landings are returned, None for reports without a table; empty: all tables.
    """

    def wanted(column: Any) -> ColumnElement[bool]:
        if not tables:
            return true()
        reported = func.coalesce(table_in(session, column), "null")
        # PostgreSQL's JSON has the text as it was written, its JSONB the letters.
        named = reported.in_(
            [json.dumps(table, ensure_ascii=is_ascii) for table in tables for is_ascii in (False, True)]
        )
        # A table that is no text counts as a report without a table; see `table_of`.
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
    return sorted(by_run.values(), key=lambda landing: landing.at, reverse=True)[:most]


HOURS = 24
_HOUR = timedelta(hours=1)
# Seconds for which all users share the rows: to read a day of 1,000 streams takes the database half a second.
_FRESH_S = 60
# Precision of the search for the day's first run: at most this many earlier runs are read, too.
RUNS = 1000
# Most digits of a number of rows.
_MOST_DIGITS = 18
_RETURNED = XComModel.key == "return_value"


class HourlyRows:
    """Rows of the last day by task and hour. A run's rows count for the hour of the run's report."""

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
        """Return a pair: the first hour, and by task the rows by table and hour.

        The table None is for reports without a table. The rows of a task are None if its runs may last for days, and a
        run of its DAG took more than an hour: such a report has only the sum of the whole run. The rows may be a minute
        old.

        :param tasks: by task, whether a run may last for days.
        """
        with self._lock:
            if self._read_at is None or time.monotonic() - self._read_at > _FRESH_S:
                self._read(session)
            unchecked = {key[0] for key, lasts in tasks.items() if lasts} - self._goes_on.keys()
            going_on = _long_running_dags(session, unchecked, self._floor)
            self._goes_on |= {dag_id: dag_id in going_on for dag_id in unchecked}
            rows = {
                key: None if lasts and self._goes_on[key[0]] else self._rows.get(key, {})
                for key, lasts in tasks.items()
            }
            return self._first, rows

    def _read(self, session: Session) -> None:
        """Read the rows by task, table and hour of the last 24 hours."""
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
            # The offset keeps the subquery apart: PostgreSQL would otherwise sort whole reports, on disk.
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
    """Return the SQL expression for a JSON number, or NULL for any other value, since XComs may be of any task.

    A number with more than _MOST_DIGITS digits is NULL: PostgreSQL can't cast all of these. PostgreSQL alone also fails
    to cast a text.
    """
    text = value.as_string()
    is_number = func.length(text) <= _MOST_DIGITS
    if session.get_bind().dialect.name == "postgresql":
        is_number &= func.jsonb_typeof(value) == "number"
    return case((is_number, cast(text, Float(53))), else_=None)


def _first_run(session: Session, since: datetime) -> int:
    """Return the id of a run such that all runs with lower ids reported before `since`.

    Ids are in the order of time. A binary search finds the id; it may be lower than necessary by `RUNS`.
    """
    low, high = 0, session.scalar(select(func.max(DagRun.id))) or 0
    while high - low > RUNS + 1:
        middle = (low + high) // 2
        reports = select(XComModel.timestamp).where(XComModel.dag_run_id >= middle).order_by(XComModel.dag_run_id)
        # The oldest of several reports: a single report may be a later one of a cleared task.
        oldest = session.scalar(select(func.min(reports.limit(20).subquery().c.timestamp)))
        if oldest is not None and oldest < since:
            low = middle
        else:
            high = middle
    return low


def _long_running_dags(session: Session, dags: Iterable[str], floor: int) -> set[str]:
    """Return the DAGs with a run of more than an hour, ended or not.

    :param floor: the id from which on ended runs count; earlier ones are from before the day.
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
