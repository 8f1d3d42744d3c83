"""Parsers and checks of values from users and templates: numbers, lists, times, settings of a connection.

Each parser raises InvalidArgument with the argument's name.
"""

from __future__ import annotations

import difflib
import json
import re
from calendar import timegm
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pendulum

from airflow_lakestream.core.bad_records import RejectLimit
from airflow_lakestream.core.policies import OF_INPUT, is_given, seconds, with_short_unit
from airflow_lakestream.core.secrecy import refuse_shown
from airflow_lakestream.exceptions import InvalidArgument

if TYPE_CHECKING:
    from airflow_lakestream.core.landing.modes import RangesMode

AVAILABLE_NOW = "available_now"
ALL, OFF = "all", "off"
# Milliseconds since 1970.
_YEAR_1_MS, _YEAR_10000_MS = -62_135_596_800_000, 253_402_300_800_000
_TIMES = "Write 2026-11-20T05:05:00Z, or milliseconds since 1970."


def as_text(argument: str, annotation: str, value: object) -> object:
    """Return the value as a text if the argument only takes texts, or else unchanged.

    A whole number has one text only. Of a float or a truth value, the text in the template or the file is not known any
    more: it is refused, and so are lists and mappings.

    :param annotation: the type of the argument as written, such as "str | None".

    Raises InvalidArgument.
    """
    kinds = {one.strip() for one in annotation.split("|")}
    if not kinds <= {"str", "None"}:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is None and "None" not in kinds:
        raise InvalidArgument(argument, "is missing: its value is None.", "Give a text.")
    if isinstance(value, bool | float | bytes | list | tuple | set | Mapping):
        problem = f"{value!r} is a {type(value).__name__}, not a text."
        raise InvalidArgument(argument, problem, "Write it in quotes; where a template yields it, add `| string`.")
    return value


def count(argument: str, value: object, unit: str = "records") -> int | None:
    """Return a number above 0 from a number or text, or None if not given. Raises InvalidArgument.

    :param unit: the things that are counted, for the error.
    """
    if not is_given(value):
        return None
    if isinstance(value, bool) or not re.fullmatch(r"\s*\d+\s*", str(value)) or int(str(value)) == 0:
        raise InvalidArgument(
            argument, f"{value!r} is not a number of {unit} above 0.", "Leave it out for the default."
        )
    return int(str(value))


def count_from_zero(argument: str, value: object) -> int:
    """Return a number from 0 on, from a number or text. Raises InvalidArgument."""
    if isinstance(value, bool) or not str(value).strip().isdigit():
        raise InvalidArgument(argument, f"{value!r} is not a number from 0 on.")
    return int(str(value))


def positive_seconds(argument: str, value: object) -> float:
    """Return a number of seconds above 0. Raises InvalidArgument."""
    duration = seconds(argument, value)
    if duration <= 0:
        raise InvalidArgument(argument, "has to be above 0 seconds.")
    return duration


def between_batches(argument: str, value: object) -> float | None:
    """Return the seconds between the starts of two batches, or None for "available_now". Raises InvalidArgument."""
    if value is None or value == AVAILABLE_NOW:
        return None
    try:
        return seconds(argument, with_short_unit(value))
    except InvalidArgument:
        problem = f'{value!r} is neither "{AVAILABLE_NOW}" nor a time between two batches.'
        raise InvalidArgument(argument, problem, 'Write "10 seconds".') from None


def positive_time(argument: str, value: object) -> timedelta | None:
    """Return a time above 0, from "7 days", "12h", seconds or a timedelta, or None if not given.

    Raises InvalidArgument.
    """
    if not is_given(value):
        return None
    given = value.total_seconds() if isinstance(value, timedelta) else with_short_unit(value)
    return timedelta(seconds=positive_seconds(argument, given))


def reject_limit(argument: str, value: object) -> RejectLimit:
    """Return a limit from a count, a share below 1, or a percentage: 100, 0.01, "1%". Raises InvalidArgument.

    A number with a point is a share, a number without is a count.
    """
    if isinstance(value, RejectLimit):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", str(value))
    if match is None or isinstance(value, bool):
        raise InvalidArgument(argument, f"{value!r} is neither a count nor a share.", 'Write 100, 0.01 or "1%".')
    number = float(match[1])
    if match[2]:
        number /= 100
    elif "." not in match[1]:
        return RejectLimit(count=int(match[1]))
    if number > 1:
        raise InvalidArgument(argument, f"{value!r} is more than all records.", 'Write a share such as 0.01 or "1%".')
    return RejectLimit(share=number)


class ProvenShare(float):
    """Share of the records to compare: 1 for all, 0 for none."""


