"""Settings of the source, the connections, the run and the limits of a landing."""

from __future__ import annotations

from functools import partial

from airflow_lakestream.config import arguments
from airflow_lakestream.config.checks import is_by_record
from airflow_lakestream.config.setting import (
    MIRRORS,
    Setting,
    SettingKind,
    SettingRefusal,
    SettingSection,
    SettingTaker,
)
from airflow_lakestream.core.names import check_group
from airflow_lakestream.core.policies import (
    KeyFormat,
    ModeName,
    OnDataLoss,
    OnEmpty,
    StartOffset,
    TableFormat,
    TimestampsFiner,
    Tombstones,
    UnavailableValues,
    ValueEnvelope,
    ValueFormat,
    check_delimiter,
    octets_of,
    seconds,
)
from airflow_lakestream.core.routing import check_topic_or_pattern, is_pattern
from airflow_lakestream.registry.config import RegistryConfig, is_address


def _topics(argument: str, value: object) -> None:
    for topic in arguments.items(argument, value) or ():
        check_topic_or_pattern(topic)


def _registry(_: str, value: object) -> None:
    if is_address(value):
        RegistryConfig.parse(value)


ONE_TASK = "Use KafkaExtractOperator, in one task."
_IN_ORDER = {
    SettingTaker.MIRROR: "all events are applied, from the topic's begin up to now",
    SettingTaker.UPSERT: "all records are applied, from the topic's begin up to now",
}
OF_EVENTS = "it is for Debezium's events"
# Flink and Connect decode records themselves, and write a branch whose files this package publishes.
CONFIGURED = {SettingTaker.CONNECT: "the connector's configuration decides it"}
DECODED = {**CONFIGURED, SettingTaker.FLINK: "Flink decodes the records"}
_ENDLESS = dict.fromkeys((SettingTaker.FLINK, SettingTaker.CONNECT), "its job has no end and reads on")
_BATCH_BOUND = {SettingTaker.SPARK: "max_offsets_per_trigger, in files max_records, bounds a batch", **_ENDLESS}
Rows = tuple[Setting, ...]

CONNECTIONS: Rows = (
    Setting(
        "table_format", 'Format of the table. `"delta"`: `table` is a path or a URI: [Delta](delta.md).', TableFormat
    ),
    Setting(
        "kafka_conn_id",
        "[Connection](operators/kafka_extract.md#connections) of type `kafka`.",
        default="`kafka_default`",
    ),
    Setting(
        "iceberg_conn_id",
        "[Connection](operators/kafka_extract.md#connections) of type `iceberg`.",
        default="`iceberg_default`",
    ),
    Setting(
        "storage_conn_id",
        "Connection of a [Delta table's store](delta.md): type `aws`, or `generic` with storage options.",
        default="the worker's environment",
    ),
)

