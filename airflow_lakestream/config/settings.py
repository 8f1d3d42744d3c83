"""The settings of landings, mirrors, sensors and commands: one row each, from which everything else is derived.

Derived are the checks where a DAG is parsed, the refusals, the models of pipelines and their JSON Schema, options of
commands, docstrings of operators, and tables in the documentation. Imports nothing that a DAG's parser would have to
wait for; so DDL and SQL are left to the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from airflow_lakestream.config import arguments
from airflow_lakestream.config.checks import parse_checks
from airflow_lakestream.config.reading_settings import (
    CONFIGURED,
    CONNECTIONS,
    DECODED,
    LIMITS,
    OF_EVENTS,
    RUN,
    SOURCE,
    Rows,
)
from airflow_lakestream.config.setting import (
    MIRRORS,
    Check,
    RecordEnvelope,
    RecordMerge,
    Setting,
    SettingKind,
    SettingRefusal,
    SettingSection,
    SettingTaker,
    in_section,
)
from airflow_lakestream.core.names import FUNCTIONS, METADATA_NAMES, check_function, check_table_name
from airflow_lakestream.core.policies import (
    MaintainMode,
    MergeMode,
    MissingPolicy,
    OnError,
    OutOfRange,
    SchemaEvolution,
    SqlInput,
    StateStore,
    UnknownFields,
    is_given,
    is_literal,
)
from airflow_lakestream.core.routing import NewTables
from airflow_lakestream.exceptions import InvalidArgument, UnknownValue

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = TypeVar("Value")
Config = TypeVar("Config", bound="DataclassInstance")


def _metadata(argument: str, value: object) -> None:
    for name in arguments.items(argument, value) or ():
        if name not in METADATA_NAMES:
            raise UnknownValue(argument, name, METADATA_NAMES)


_ADDED = "columns that the database adds are added"
_ADDED_FIELDS = "each field of the records gets a column"
_ROWS = {SettingTaker.MIRROR: "a mirror has the rows of the database's table"}
_ONE_MIRROR = {SettingTaker.MIRROR: "each topic has one mirror", SettingTaker.UPSERT: "each topic has one table"}
_WITH_MIRRORS = {
    SettingTaker.LANDING: SettingRefusal("it goes with a mirror", "Set mode: mirror, or mode: upsert, or leave it out.")
}
_BY_KEY = SettingRefusal("it goes with a table by key", "Set mode: upsert, or leave it out.")
# Flink and Connect decode records themselves, and write a branch whose files this package publishes.
_WRITTEN = {SettingTaker.FLINK: "Flink writes the rows", SettingTaker.CONNECT: "Kafka Connect writes the rows"}


def _for_records_by_key(reason: str) -> dict[SettingTaker, str | SettingRefusal]:
    """Return the refusals of a setting of tables by key: by a mirror of events, with its reason, and by a landing."""
    return {SettingTaker.MIRROR: reason, SettingTaker.LANDING: _BY_KEY}


_SCHEMA: Rows = (
    Setting(
        "schema",
        'Columns: DDL such as `"id bigint not null, name string"`, or a PyIceberg or pyarrow schema. Default: the table\'s '
        "own, else the registry's, else inferred from the first batch.",
        for_mirrors='Types of some columns: DDL such as `"born string"`, or a PyIceberg or pyarrow schema; the other columns '
        "have the events' types.",
    ),
    Setting(
        "schema_evolution",
        'Allowed changes of the table\'s [schema](schema.md), in the commit of the rows. `"add"` allows new columns, `"widen"` also wider types.',
        SchemaEvolution,
        not_for={
            SettingTaker.MIRROR: f"{_ADDED}, and types that became wider are widened",
            SettingTaker.UPSERT: f"{_ADDED_FIELDS}, and types that became wider are widened",
            **_WRITTEN,
        },
    ),
    Setting(
        "unknown_fields",
        'Treatment of [fields without a column](schema.md). `"rescue"` keeps them in the column `_rescued`, `"evolve"` adds '
        "columns.",
        UnknownFields,
        not_for={
            SettingTaker.MIRROR: _ADDED,
            SettingTaker.UPSERT: _ADDED_FIELDS,
            SettingTaker.GROUP: SettingRefusal(
                'with "evolve" each task would name other columns',
                'Use KafkaExtractOperator, or "rescue".',
                lambda value: value == UnknownFields.EVOLVE,
            ),
            **_WRITTEN,
        },
    ),
    Setting(
        "rename_columns",
        'Column names by field names in the records: `{"_file": "file"}`, [names that a table can\'t have](schema.md#names).',
        SettingKind.MAPPING,
        not_for=DECODED,
        for_mirrors='Column names by names in the database, or in plain records: `{"_op": "operation"}`; `key`, `sequence_by` and `delete_when` take the new names.',
    ),
    Setting(
        "metadata_columns",
        "Columns of a record's parts, named `_kafka_topic` and so on: of "
        f"{', '.join(f'`{name}`' for name in METADATA_NAMES)}.",
        SettingKind.NAMES,
        _metadata,
        not_for={**dict.fromkeys(MIRRORS, "a mirror keeps partition and offset of each row's last event"), **_WRITTEN},
    ),
)

_SQL: Rows = (
    Setting(
        "sql",
        "A SELECT from `{{ input }}` that makes each record a row, or leaves it out; or a file `.sql`: [SQL](sql.md).",
        not_for=_ROWS,
        for_mirrors="With `envelope=None`, a SELECT from `{{ input }}` that makes each record a row [before its key is taken](upsert.md#sql), or leaves it out; or a file `.sql`.",
    ),
    Setting(
        "sql_input",
        'Input of the SELECT: `"raw"`, keys and values as text, or `"decoded"`, the columns in `schema`.',
        SqlInput,
        not_for=_ROWS,
    ),
)

_TABLE: Rows = (
    Setting(
        "partition_by",
        "Partitioning of a table to be created: `day(x)` and its plural, `hour`, `month`, `year`, `bucket(n, x)`, `truncate(w, x)`, a column; [no two names that Avro makes one](schema.md#names), no two units of time of one column.",
        SettingKind.NAMES,
    ),
    Setting(
        "sort_order",
        'Order of the rows in each file, such as `["timestamp", "user_id desc"]`; the files carry the order\'s id.',
        SettingKind.NAMES,
        not_for={SettingTaker.FLINK: _WRITTEN[SettingTaker.FLINK]},
    ),
    Setting(
        "table_properties",
        "Properties of a table to be created, [by Iceberg's names](operators/kafka_extract.md#table-properties); its [format version](ledger.md#format-versions) is 2. No secrets: the table's metadata shows them.",
        SettingKind.MAPPING,
        arguments.properties,
    ),
    Setting(
        "maintain",
        'Whether a run that lands in an Iceberg table ends with a [compaction](maintenance.md#after-landings) when many small files are there. `"auto"` compacts, `"never"` does not.',
        MaintainMode,
        default='the table\'s property `lakestream.maintain`, else `"never"`',
        not_for={
            **dict.fromkeys(MIRRORS, "a merge changes files all over the table"),
            SettingTaker.SPARK: SettingRefusal("the worker compacts", "Use LakestreamMaintainOperator."),
            **{
                taker: f"{reason}, and LakestreamMaintainOperator compacts the table"
                for taker, reason in _WRITTEN.items()
            },
        },
    ),
)

_FAN_OUT: Rows = (
    Setting(
        "new_tables",
        'Reaction to a value without a table, if [records choose tables](operators/fan_out.md). `"create"` creates the table, `"fail"` makes the record bad.',
        NewTables,
        not_for=_ONE_MIRROR,
    ),
    Setting("max_tables", "Most tables, if records choose tables.", SettingKind.COUNT, not_for=_ONE_MIRROR),
    Setting(
        "home_table",
        "Table with the ledger, if records choose tables.",
        check=lambda argument, value: check_table_name(str(value), argument),
        default="by topic and group",
        not_for=_ONE_MIRROR,
    ),
)

_ERRORS: Rows = (
    Setting(
        "on_error",
        'Treatment of a bad record, which fits no row without loss. `"reject"` keeps it, raw and with the reason, in [`<table>__rejected`](rejects.md), `"skip"` counts it, `"fail"` fails the run.',
        OnError,
        not_for=CONFIGURED,
        for_mirrors='Treatment of a record that is not an event of the table, or that makes no row. `"reject"` keeps it [next to the mirror](rejects.md), `"skip"` counts it, `"fail"` fails the run.',
    ),
    Setting(
        "max_rejected",
        'Most bad records of a run: a count, or a share such as `0.01` or `"1%"`; more [fail the run before it commits]'
        "(rejects.md#a-run-that-would-reject-most). `1.0` allows any number.",
        SettingKind.LIMIT,
        default="half, 10 at least",
        not_for=CONFIGURED,
    ),
    Setting(
        "checks",
        'Conditions on the rows of each commit, tested [before they are visible](checks.md), such as `{"not_null": ["id"]}`.',
        check=parse_checks,
        for_mirrors="Conditions on the new versions of rows, tested [before they are visible](checks.md#mirrors), such as "
        '`{"not_null": ["name"]}`.',
    ),
)

_OF_MIRRORS: Rows = (
    Setting(
        "key",
        "Columns of the primary key; the table keeps the columns. The default needs keys in JSON; with `envelope=None` there is none, and `user.id` is [a nested field](upsert.md#the-key).",
        SettingKind.NAMES,
        default="of the records' keys",
        not_for=_WITH_MIRRORS,
    ),
    Setting(
        "soft_delete",
        "Whether a deleted or truncated row stays, with `_is_deleted` true and its last values.",
        SettingKind.FLAG,
        not_for=_WITH_MIRRORS,
    ),
    Setting(
        "out_of_range",
        'Treatment of a date, a time or a timestamp that its column can\'t hold. `"reject"` makes the event bad, `"clamp"` takes the nearest value, `"null"` takes NULL: [values out of range](cdc-types.md#values-out-of-range).',
        OutOfRange,
        not_for={SettingTaker.UPSERT: OF_EVENTS, **_WITH_MIRRORS},
    ),
    Setting(
        "merge_mode",
        'Way of changes into an Iceberg table; `"auto"` decides by file: [changed rows]'
        "(cdc-merge.md#how-changed-rows-come-into-the-table).",
        MergeMode,
        not_for=_WITH_MIRRORS,
    ),
    Setting(
        "source_tables",
        "Regex of the source's tables as `database.schema.table`, if the rows of [several](cdc.md#partitions-and-several-tables) belong in one mirror.",
        check=arguments.regex,
        not_for={SettingTaker.UPSERT: OF_EVENTS, **_WITH_MIRRORS},
    ),
    Setting(
        "sequence_by",
        "One or two columns that rise with each change of a row, with `envelope=None`, of any type that compares; the table keeps them. Without it, offsets decide which record is newer: [order](upsert.md#order).",
        SettingKind.NAMES,
        not_for=_for_records_by_key("events have their order in the database's log"),
    ),
    Setting(
        "delete_when",
        "Condition in SQL over a record's columns, such as `\"op = 'D'\"`, with `envelope=None`: a record for which it is true deletes the row of its key, [in order](upsert.md#by-a-condition).",
        check=arguments.condition,
        not_for=_for_records_by_key("the database's deletions are events"),
    ),
    Setting(
        "insert_only",
        "Whether the first record of a key stays and later ones change nothing, with `envelope=None`: [messages sent twice](upsert.md#messages-sent-twice). The table keeps it.",
        SettingKind.FLAG,
        not_for=_for_records_by_key("a mirror follows the changes of rows"),
    ),
    Setting(
        "history",
        "Whether each version of a row is a row, with `_valid_from`, `_valid_to` and `_is_current` (SCD type 2): [history](upsert.md#history). The table keeps it.",
        SettingKind.FLAG,
        not_for={SettingTaker.LANDING: _BY_KEY},
    ),
    Setting(
        "history_columns",
        "Columns whose changes begin a version, with `history`; other columns have the values of the version's newest record: [history](upsert.md#versions-by-some-columns). The table keeps them.",
        SettingKind.NAMES,
        not_for={SettingTaker.LANDING: _BY_KEY},
    ),
    Setting(
        "merge",
        'Effect of a record on the row of its key, with `envelope=None`. `"replace"` takes the record as the whole row, `"given"` keeps the values of [absent fields](upsert.md#records-with-some-of-the-fields).',
        RecordMerge,
        not_for=_for_records_by_key("an event has the whole row"),
    ),
    Setting(
        "within",
        'Time such as `"7 days"`, with `insert_only`: only a record whose time, in the column of `sequence_by`, is that near to the row of its key [changes nothing](upsert.md#within-a-time).',
        check=arguments.positive_time,
        not_for=_for_records_by_key("a mirror follows the changes of rows"),
    ),
)

# Arguments of Spark's apps, engines, sensors, events and audits. If a row has no text, the classes document it.
_OTHER: Rows = (
    Setting("state_store", kind=StateStore),
    Setting("output_mode", check=arguments.output_mode),
    *(Setting(name, check=lambda argument, value: check_function(str(value), argument)) for name in FUNCTIONS),
    Setting("missing", kind=MissingPolicy),
    *(Setting(name, check=arguments.count_from_zero) for name in ("max_lag_records", "max_restarts")),
    Setting("complete_through", kind=SettingKind.MOMENT),
    Setting("operations", kind=SettingKind.NAMES),
    *(Setting(name, kind=SettingKind.FLAG) for name in ("full", "repair", "per_partition", "idle_is_fresh")),
    *(Setting(name, kind=SettingKind.FLAG) for name in ("fail_when_behind", "fail_when_stale")),
    *(
        Setting(name, kind=SettingKind.SECONDS)
        for name in ("max_lag_seconds", "max_batch_age", "max_age", "idle_after")
    ),
    *(Setting(name, kind=SettingKind.SECONDS) for name in ("min_time_left", "watch_for", "run_interval")),
    *(Setting(name, kind=SettingKind.SECONDS) for name in ("restart_backoff", "healthy_after", "stall_timeout")),
    *(Setting(name, kind=SettingKind.SECONDS) for name in ("start_timeout", "unknown_timeout", "stop_timeout")),
    Setting("poll_interval", kind=SettingKind.SECONDS),
    Setting("trigger", check=arguments.between_batches),
    *(Setting(name, kind=SettingKind.COUNT) for name in ("max_batches", "max_offsets_per_trigger")),
    *(
        Setting(name, check=partial(arguments.count, unit="processes"))
        for name in ("total_executor_cores", "executor_cores", "num_executors")
    ),
    Setting(
        "publish_interval", "Time between two publications, each a commit on main.", check=arguments.positive_seconds
    ),
    Setting(
        "prove",
        '`"all"`: before they are visible, rows are compared with the extract\'s rows of the same records; a share of them between 0 and 1; or `"off"`. The ledger records the unproven rows.',
        check=arguments.proven_share,
    ),
)

SETTINGS: Mapping[str, Setting] = {
    one.name: one
    for section, rows in (
        (SettingSection.SOURCE, SOURCE),
        (SettingSection.CONNECTIONS, CONNECTIONS),
        (SettingSection.RUN, RUN),
        (SettingSection.LIMITS, LIMITS),
        (SettingSection.SCHEMA, _SCHEMA),
        (SettingSection.SQL, _SQL),
        (SettingSection.TABLE, _TABLE),
        (SettingSection.FAN_OUT, _FAN_OUT),
        (SettingSection.ERRORS, _ERRORS),
        (SettingSection.ROWS, _OF_MIRRORS),
        (SettingSection.OTHER, _OTHER),
    )
    for one in in_section(section, *rows)
}


class SettingField(Generic[Value]):
    """Field of a configuration, parsed once, on construction, and typed from then on.

    :param default: the default, as a user writes the value; with None, a value that is not given is None.
    :param parse: parser in place of the setting's own, also of values that are not given. A typed value is its own, so
        that a configuration can be copied.
    :param section: text before the name in errors, such as "maintenance.".
    """

    def __init__(self, default: object, parse: Check | None = None, section: str = "") -> None:
        self._default, self._parse, self._section = default, parse, section

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, config: None, owner: type) -> Any: ...

    @overload
    def __get__(self, config: object, owner: type) -> Value: ...

    def __get__(self, config: object, owner: type) -> Any:
        return self._default if config is None else vars(config)[self._name]

    def __set__(self, config: object, value: Value) -> None:
        vars(config).setdefault("_written", {})[self._name] = value
        if self._parse is not None:
            parsed = self._parse(f"{self._section}{self._name}", value)
        elif is_given(value) or self._default is not None:
            parsed = SETTINGS[self._name].parse(value)
        else:
            parsed = None
        vars(config)[self._name] = parsed


def written(config: object, name: str) -> Any:
    """Return a field's value as the user wrote it, for errors, files and fingerprints."""
    return vars(config).get("_written", {}).get(name, getattr(config, name))