def proven_share(argument: str, value: object) -> ProvenShare:
    """Return the share of the records to compare, from "all", "off", or a number between 0 and 1, also as text.

    Raises InvalidArgument.
    """
    if isinstance(value, ProvenShare):
        return value
    text = str(value).strip().lower()
    if text in (ALL, OFF):
        return ProvenShare(text == ALL)
    if isinstance(value, bool) or not re.fullmatch(r"0?\.\d+", text) or float(text) == 0:
        problem = f"{value!r} is not a share of the records."
        raise InvalidArgument(argument, problem, 'Write "all", a number between 0 and 1 such as 0.05, or "off".')
    return ProvenShare(text)


def flag(argument: str, value: object) -> bool:
    """Return a truth value from a truth value or text; an empty text, or "None" from a template, is False."""
    text = str(value).strip().lower()
    if text not in ("true", "false", "none", ""):
        raise InvalidArgument(argument, f"{value!r} is neither true nor false.")
    return text == "true"


def condition(argument: str, value: object) -> str | None:
    """Return a condition in SQL, or None if not given. Raises InvalidArgument.

    DuckDB is not asked: its import takes longer than Airflow should spend on a DAG file. The first records do so.
    """
    if not is_given(value):
        return None
    text = str(value).strip()
    if not isinstance(value, str) or re.match(r"(select|with|where)\b", text, re.IGNORECASE) or OF_INPUT.search(text):
        problem = f"{value!r} is not a condition."
        raise InvalidArgument(argument, problem, "Write the condition alone, over a record's columns: \"op = 'D'\".")
    return text


def items(argument: str, value: object) -> tuple[str, ...] | None:
    """Return texts from a list of texts or a single text, or None if not given."""
    if not is_given(value):
        return None
    items = (value,) if isinstance(value, str) else value
    if not isinstance(items, Sequence) or not all(isinstance(item, str) for item in items):
        raise InvalidArgument(argument, f"{value!r} is not a list of texts.", 'Write ["first", "second"].')
    return tuple(items)


def schemas(argument: str, value: object) -> tuple[str, ...] | None:
    """Return texts of schemas as `items` does, also from a JSON list as rendered by templates.

    A union is a list in JSON, too, but its branches are not texts with an object.
    """
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            texts = json.loads(value)
        except ValueError:
            texts = None
        if texts and all(isinstance(one, str) and one.lstrip().startswith("{") for one in texts):
            return tuple(texts)
    return items(argument, value)