SOURCE: Rows = (
    Setting(
        "topic",
        "Topic to read; or a regex that begins with `^` and matches whole names: [each topic in turn](operators/fan_out.md).",
        check=_topics,
        not_for={
            SettingTaker.GROUP: SettingRefusal(
                "a regex has several topics", ONE_TASK, lambda value: is_pattern(str(value))
            )
        },
        for_mirrors='Topic of the table\'s events; or a regex such as `"^shop\\\\.public\\\\..*"`: each topic in turn.',
    ),
    Setting(
        "table",
        "`namespace.table` to land in, created if missing. `{topic}` in it becomes the topic's name, and by `{key}`, `{header:name}`, `{field}` [each record chooses its table](operators/fan_out.md).",
        not_for={SettingTaker.GROUP: SettingRefusal("each record chooses its table", ONE_TASK, is_by_record)},
        for_mirrors='`namespace.table` of the mirror, created if missing; for a regex with the topic\'s name: `"lake.{topic}"`.',
        section=SettingSection.CONNECTIONS,
    ),
    Setting(
        "consumer_group",
        "Name of the ledger in the table, and of the group in Kafka whose committed offsets follow it, for lag tools.",
        check=lambda _, value: check_group(str(value)),
        default="the DAG's id",
    ),
    Setting(
        "format",
        "[Format](formats.md) of values.",
        ValueFormat,
        for_mirrors='[Format](formats.md) of values: `"json"`, `"avro"` or `"json_schema"`, and of [plain records](upsert.md) also `"protobuf"` or `"csv"`.',
    ),
    Setting(
        "key_format",
        "Format of keys, which become the column `_key`: [keys](formats.md#keys).",
        KeyFormat,
        not_for={SettingTaker.MIRROR: "keys are taken from the row", **DECODED},
        for_mirrors="Format of Kafka keys, with `envelope=None`; decoded only for records whose value lacks the key, such as tombstones: [the key](upsert.md#the-key).",
        mirrors_default='`format`, without a registry `"json"`',
    ),
    Setting(
        "envelope",
        'Envelope around the row in a value. `"debezium"` flattens change events, `"connect"` unwraps Connect\'s JSON: '
        "[envelopes](formats.md#debezium-and-kafka-connect).",
        ValueEnvelope,
        not_for=DECODED,
        for_mirrors='`"debezium"` for the change events of a database; `None` for plain records, of which the newest of each key is a row: [tables by key](upsert.md); `"flattened"` for [flattened events](upsert.md#flattened-events-of-debezium); `"maxwell"` and `"canal"` for [their JSON](cdc.md#maxwell-and-canal).',
    ),
    Setting(
        "schema_registry",
        "[Registry](formats.md#the-registry): a URL, a mapping with `url` in it, or the id of an Airflow connection, where all secrets belong.",
        check=_registry,
        default="of the Kafka connection",
    ),
    Setting(
        "writer_schemas",
        "Schemas of Avro's single-object encoding, as JSON text.",
        SettingKind.NAMES,
        arguments.schemas,
        not_for=DECODED,
    ),
    Setting(
        "csv_delimiter",
        'Character between fields, with `format="csv"`, such as `";"` or a tab.',
        check=lambda _, value: check_delimiter(str(value)),
        not_for={SettingTaker.MIRROR: "Debezium's events are not CSV", **DECODED},
        for_mirrors='Character between fields, with `envelope=None` and `format="csv"`.',
    ),
    Setting(
        "timestamps_finer",
        'Treatment of times finer than microseconds. `"reject"` makes the record bad, `"truncate"` cuts to microseconds: '
        "[times](formats.md#times-finer-than-microseconds).",
        TimestampsFiner,
        not_for=DECODED,
    ),
    Setting(
        "unavailable_placeholder",
        "The connector's `unavailable.value.placeholder`, if it has another; also with `hex:`: [values that events leave out](formats.md#values-that-events-leave-out).",
        check=lambda _, value: octets_of(str(value)),
        default="Debezium's",
        not_for=DECODED,
    ),
    Setting(
        "unavailable_values",
        'Treatment of an event that leaves a value out, with `envelope="debezium"`. `"reject"` makes the event bad, `"null"` makes the value NULL, with the column\'s name in `_unavailable`.',
        UnavailableValues,
        not_for={
            SettingTaker.MIRROR: "a value that an event leaves out stays what it is",
            SettingTaker.UPSERT: OF_EVENTS,
            **DECODED,
        },
    ),
    Setting(
        "start_offset",
        "Start of the group's first run; afterwards the ledger decides: [resume](operators/kafka_extract.md#resume).",
        StartOffset,
        not_for={**_IN_ORDER, **CONFIGURED},
    ),
    Setting(
        "start_timestamp",
        'Start with `start_offset="timestamp"`: ISO 8601, a datetime, or milliseconds since 1970.',
        SettingKind.MOMENT,
        not_for={**_IN_ORDER, **CONFIGURED},
    ),
    Setting(
        "tombstones",
        'Treatment of a record without a value. `"keep"` makes a row of NULLs, `"skip"` counts it, `"reject"` makes the '
        'record bad, `"delete"` is for [tables by key](upsert.md).',
        Tombstones,
        not_for={SettingTaker.MIRROR: "a tombstone contains nothing that the event before it does not", **DECODED},
        for_mirrors='Treatment of a record without a value, with `envelope=None`. `"delete"` deletes the row of its key, `"skip"` counts it, `"reject"` makes the record bad.',
        mirrors_default='`"delete"`',
    ),
    Setting(
        "on_data_loss",
        'Reaction to offsets that retention removed before the landing. `"record"` lands the other records, and notes the '
        "lost offsets in the ledger.",
        OnDataLoss,
        not_for=CONFIGURED,
    ),
    Setting(
        "poll_timeout",
        "Seconds after which a partition that yields nothing before its end is an error, with the missing offsets.",
        SettingKind.SECONDS,
        arguments.positive_seconds,
        not_for=_ENDLESS,
    ),
)

