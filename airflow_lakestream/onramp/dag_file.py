"""Output of `lakestream init`: the text of a DAG file, and shell lines with the connections that it needs."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from textwrap import wrap
from typing import Any

from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

from airflow_lakestream.core.printable import printable
from airflow_lakestream.core.secrecy import is_secret_name, url_holds_secret
from airflow_lakestream.decode.json.kinds import Kinds, likely_unit, path_of, remarks
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.lakes import DEFAULT, LakeFormat, lake_of
from airflow_lakestream.onramp.schedules import schedule_problem
from airflow_lakestream.tables.schema.columns import to_schema, to_timed_schema
from airflow_lakestream.tables.schema.types import ELEMENT, Path, TimeSource, schema_text, type_text


class DagEngine(StrEnum):
    """Engines of `lakestream init`."""

    EXTRACT = "extract"
    GROUP = "group"
    SPARK = "spark"
    MIRROR = "mirror"


# The default schedule of each engine.
SCHEDULES = {
    DagEngine.EXTRACT: "*/5 * * * *",
    DagEngine.GROUP: "*/15 * * * *",
    DagEngine.SPARK: "@continuous",
    DagEngine.MIRROR: "*/5 * * * *",
}
_JINJA = re.compile(r"\{[{%#]")
_NO_INTERVALS = ("@continuous", "@once")
_TIMETABLE = "from airflow.timetables.interval import CronDataIntervalTimetable  # airflow.sdk has it after 3.1 only\n"
_ABOUT = {
    DagEngine.EXTRACT: "One task reads the new records in the worker, and lands them in the table.",
    DagEngine.GROUP: "A task plans, several tasks read and write side by side, and one task commits all of it.",
    DagEngine.SPARK: "Spark runs a streaming query, which a task supervises. To stop it for good, pause the DAG first.",
    DagEngine.MIRROR: (
        "One task applies Debezium's change events in the worker: the table has the rows of the database's table.\n\n"
        "If merging them becomes too much for a worker, let Spark do it: SparkStreamingSubmitOperator with\n"
        'app="cdc_to_iceberg" ("cdc_to_delta" for a Delta table) and, in app_config, the same topic, table,\n'
        "consumer_group and key. It goes on where the ledger in the table ends."
    ),
}
_IMPORTS = {
    DagEngine.EXTRACT: "from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator",
    DagEngine.GROUP: "from airflow_lakestream.operators.kafka_extract_group import kafka_extract_group",
    DagEngine.SPARK: "from airflow_lakestream.operators.spark_streaming_submit import SparkStreamingSubmitOperator",
    DagEngine.MIRROR: "from airflow_lakestream.operators.kafka_mirror import KafkaMirrorOperator",
}


@dataclass(frozen=True, kw_only=True)
class DagFile:
    """A DAG to write; `text` is the content of the file.

    :param group: the consumer group.
    :param schedule: a cron expression or a preset; None: the engine's default.
    :param decoding: arguments about the decoding of records, as text.
    :param columns: the payload's columns as DDL; None: the first run or the registry has them.
    :param columns_by: the source of the columns, in words for a comment.
    :param column_notes: remarks about the columns, for comments.
    :param key: the columns of a mirror's key; empty for any other engine.
    :param connections: by argument, such as `kafka_conn_id`, a connection that is not the default.

    Raises InvalidArgument for an invalid schedule, and for columns with a part that Airflow would render as a template.
    """

    topic: str
    table: str
    group: str
    dag_id: str
    engine: DagEngine = DagEngine.EXTRACT
    schedule: str | None = None
    decoding: Mapping[str, Any] = field(default_factory=dict)
    columns: str | None = None
    columns_by: str = ""
    column_notes: Sequence[str] = ()
    key: Sequence[str] = ()
    connections: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.columns is not None and _JINJA.search(self.columns):
            # A producer chooses the names of fields. Airflow would render such a name, maybe with a secret variable.
            problem = "a name of the columns holds what Airflow takes for a template ({{, {% or {#)."
            raise InvalidArgument("--schema", problem, "Give the columns without it.")
        if self.schedule is not None and (wrong := schedule_problem(self.schedule)) is not None:
            raise InvalidArgument("--schedule", wrong)

    @property
    def lake(self) -> LakeFormat:
        """The format of the table."""
        return lake_of(self.table)

    @property
    def text(self) -> str:
        """The file's text, as a formatter would leave it."""
        notes = "".join(f"{line}\n" for line in note_lines(self.column_notes))
        schema = "" if self.columns is None else _schema(self.columns, self.columns_by, notes)
        sql = _statement(str(self.decoding["sql"])) if "sql" in self.decoding else ""
        verb = "Mirror the database's table whose changes are in" if self.engine is DagEngine.MIRROR else "Land"
        checkpoint = _CHECKPOINT if self.engine is DagEngine.SPARK else ""
        return "".join(
            [
                f'"""{verb} the Kafka topic {self.topic}.\n\n{_ABOUT[self.engine]}\n"""\n\n',
                "from __future__ import annotations\n\n",
                "from datetime import timedelta\n\nimport pendulum\nfrom airflow.sdk import DAG, Asset\n",
                f"{_TIMETABLE}\n" if self._has_intervals else "\n",
                f"{_IMPORTS[self.engine]}\n",
                f"{checkpoint}{schema}{sql}\n" if checkpoint or schema or sql else "\n",
                f"with DAG(\n    dag_id={_literal(self.dag_id)},\n",
                f"    schedule={self._timetable},\n",
                '    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),\n',
                "    # Each run lands all that is new, so runs that were missed need not be made up for.\n",
                "    catchup=False,\n",
                "    # Runs of one consumer group take turns.\n    max_active_runs=1,\n",
                '    tags=["lakestream"],\n    doc_md=__doc__,\n) as dag:\n',
                self._spark() if self.engine is DagEngine.SPARK else self._landing(),
            ]
        )

    @property
    def _has_intervals(self) -> bool:
        return (self.schedule or SCHEDULES[self.engine]) not in _NO_INTERVALS

    @property
    def _timetable(self) -> str:
        schedule = _literal(self.schedule or SCHEDULES[self.engine])
        return f'CronDataIntervalTimetable({schedule}, timezone="UTC")' if self._has_intervals else schedule

    @property
    def _outlets(self) -> str:
        """Python code for a list with the table's asset, with the URI of `operators.base.table_asset`."""
        return f"[Asset(name={_literal(self.table)}, uri={_literal(self.lake.uri(self.table))})]"

    def _arguments(self, indent: int = 8) -> list[tuple[str, str, str]]:
        """Return the landing's arguments as triples: name, Python code, and comment, which may be empty.

        :param indent: number of spaces in front of the lines.
        """
        about_group = "The name of the ledger in the table: another name begins a new ledger."
        arguments = [
            ("topic", _literal(self.topic), ""),
            ("table", _literal(self.table), "Created by the first run if it is missing."),
            ("consumer_group", _literal(self.group), about_group),
        ]
        if self.lake is not DEFAULT:
            arguments.append(("table_format", _literal(str(self.lake.format)), ""))
        for name, value in self.decoding.items():
            if name != "schema":
                arguments.append((name, "SQL" if name == "sql" else _python(value, indent), ""))
        if self.columns is not None:
            arguments.append(("schema", "SCHEMA", ""))
        if self.key:
            arguments.append(("key", _python(self.key, indent), "The primary key: the columns of the records' keys."))
        return arguments

    def _landing(self) -> str:
        """Return the call of the operator in the worker, or of the function that makes a group of tasks."""
        match self.engine:
            case DagEngine.GROUP:
                start = 'kafka_extract_group(\n        "land",\n'
                first = ("tasks", "4", "Most tasks that read side by side.")
            case DagEngine.MIRROR:
                start, first = "KafkaMirrorOperator(\n", ("task_id", '"mirror"', "")
            case _:
                start, first = "KafkaExtractOperator(\n", ("task_id", '"land"', "")
        end = [*self._connections(), ("outlets", self._outlets, _ABOUT_OUTLETS), *_RETRIES]
        return f"    {start}{_keywords([first, *self._arguments(), *end], 8)}    )\n"

    def _spark(self) -> str:
        app = self.lake.apps[0]
        # The app itself determines the table format.
        landing = [argument for argument in self._arguments(12) if argument[0] != "table_format"]
        settings = "".join(_lines(f'"{name}": ', python, comment, 12) for name, python, comment in landing)
        operator_arguments = [
            ("trigger", '"10 seconds"', "A batch, and a commit, each ten seconds."),
            ("checkpoint_location", "CHECKPOINT", ""),
            *self._connections(),
            ("outlets", self._outlets, _ABOUT_OUTLETS),
            ("deferrable", "True", "The triggerer watches the stream: it takes no worker slot."),
            ("retries", "10", ""),
            ("retry_delay", "timedelta(seconds=30)", ""),
        ]
        head = f'        task_id="stream",\n        app="{app}",\n        app_config={{\n{settings}        }},\n'
        return f"    SparkStreamingSubmitOperator(\n{head}{_keywords(operator_arguments, 8)}    )\n"

    def _connections(self) -> list[tuple[str, str, str]]:
        return [(name, _literal(value), "") for name, value in self.connections.items()]