def check_keys(section: str, given: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse an unknown key, with the nearest known key as a suggestion. Raises InvalidArgument.

    :param section: the section of the keys, for errors; empty for the configuration itself.
    """
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1, 0.5)
            remedy = f"Did you mean {near[0]!r}?" if near else f"It may have {', '.join(sorted(known))}."
            raise InvalidArgument(f"{section}.{key}" if section else str(key), "is not a setting of the app.", remedy)


def names(argument: str, value: object) -> Mapping[str, str]:
    """Return new names by old names, from a mapping or JSON; empty if not given."""
    if not is_given(value):
        return {}
    try:
        mapping = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        mapping = None
    if not isinstance(mapping, Mapping) or not all(
        isinstance(one, str) and one for item in mapping.items() for one in item
    ):
        raise InvalidArgument(argument, f"{value!r} is not a mapping of names.", 'Write {"name": "new_name"}.')
    return dict(mapping)


def json_object(argument: str, value: object) -> dict[str, Any]:
    """Return a mapping, or the JSON object of a text; empty if not given. Raises InvalidArgument."""
    try:
        found = json.loads(value) if isinstance(value, str) and is_given(value) else value
    except ValueError:
        found = None
    if is_given(value) and not isinstance(found, Mapping):
        raise InvalidArgument(argument, f"{value!r} is not a JSON object.", """Write '{"key": ["id"]}'.""")
    return dict(found) if isinstance(found, Mapping) else {}


def output_mode(argument: str, value: object) -> str:
    """Return the output mode of a streaming query, "append". Raises InvalidArgument for any other."""
    if value != "append":
        problem = f"{value!r} brings rows again that have landed, changed; a landing only adds rows."
        raise InvalidArgument(argument, problem, 'Leave it out, or write "append": rows come when they are final.')
    return "append"


def regex(argument: str, value: object) -> str | None:
    """Return a regular expression, or None if not given."""
    if not is_given(value):
        return None
    try:
        re.compile(str(value))
    except re.error as e:
        problem = f"{value!r} is not a regular expression: {e}."
        raise InvalidArgument(argument, problem, r'Write "shop\.public\.orders_\d+".') from None
    return str(value)


def properties(argument: str, value: object) -> Mapping[str, str]:
    """Return table properties as texts; None is no properties."""
    value = {} if value is None else value
    if not isinstance(value, Mapping):
        raise InvalidArgument(argument, f"{value!r} is not a mapping.", 'Write {"key": "value"}.')
    # The properties are shown in the table's metadata as well.
    refuse_shown(argument, value)
    return {str(key): str(item) for key, item in value.items()}


def ranges(argument: str, value: object) -> RangesMode:
    """Return the mode of [[partition, from, until], ...], from a list or JSON. Raises InvalidArgument."""
    # Imported here: the parser of DAG files needs the ledger's modules for this argument only.
    from airflow_lakestream.core.landing.modes import RangesMode, parse_ranges

    if isinstance(value, RangesMode):
        return value
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as e:
            raise InvalidArgument(argument, f"{value!r} is not JSON ({e}).", "Write [[0, 100, 250]].") from e
    if not isinstance(value, Sequence) or not all(isinstance(item, Sequence) for item in value):
        raise InvalidArgument(
            argument, f"{value!r} is not a list of [partition, from, until].", "Write [[0, 100, 250]]."
        )
    return parse_ranges(value)


def milliseconds(argument: str, value: object) -> int:
    """Return milliseconds since 1970 from a time with zone, ISO 8601, or a number.

    A time before 1970 is negative; parts of a millisecond are cut off.
    """
    if isinstance(value, datetime) and value.tzinfo is None:
        raise InvalidArgument(argument, f"{value} has no time zone.")
    try:
        moment = value if isinstance(value, datetime | bool) else _time_of(str(value).strip())
    except Exception as e:
        # pendulum's parser raises errors of many types.
        raise InvalidArgument(argument, f"{value!r} is not a time.", _TIMES) from e
    if isinstance(moment, bool) or not isinstance(moment, datetime | int):
        raise InvalidArgument(argument, f"{value!r} is not a time.", _TIMES)
    try:
        # Not by timestamp(): a float of seconds is off by a millisecond now and then.
        ms = moment if isinstance(moment, int) else timegm(moment.utctimetuple()) * 1000 + moment.microsecond // 1000
    except OverflowError:
        ms = _YEAR_10000_MS
    if not _YEAR_1_MS <= ms < _YEAR_10000_MS:
        raise InvalidArgument(argument, f"{value!r} is not between the years 1 and 9999.", _TIMES)
    return ms


def check_one_source(checkpoint_location: object, table: object, group_id: object) -> None:
    """Raise InvalidArgument unless exactly one of the three sources of a stream is given."""
    given = {"checkpoint_location": checkpoint_location, "table": table, "group_id": group_id}
    named = [name for name, value in given.items() if is_given(value)]
    if len(named) != 1:
        raise InvalidArgument(
            named[1] if named else "checkpoint_location",
            f"exactly one of checkpoint_location, table and group_id is needed, not {' and '.join(named) or 'none'}.",
        )


def _time_of(text: str) -> object:
    if re.fullmatch(r"-?[0-9]+", text):
        return int(text)
    # With its date: "now" and "12:00" would be another time in each try of a run.
    return pendulum.parse(text) if re.match(r"[0-9]{4}", text) else None


_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def problem_of(settings: Mapping[str, object], *, has_login: bool = False) -> tuple[str, str] | None:
    """Return (problem, remedy) of a connection's settings, or None.

    Without a matching security.protocol librdkafka ignores settings of TLS or a login: it connects without them,
    silently. An unknown security.protocol is not checked here, since librdkafka refuses it by name.

    :param has_login: the connection has a login or a password next to the settings.
    """
    for name, value in settings.items():
        if isinstance(value, list | tuple | Mapping):
            remedy = 'Write one text, such as "broker-1:9092,broker-2:9092".' if "servers" in name else "Write a text."
            return f"{name} is a {'mapping' if isinstance(value, Mapping) else 'list'}.", remedy
    protocol = str(settings.get("security.protocol") or "plaintext").upper()
    if protocol not in _PROTOCOLS:
        # librdkafka refuses it by name.
        return None
    for prefix, wanted, other in (("sasl.", "SASL_SSL", "SASL_PLAINTEXT"), ("ssl.", "SSL", "SASL_SSL")):
        given = [name for name, value in settings.items() if name.startswith(prefix) and value not in (None, "")]
        if given and protocol not in (wanted, other):
            protocol_text = "is missing" if "security.protocol" not in settings else f"is {protocol}"
            problem = (
                f"it has {', '.join(given)}, and security.protocol {protocol_text}: the client would connect without."
            )
            return problem, f'Set security.protocol to "{wanted}" or "{other}", or leave the others out.'
    if has_login and not protocol.startswith("SASL_"):
        remedy = (
            'Put them into the extra: "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN" or '
            '"SCRAM-SHA-512", "sasl.username", "sasl.password".'
        )
        return "its fields login and password are read by nothing: the client would connect without a login.", remedy
    return None