def copied(config: Config, **changes: Any) -> Config:
    """Return a copy with changes, and the other values as written; `replace` takes the parsed values for written ones.

    :param config: a dataclass.
    """
    return type(config)(**{**{one.name: written(config, one.name) for one in fields(config)}, **changes})


def refusal_of(taker: SettingTaker, name: str, prefix: str = "") -> InvalidArgument | None:
    """Return the error for a setting that a taker refuses, for any of its values; or None.

    :param prefix: text before the name in the error, such as "landing.".
    """
    refusal = SETTINGS[name].refusal(taker) if name in SETTINGS else None
    return None if refusal is None else InvalidArgument(f"{prefix}{name}", refusal.text(taker), refusal.remedy)


def mirror_taker(envelope: object) -> SettingTaker:
    """Return the taker of a mirror's settings: of a database's events, or of plain or flattened records."""
    is_of_events = is_given(envelope) and envelope != RecordEnvelope.FLATTENED
    return SettingTaker.MIRROR if is_of_events else SettingTaker.UPSERT


def refuse_for(taker: SettingTaker, given: Mapping[str, object]) -> None:
    """Refuse literal values of settings that a taker does not take. Raises InvalidArgument.

    :param given: values by name; templates are not known yet, and pass.
    """
    for name, value in given.items():
        refusal = SETTINGS[name].refusal(taker) if name in SETTINGS else None
        if refusal is not None and is_given(value) and is_literal(value) and refusal.when(value):
            raise InvalidArgument(name, refusal.text(taker), refusal.remedy)
