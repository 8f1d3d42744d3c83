"""The argument `checks`: parser, and incompatible arguments. Does not import DuckDB: DAG files are parsed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from airflow_lakestream.config import arguments
from airflow_lakestream.config.setting import RecordEnvelope, RecordMerge
from airflow_lakestream.core.checks import LandingChecks, RowChecker, RowCountCheck
from airflow_lakestream.core.policies import (
    UNAVAILABLE,
    DocumentEnvelope,
    SchemaEvolution,
    ValueFormat,
    is_given,
    is_literal,
)
from airflow_lakestream.core.routing import TableTemplate
from airflow_lakestream.exceptions import InvalidArgument, UnknownValue
from airflow_lakestream.lakes import LakeCapability, lake_of

KINDS = ("sql", "not_null", "unique", "row_count", "freshness")
COUNTS = ("min", "max", "min_of_week", "max_of_week")
_SAMPLE = 'Write {"not_null": ["id"]}.'


def parse_checks(argument: str, value: object) -> LandingChecks | None:
    """Return the checks of a landing's rows, or None without checks. Raises InvalidArgument."""
    if not is_given(value) or value in ({}, LandingChecks()):
        return None
    if isinstance(value, LandingChecks):
        return value
    if not isinstance(value, Mapping):
        raise InvalidArgument(argument, f"{value!r} is not a mapping of checks by their kind.", _SAMPLE)
    for kind in value:
        if kind not in KINDS:
            raise UnknownValue(argument, kind, KINDS)
    statements = arguments.items(f"{argument}.sql", value.get("sql")) or ()
    if any(not statement.strip() for statement in statements):
        raise InvalidArgument(f"{argument}.sql", "a statement is empty.", "Write SELECT * FROM landing WHERE ...")
    freshness = value.get("freshness")
    checks = LandingChecks(
        tuple(statements),
        _columns(f"{argument}.not_null", value.get("not_null")),
        _columns(f"{argument}.unique", value.get("unique")),
        _row_count(f"{argument}.row_count", value.get("row_count")),
        arguments.positive_seconds(f"{argument}.freshness", freshness) if is_given(freshness) else None,
    )
    return None if checks == LandingChecks() else checks


def auditor_of(given: Mapping[str, Any]) -> RowChecker | None:
    """Return the auditor of a landing's rows, or None without checks. Raises InvalidArgument.

    :param given: the landing's arguments, `checks` among them.
    """
    if (asked := parse_checks("checks", given["checks"])) is None:
        return None
    refuse_incompatible_with_checks(given)
    return _auditor(asked)


# Each topic of a regex, and each copy of a configuration, has the same auditor.
@lru_cache(maxsize=4)
def _auditor(asked: LandingChecks) -> RowChecker:
    # Imported here: DuckDB takes a tenth of a second to import, also in a task without checks.
    from airflow_lakestream.checks.audit import SqlAuditor

    return SqlAuditor(asked)


def refuse_incompatible_with_checks(given: Mapping[str, Any]) -> None:
    """Refuse arguments of a landing incompatible with checks. Raises InvalidArgument.

    :param given: the arguments by name, with `checks`; arguments that are not known yet are missing.
    """
    for argument, (is_it, reason) in _NOT_WITH_CHECKS.items():
        value = given.get(argument)
        if is_given(value) and is_it(value):
            raise InvalidArgument(
                "checks", f"{argument}={value!r} does not go with checks: {reason}.", "Leave one out."
            )
    checks = parse_checks("checks", given["checks"])
    metadata = arguments.items("metadata_columns", given.get("metadata_columns"))
    if checks is not None and checks.freshness is not None and metadata is not None and "timestamp" not in metadata:
        raise InvalidArgument("checks.freshness", 'needs "timestamp" in metadata_columns, from which it is computed.')


def check_mirror(given: Mapping[str, Any], *, of_records: bool) -> None:
    """Refuse arguments of a mirror that contradict each other. Raises InvalidArgument.

    :param given: the arguments by name; templates are not known yet, and pass.
    :param of_records: whether the mirror is one of plain records, or of flattened events.
    """
    _check_history(given)
    if given["envelope"] in [*DocumentEnvelope]:
        _check_documents(given)
    if not of_records:
        return
    if not is_given(given["key"]):
        problem = "is missing: plain records do not show which columns identify a row."
        raise InvalidArgument("key", problem, 'Name the columns, such as ["id"].')
    _check_insert_only(given)
    if given["merge"] == RecordMerge.GIVEN:
        _refuse_others("merge", _NOT_WITH_GIVEN, given)
    if given["envelope"] == RecordEnvelope.FLATTENED:
        _refuse_others("envelope", _NOT_WITH_FLATTENED, given)


def _check_documents(given: Mapping[str, Any]) -> None:
    """Refuse arguments that Maxwell's and Canal's documents contradict. Raises InvalidArgument."""
    value_format, envelope = given["format"], given["envelope"]
    if is_given(value_format) and is_literal(value_format) and value_format != ValueFormat.JSON:
        raise InvalidArgument("envelope", f'{envelope!r} goes with format="json", not with {value_format!r}.')
    if given.get("unavailable_placeholder") not in (None, UNAVAILABLE):
        problem = f"is Debezium's, and a document of envelope={envelope!r} leaves no value out."
        raise InvalidArgument("unavailable_placeholder", problem, "Leave it out.")