_ABOUT_OUTLETS = "DAGs that are scheduled on this asset run when the table has new rows."
_RETRIES = [
    ("retries", "3", "A run that failed lands nothing twice: it begins where the table ends."),
    ("retry_delay", "timedelta(minutes=1)", ""),
]
_CHECKPOINT = """
# Where the query keeps its place. If there are several workers, give a place that all of them share.
CHECKPOINT = "{{ var.value.get('lakestream_checkpoints', '/tmp/lakestream') }}/{{ dag.dag_id }}"
"""


def default_name(topic: str) -> str:
    """Return the default of the DAG's id for a topic."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", topic) + "_to_lake"


def default_table(topic: str) -> str:
    """Return the default of the table's name for a topic."""
    return "lake." + (re.sub(r"\W+", "_", topic).strip("_") or "topic")


def note_lines(notes: Sequence[str]) -> list[str]:
    """Return notes as comment lines of a file."""
    return [
        f"# {line}"
        for note in notes
        for line in wrap(printable(note), 116, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    ]


def column_texts(columns: str) -> list[str]:
    """Return each column of a schema as DDL."""
    schema, times = to_timed_schema(columns)
    return [schema_text(Schema(column), times) for column in schema.fields]


def _schema(columns: str, source: str, notes: str) -> str:
    lines = ",\n".join(f"    {_in_triple_quotes(column)}" for column in column_texts(columns))
    comment = f"# The columns of the table, by {source}: correct names and types before the first run makes it.\n"
    return f'\n{comment}{notes}SCHEMA = """\n{lines}\n"""\n'


def _statement(sql: str) -> str:
    lines = "\n".join(_in_triple_quotes(line) for line in sql.strip("\n").split("\n"))
    return f'\nSQL = """\n{lines}\n"""\n'


def _in_triple_quotes(text: str) -> str:
    return printable(text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"'))


def _keywords(arguments: list[tuple[str, str, str]], indent: int) -> str:
    return "".join(_lines(f"{name}=", python, comment, indent) for name, python, comment in arguments)


def _lines(name: str, python: str, comment: str, indent: int) -> str:
    space = " " * indent
    return (f"{space}# {comment}\n" if comment else "") + f"{space}{name}{python},\n"


def _python(value: Any, indent: int) -> str:
    """Return a value as Python code; a list has a line for each item, 4 spaces behind `indent`."""
    if not isinstance(value, list | tuple):
        return _literal(str(value))
    # One item to a line, as a formatter leaves it.
    space = " " * indent
    return "[\n" + "".join(f"{space}    {_literal(str(item))},\n" for item in value) + f"{space}]"


def _literal(text: str) -> str:
    """Return a text as Python code, in the quotes that formatters choose: double, if that needs no more escapes."""
    quoted = repr(text)
    if quoted.startswith("'") and text.count('"') <= text.count("'"):
        inner = quoted[1:-1].replace("\\'", "'").replace('"', '\\"')
        return f'"{inner}"'
    return quoted


_SCHEMA_PLACE = "the file's schema"  # place of a schema, in words for remarks
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")  # the words of a name such as shippedAt or ts_ms
# Words in names of times.
_TIME_WORDS = frozenset(
    {"at", "created", "date", "datetime", "deleted", "epoch", "modified", "time", "timestamp", "ts", "updated", "when"}
)
# Words in names of other columns, even next to a word of times: time_zone_id, timestampCount.
_OTHER_WORDS = frozenset({"code", "count", "duration", "id", "key", "number", "phone", "zone"})


def with_likely_times(columns: str, kinds: Kinds) -> tuple[str, Sequence[str]]:
    """Return a pair: the DDL of guessed columns with likely times as times, and notes about the columns.

    A column of numbers becomes a time if all values are likely times in one unit, and the name is that of a time. The
    values alone are not enough: phone numbers of ten digits look like seconds, and some ids like nanoseconds. A column
    with another name only gets a note.

    :param columns: the columns as DDL.
    :param kinds: by column, the kinds of its values.
    """
    schema, times, notes = to_schema(columns), dict[Path, TimeSource](), list[str]()
    for name, kind_counts in kinds.items():
        path, unit = path_of(name), likely_unit(kind_counts)
        kind = _type_at(schema.as_struct(), path)
        if unit is None or not isinstance(kind, iceberg.LongType | iceberg.DoubleType) or not is_of_a_time(name):
            continue
        times[path] = TimeSource(unit)
        seen = "; ".join(map(str, kind_counts))
        notes.append(f"{name}: {seen}. They land as times; {type_text(kind)} as its type lands the numbers.")
    timed_schema = Schema(*(_retyped(field, (field.name,), times) for field in schema.fields))
    return schema_text(timed_schema, times), [*notes, *remarks(timed_schema, kinds, times, _SCHEMA_PLACE)]


def is_of_a_time(name: str) -> bool:
    """Return whether a column's name has a word for times, such as `shippedAt`, `ts_ms` or `event.time`."""
    words = {word.lower() for word in _WORDS.findall(name.rpartition(".")[2])}
    return bool(words & _TIME_WORDS) and not words & _OTHER_WORDS


def _type_at(kind: iceberg.IcebergType, path: Path) -> iceberg.IcebergType | None:
    """Return the type at a path within a type, or None if there is no such path."""
    if not path:
        return kind
    if isinstance(kind, iceberg.ListType):
        return _type_at(kind.element_type, path[1:]) if path[0] == ELEMENT else None
    fields = kind.fields if isinstance(kind, iceberg.StructType) else ()
    return next((_type_at(field.field_type, path[1:]) for field in fields if field.name == path[0]), None)


def _retyped(field: iceberg.NestedField, path: Path, times: Mapping[Path, TimeSource]) -> iceberg.NestedField:
    """Return a field with timestamps at the paths of `times`; `path` is the field's own."""
    kind = _timed(field.field_type, path, times)
    return iceberg.NestedField(field.field_id, field.name, kind, required=field.required, doc=field.doc)


def _timed(kind: iceberg.IcebergType, path: Path, times: Mapping[Path, TimeSource]) -> iceberg.IcebergType:
    """Return a type with timestamps at the paths of `times`; `path` is the type's own."""
    if path in times:
        return iceberg.TimestamptzType()
    if isinstance(kind, iceberg.StructType):
        return iceberg.StructType(*(_retyped(field, (*path, field.name), times) for field in kind.fields))
    if isinstance(kind, iceberg.ListType):
        element = _timed(kind.element_type, (*path, ELEMENT), times)
        return iceberg.ListType(kind.element_id, element, element_required=kind.element_required)
    return kind


# Names of secrets that `is_secret_name` does not know.
_KEYS = re.compile(r"(?:\.pem|access-key-id|access_key_id)$", re.IGNORECASE)
_USER_INFO = re.compile(r"(?<=://)([^/@\s]*)@")


def export_line(conn_id: str, fields: Mapping[str, Any]) -> str:
    """Return the shell line `export AIRFLOW_CONN_...` with a connection as JSON, and placeholders for secrets.

    :param fields: the connection's fields, such as conn_type and host; `extra` is a mapping.
    """
    text = json.dumps({name: value for name, value in masked(fields).items() if value})
    return f"export AIRFLOW_CONN_{conn_id.upper()}={shlex.quote(text)}"


def masked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with a placeholder for each secret, also in nested settings and in URLs."""
    return {name: _masked(str(name), value) for name, value in settings.items()}


def _masked(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return masked(value)
    if not value:
        return value
    if is_secret_name(name) or _KEYS.search(name):
        return f"<{name}>"
    if isinstance(value, str) and url_holds_secret(value):
        return _USER_INFO.sub("<user>:<password>@", value.split("?")[0])
    return value


def secret_values(*settings: Mapping[str, Any] | None) -> list[str]:
    """Return the secrets in settings, the longest first, to hide in texts.

    For a secret such as "user:password" its parts are returned, too. Settings that are None are skipped.
    """
    return sorted(set(_secrets(settings)), key=len, reverse=True)


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return a text with stars in the place of each secret.

    :param secrets: the longest first, so that no part of a secret stays; see `secret_values`.
    """
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def _secrets(settings: Iterable[Mapping[str, Any] | None]) -> Iterable[str]:
    for mapping in settings:
        for name, value in (mapping or {}).items():
            if isinstance(value, Mapping):
                yield from _secrets([value])
            elif isinstance(value, str) and value and (is_secret_name(str(name)) or _KEYS.search(str(name))):
                yield value
                yield from (part for part in value.split(":") if len(part) >= 4)
            elif isinstance(value, str) and url_holds_secret(value):
                for user_info in _USER_INFO.findall(value):
                    # The user's name is no secret.
                    yield from (part for part in user_info.split(":")[1:] if part)
