"""Fan-out by name: the tables of a template, and the topics of a regex. Text only, no I/O.

`"lake.{topic}"` is one table per topic; with `"lake.{event}"`, `"lake.{header:type}"` and `"lake.{key}"` each record
names its table. `{field:topic}` is a payload field whose name is taken by another placeholder.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_lakestream.core.names import BESIDE, HOME, check_table_name, check_topic
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal

# Catalogs cut or refuse longer names; file systems refuse names from 256 bytes on.
MAX_NAME = 200
# Similar names that an error shows.
NAMES_SHOWN = 10
# Columns that a routed row carries from the decoder to the sink, which removes them.
ROUTE, ROUTE_PARTITION, ROUTE_OFFSET = ROUTE_COLUMNS = (
    "_lakestream_route",
    "_lakestream_partition",
    "_lakestream_offset",
)
# Separates the values of several placeholders in a route.
SEPARATOR = "\x1f"
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


class NewTables(StrEnum):
    """Treatment of a value without an existing table."""

    FAIL = "fail"
    CREATE = "create"


class PlaceholderOrigin(StrEnum):
    """Source of a placeholder's value."""

    TOPIC = "topic"
    KEY = "key"
    HEADER = "header"
    FIELD = "field"


@dataclass(frozen=True, slots=True)
class NamePlaceholder:
    """`{topic}`, `{key}`, `{header:name}`, or `{name}` for a field of the payload."""

    origin: PlaceholderOrigin
    name: str = ""

    def __str__(self) -> str:
        return f"{self.origin} {self.name!r}" if self.name else str(self.origin)


class Unroutable(ValueError):
    """A value unfit to name a table; the text continues a sentence after the value."""


class NoTopicMatches(LakestreamError, Terminal):
    """No topic of the cluster matches the regex."""

    def __init__(self, pattern: str, where: str, near: Sequence[str]) -> None:
        self.pattern, self.near = pattern, tuple(near)
        hint = f"Similar names there: {', '.join(near)}." if near else "It shows this user no topic at all."
        super().__init__(
            f"topic: no topic in the cluster of {where} has a name that matches {pattern!r} as a whole. {hint} "
            'Correct the regex ("^orders-.*" matches all names that begin with orders-), or set on_empty="skip".'
        )