RUN: Rows = (
    Setting(
        "mode",
        'Choice of the offsets. `"resume"` takes all records not landed yet, `"interval"` those of [a time](operators/kafka_extract.md#intervals), `"ranges"` [given offsets](operators/kafka_extract.md#ranges-and-replace).',
        ModeName,
        not_for=_IN_ORDER,
    ),
    Setting(
        "interval_start",
        'Begin of the time of `mode="interval"`, inclusive: ISO 8601, a datetime, or milliseconds since 1970.',
        SettingKind.MOMENT,
        default="of the run",
        not_for=_IN_ORDER,
    ),
    Setting("interval_end", "End of the time, exclusive.", SettingKind.MOMENT, default="of the run", not_for=_IN_ORDER),
    Setting(
        "ranges",
        'Offsets of `mode="ranges"`: `[[partition, from, until], ...]`, also as JSON text.',
        check=arguments.ranges,
        not_for=_IN_ORDER,
    ),
    Setting(
        "replace",
        'Whether `"interval"` or `"ranges"` read landed records again, and put the new rows in place of the old rows, in '
        "one snapshot.",
        SettingKind.FLAG,
        not_for={
            **dict.fromkeys(MIRRORS, "rows of a mirror are states, not records"),
            SettingTaker.GROUP: SettingRefusal("one task replaces rows", ONE_TASK, partial(arguments.flag, "replace")),
        },
    ),
    Setting("on_empty", 'End of a run that lands nothing. `"skip"` skips the task.', OnEmpty, default='`"success"`'),
    Setting("topic_url", 'Address of the link Topic on the task\'s page, such as `"https://kafka-ui/topics/{topic}"`.'),
    Setting("table_url", 'Address of the link Table on the task\'s page, such as `"https://lake/{table}"`.'),
    Setting(
        "allow_group_overlap",
        "Whether to land records that another group's ledger on the same table has already.",
        SettingKind.FLAG,
    ),
)

LIMITS: Rows = (
    Setting(
        "max_records",
        "Most records in one run, over all its tries; the rest stays for the next run.",
        SettingKind.COUNT,
        not_for={SettingTaker.SPARK: "max_offsets_per_trigger and max_batches bound what is landed", **_ENDLESS},
    ),
    Setting(
        "max_batch_bytes",
        "Most bytes of keys, values and headers in a commit. A larger run makes its first commit after 16 MiB, so that a problem with commits shows early.",
        SettingKind.SIZE,
        not_for=_BATCH_BOUND,
        for_mirrors="Most bytes of keys and values in a commit; a batch is merged in [memory](operators/kafka_mirror.md#memory).",
    ),
    Setting(
        "max_bytes_per_second",
        "Most bytes of keys, values and headers that a task reads in a second, on average, by one process. Brokers and other readers keep the rest of the network.",
        SettingKind.SIZE,
        default="no limit",
        not_for=_BATCH_BOUND,
    ),
    Setting(
        "checkpoint_interval",
        'Longest time between commits: seconds, or a text such as `"60s"`.',
        SettingKind.SECONDS,
        not_for={SettingTaker.SPARK: "trigger determines how often a batch is landed"},
    ),
    Setting(
        "idle_timeout",
        "Seconds without a record after which a run that follows the topic ends; 0 ends at the topic's ends at the start.",
        SettingKind.SECONDS,
        not_for={
            SettingTaker.GROUP: SettingRefusal("its plan is fixed", ONE_TASK, partial(seconds, "idle_timeout")),
            SettingTaker.SPARK: 'a query follows the topic by itself, with trigger="10 seconds"',
            **_ENDLESS,
        },
    ),
    Setting(
        "parallelism",
        "[Processes that read](operators/kafka_extract.md#processes), if there is much to read.",
        SettingKind.COUNT,
        partial(arguments.count, unit="processes"),
        default="one for each processor, at most 4",
        not_for={
            **dict.fromkeys(MIRRORS, "one process applies the events"),
            SettingTaker.GROUP: SettingRefusal("several tasks read", "Set the number of readers with `tasks`."),
            SettingTaker.SPARK: "Spark's own settings determine how many tasks read",
        },
    ),
)