def _check_insert_only(given: Mapping[str, Any]) -> None:
    """Refuse arguments about changes and deletions if the first record of a key stays. Raises InvalidArgument."""
    if not is_literal(given["insert_only"]):
        return
    within, is_first = given["within"], arguments.flag("insert_only", given["insert_only"])
    by = given["sequence_by"]
    if is_given(within) and (not is_first or not is_given(by)):
        problem = f"{within!r} is for messages sent twice, by the column of their time."
        raise InvalidArgument("within", problem, 'Set insert_only=True and sequence_by="sent_at", or leave it out.')
    if is_first:
        others = {
            name: reason for name, reason in _NOT_WITH_FIRST.items() if name != "sequence_by" or not is_given(within)
        }
        _refuse_others("insert_only", others, given)


def _check_history(given: Mapping[str, Any]) -> None:
    """Refuse arguments that the history of rows contradicts, and a history without times. Raises InvalidArgument."""
    if not is_literal(given["history"]):
        return
    if not arguments.flag("history", given["history"]):
        if is_given(given["history_columns"]):
            problem = "is for a history of rows, which has a row for each version."
            raise InvalidArgument("history_columns", problem, "Set history=True, or leave it out.")
        return
    if not is_given(given["envelope"]) and not is_given(given["sequence_by"]):
        problem = "needs sequence_by: a version is valid from the time of its record on."
        raise InvalidArgument("history", problem, 'Name the column of the time first, such as ["updated_at"].')
    _refuse_others("history", _NOT_WITH_HISTORY, given)


def _refuse_others(argument: str, others: Mapping[str, str], given: Mapping[str, Any]) -> None:
    for name, reason in others.items():
        value = given.get(name)
        is_refused = value == ValueFormat.CSV if name == "format" else str(value).lower() not in _HARMLESS
        # A statement's `{{ input }}` stays.
        if is_given(value) and (is_literal(value) or name == "sql") and is_refused:
            problem = f"does not go with {name}={value!r}: {reason}."
            raise InvalidArgument(argument, problem, "Leave one out.")


_HARMLESS = ("false", "skip", "reject", RecordMerge.REPLACE)
_NOT_WITH_FIRST = {
    "sequence_by": "the record that comes first stays, in no other order",
    "delete_when": "no row is deleted",
    "tombstones": "no row is deleted",
    "soft_delete": "no row is deleted",
    "merge": "no row is changed",
}
_NOT_WITH_FLATTENED = {
    "sequence_by": "events are in the order of the database's log, or of offsets",
    "insert_only": "a mirror follows the changes of rows",
    "merge": "an event has the whole row",
    "sql": "it goes with envelope=None",
}
_NOT_WITH_HISTORY = {
    "soft_delete": "a deletion ends a version, which stays",
    "insert_only": "no row is changed",
}
_NOT_WITH_GIVEN = {
    "format": "a record in CSV has all fields",
    "sql": "the statement gives all its columns",
}


def checks_of_mirror(argument: str, value: object) -> LandingChecks | None:
    """Return the checks of a mirror's new rows, or None without checks. Raises InvalidArgument."""
    checks = parse_checks(argument, value)
    if checks is not None and checks.freshness is not None:
        raise InvalidArgument(f"{argument}.freshness", "is not for a mirror: its rows keep no time of Kafka's.")
    if checks is not None and checks.row_count is not None and checks.row_count.asks_history:
        problem = "min_of_week and max_of_week are not for a mirror: its ledger counts events, not rows."
        raise InvalidArgument(f"{argument}.row_count", problem, "Bound it by min and max.")
    return checks


def _columns(argument: str, value: object) -> tuple[str, ...]:
    names = arguments.items(argument, value) or ()
    for name in names:
        if not name or names.count(name) > 1:
            raise InvalidArgument(argument, f"{name!r} is there twice, or no column's name.")
    return names


def _row_count(argument: str, value: object) -> RowCountCheck | None:
    if not is_given(value):
        return None
    if not isinstance(value, Mapping) or not value:
        raise InvalidArgument(argument, f"{value!r} has no bounds.", 'Write {"min": 1, "max_of_week": 3}.')
    for name in value:
        if name not in COUNTS:
            raise UnknownValue(argument, name, COUNTS)
    least, most = (_bound(argument, value, name, int) for name in COUNTS[:2])
    least_of_week, most_of_week = (_bound(argument, value, name, float) for name in COUNTS[2:])
    for low, high in ((least, most), (least_of_week, most_of_week)):
        if low is not None and high is not None and low > high:
            raise InvalidArgument(argument, f"the least, {low:g}, is more than the most, {high:g}.")
    return RowCountCheck(
        None if least is None else int(least), None if most is None else int(most), least_of_week, most_of_week
    )


def _bound(argument: str, value: Mapping[str, Any], name: str, kind: Callable[[str], float]) -> float | None:
    given = value.get(name)
    if not is_given(given):
        return None
    try:
        # Booleans are numbers, too; texts are what templates render.
        bound = -1.0 if isinstance(given, bool) else kind(str(given))
    except ValueError:
        bound = -1.0
    if not 0 <= bound < float("inf"):
        kind_text = "a whole number" if kind is int else "a number"
        raise InvalidArgument(f"{argument}.{name}", f"{given!r} is not {kind_text} from 0 on.")
    return bound


def is_by_record(table: object) -> bool:
    """Return whether each record chooses its table, by a table's name."""
    return LakeCapability.FAN_OUT in lake_of(str(table)).can and bool(TableTemplate.parse(str(table)).by_record)


_NOT_WITH_CHECKS: Mapping[str, tuple[Callable[[Any], object], str]] = {
    "table": (is_by_record, "one commit can't publish the rows of several tables"),
    "schema_evolution": (
        lambda value: value == SchemaEvolution.WIDEN,
        "a branch whose files are wider than the table's columns can't be read",
    ),
}