@dataclass(frozen=True, slots=True)
class TableTemplate:
    """A table's name with placeholders; `parts` are literal texts and placeholders, in order."""

    text: str
    parts: tuple[str | NamePlaceholder, ...]

    @classmethod
    def parse(cls, text: str, argument: str = "table") -> TableTemplate:
        """Parse a template, or a plain table name. Raises InvalidArgument.

        Refused are unknown placeholders, a namespace chosen by records, and with a placeholder by record the suffixes
        of tables next to a table.
        """
        check_table_name(_PLACEHOLDER.sub("x", text or ""), argument)
        texts = _PLACEHOLDER.split(text)
        if any("{" in literal or "}" in literal for literal in texts[::2]):
            raise InvalidArgument(argument, f"{text!r} has a brace without its counterpart.", _NOTATION)
        parts = [_placeholder(part_text, text) if i % 2 else part_text for i, part_text in enumerate(texts)]
        template = cls(text, tuple(part for part in parts if part != ""))
        last_dot = max(i for i, part in enumerate(template.parts) if isinstance(part, str) and "." in part)
        if any(p in template.by_record for p in template.parts[:last_dot]):
            raise InvalidArgument(argument, f"{text!r}: a record can't choose the namespace.", _NOTATION)
        if template.by_record and text.endswith(BESIDE):
            raise InvalidArgument(argument, f"{text!r}: {_KEPT}.", "Let it end otherwise.")
        return template

    @property
    def placeholders(self) -> tuple[NamePlaceholder, ...]:
        """All placeholders, in order."""
        return tuple(part for part in self.parts if isinstance(part, NamePlaceholder))

    @property
    def by_record(self) -> tuple[NamePlaceholder, ...]:
        """The placeholders filled with each record's own value."""
        return tuple(p for p in self.placeholders if p.origin is not PlaceholderOrigin.TOPIC)

    @property
    def by_topic(self) -> bool:
        """Whether the topic's name is part of the table's."""
        return len(self.by_record) < len(self.placeholders)

    def of_topic(self, topic: str) -> TableTemplate:
        """Return the template with the topic's name filled in; unchanged without `{topic}`.

        Raises InvalidArgument for an invalid result.
        """
        if not self.by_topic:
            return self
        try:
            name = sanitized(topic)
        except Unroutable as e:
            raise InvalidArgument("table", f"the topic {topic!r} {e}.", "Name the table without {topic}.") from None
        text = "".join(name if part == NamePlaceholder(PlaceholderOrigin.TOPIC) else _text(part) for part in self.parts)
        if not self.by_record and len(text) > MAX_NAME:
            raise InvalidArgument("table", f"{text!r} is longer than {MAX_NAME} characters.", "Do without {topic}.")
        return TableTemplate.parse(text)

    def table(self, values: Sequence[str]) -> str:
        """Return the table for the values of the `by_record` placeholders, in order.

        Raises Unroutable for a value without letters and digits, a name too long, and a reserved suffix.
        """
        names = iter([sanitized(value) for value in values])
        name = "".join(part if isinstance(part, str) else next(names) for part in self.parts)
        if len(name.encode()) > MAX_NAME:
            raise Unroutable(f"makes a table's name of more than {MAX_NAME} characters")
        if name.endswith(BESIDE):
            raise Unroutable(f"makes the name {name}, and {_KEPT}")
        return name

    @property
    def namespace(self) -> str:
        """The namespace of all tables; with a topic in the namespace, valid only after `of_topic`."""
        return "".join(_text(part) for part in self.parts).rpartition(".")[0]

    def describe(self, route: str) -> str:
        """Return the values of a route for people: `header 'type' 'click'`."""
        pairs = zip(self.by_record, route.split(SEPARATOR), strict=True)
        return " and ".join(f"{placeholder} {value!r}" for placeholder, value in pairs)

    def home(self, topic: str, consumer_group: str) -> str:
        """Return the default home table of a topic and a group. Raises InvalidArgument."""
        name = f"{self.namespace}.{_name(topic)}__{_name(consumer_group)}{HOME}"
        if len(name) > MAX_NAME:
            raise InvalidArgument(
                "home_table", f"{name!r} is longer than {MAX_NAME} characters.", "Give a shorter one."
            )
        return name


_KEPT = f"names that end in {', '.join(BESIDE)} are kept for the tables next to other tables"
_NOTATION = 'Write "lake.{topic}", "lake.{key}", "lake.{header:type}", or "lake.{event}" for a field of the payload.'


def _placeholder(text: str, template: str) -> NamePlaceholder:
    """Parse the text between the braces of a template. Raises InvalidArgument."""
    origin, colon, name = text.partition(":")
    # Without a colon, `{topic}` and `{key}` have these origins, and every other name is a field.
    if not colon:
        origin, name = (
            (text, "")
            if text in (PlaceholderOrigin.TOPIC, PlaceholderOrigin.KEY)
            else (PlaceholderOrigin.FIELD.value, text)
        )
    is_named = origin in (PlaceholderOrigin.HEADER, PlaceholderOrigin.FIELD)
    is_good = (is_named and bool(name)) or (origin in (PlaceholderOrigin.TOPIC, PlaceholderOrigin.KEY) and not colon)
    if not is_good or re.search(r"\s", text):
        raise InvalidArgument("table", f"{template!r}: {{{text}}} is not a placeholder.", _NOTATION)
    if origin == PlaceholderOrigin.FIELD and "." in name:
        raise InvalidArgument("table", f"{template!r}: {{{text}}} is not a field at the top of the payload.", _NOTATION)
    return NamePlaceholder(PlaceholderOrigin(origin), name)


def _text(part: str | NamePlaceholder) -> str:
    """Return a part of a template in the users' notation."""
    if isinstance(part, str):
        return part
    if not part.name:
        return f"{{{part.origin}}}"
    return f"{{{part.origin}:{part.name}}}"


def sanitized(value: str) -> str:
    """Return a value as part of a table's name: lower case; all but ASCII letters, digits and '_' become '_'.

    Lower case, since Hive's and Glue's catalogs support no upper case. Raises Unroutable if no letter or digit is left.
    """
    name = _name(value)
    if not re.search(r"[a-z0-9]", name):
        raise Unroutable("holds no letter and no digit to name a table by")
    return name


def _name(text: str) -> str:
    return re.sub(r"[^a-z0-9_]", "_", text.lower())


def is_pattern(topic: str) -> bool:
    """Return whether a topic is a regex: like in librdkafka, with '^' at the start."""
    return (topic or "").startswith("^")


def check_topic_or_pattern(topic: str) -> str:
    """Return a topic's name or a regex. Raises InvalidArgument."""
    if not is_pattern(topic):
        return check_topic(topic)
    try:
        re.compile(topic)
    except re.error as e:
        raise InvalidArgument("topic", f"{topic!r} is not a regex of Python's: {e}.") from e
    return topic


def matching(pattern: str, topics: Iterable[str]) -> list[str]:
    """Return the topics with a whole name matched by the regex, sorted, without Kafka's internal topics."""
    compiled = re.compile(pattern)
    return sorted(topic for topic in topics if not topic.startswith("__") and compiled.fullmatch(topic))


def near_names(pattern: str, topics: Collection[str]) -> list[str]:
    """Return at most NAMES_SHOWN topics near a regex without a match.

    First come topics with a beginning that matches, then similar names, then any topics.
    """
    shown = sorted(topic for topic in topics if not topic.startswith("__"))
    begin = [topic for topic in shown if re.match(pattern, topic)]
    alike = difflib.get_close_matches(re.sub(r"\W+", "-", pattern).strip("-"), shown, NAMES_SHOWN, 0.4)
    return list(dict.fromkeys([*begin, *alike, *shown]))[:NAMES_SHOWN]


def colliding_topics(template: TableTemplate, topics: Sequence[str]) -> dict[str, str]:
    """Return, for each topic in a shared table, another topic of the table.

    Topics share a table if the template gives their names the same table. A topic that can't name a table is left out.
    """
    by_table: dict[str, list[str]] = {}
    for topic in topics if template.by_topic else ():
        # A topic that can't name a table raises its error when it is landed.
        with suppress(InvalidArgument):
            by_table.setdefault(template.of_topic(topic).text, []).append(topic)
    clashing = [same for same in by_table.values() if len(same) > 1]
    return {topic: next(other for other in same if other != topic) for same in clashing for topic in same}


def check_name_by_topic(table: str, topic: str) -> None:
    """Refuse a table name with a suffix of the tables next to a table. Raises InvalidArgument.

    Only names that a regex makes from topics are checked: the user did not choose such a name on purpose.

    :param topic: the topic that made the name.
    """
    if table.endswith(BESIDE):
        raise InvalidArgument("table", f"the topic {topic!r} makes the name {table}, and {_KEPT}.", "Narrow the regex.")


# Table property, set with each landing, as JSON: the key's columns, and whether deleted rows stay; for plain records
# also the columns that order them.
MIRROR = "lakestream.mirror"


class IsMirror(LakestreamError, Terminal):
    """A mirror table was used as a table of records; `of_records`: the mirror is of plain records, not of events."""

    def __init__(self, table: str, what: str, *, of_records: bool = False) -> None:
        self.table = table
        if of_records:
            super().__init__(
                f"{table} is a table by key: one row is the result of many records, so it can't be {what}. To keep "
                "each record, land the topic in a table of its own, with KafkaExtractOperator."
            )
            return
        super().__init__(
            f"{table} is a mirror of a database's table: one row is the result of many change events, so it can't "
            f"be {what}. Compare it with its source row by row instead. To keep each record, land the events in "
            'a table of their own (envelope="debezium").'
        )


def refuse_mirror(table: str, properties: Mapping[str, str], what: str) -> None:
    """Raise IsMirror for a mirror table."""
    if MIRROR in properties:
        raise IsMirror(table, what, of_records=is_of_records(json.loads(properties[MIRROR])))


def is_of_records(note: Mapping[str, Any]) -> bool:
    """Return whether a mirror is one of plain records, not of a database's table, by the mirror's note."""
    return note.get("sequence_by") is not None


def check_mirror_name(table: TableTemplate) -> None:
    """Refuse a table chosen by records. Raises InvalidArgument."""
    if table.by_record:
        raise InvalidArgument("table", f"{table.text!r}: each topic has one mirror.", 'Write "lake.{topic}".')
