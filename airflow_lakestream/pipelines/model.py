"""Model of a pipeline's file, for the check of the content and for the JSON Schema."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from airflow_lakestream.config.setting import RecordEnvelope, SettingSection
from airflow_lakestream.core.policies import (
    KeyFormat,
    MissingPolicy,
    StartOffset,
    TableFormat,
    ValueFormat,
)
from airflow_lakestream.pipelines.part import (
    FLAG,
    FUNCTION,
    NAME,
    NUMBER,
    Duration,
    Flag,
    FromOne,
    FromZero,
    Functions,
    Named,
    Names,
    NumberFromZero,
    Part,
    Tags,
    WholeNumber,
    WholeNumberOrText,
    with_settings,
)


class Sensor(Part):
    """Common settings of all sensors."""

    when: Literal["before", "beside"] = Field(
        default="before", description="before: landings wait until it is done; beside: none does"
    )
    sinks: Names | None = Field(default=None, description="sinks whose landings wait for it; default: all")
    of: str | None = Field(
        default=None, description="a sink: look at its table, by its consumer group and its connections"
    )
    table: str | None = Field(default=None, description="namespace.table; of a Delta table its path or URI")
    consumer_group: str | None = None
    kafka_conn_id: str | None = None
    iceberg_conn_id: str | None = None
    missing: MissingPolicy | None = Field(
        default=None, description="what to do while there is no such table, topic or group"
    )
    timeout: Duration | None = Field(default=None, description="how long to wait; default: Airflow's, 7 days")
    poke_interval: Duration | None = Field(default=None, description="time between two looks")
    mode: Literal["poke", "reschedule"] | None = None
    soft_fail: Flag | None = Field(default=None, description="skip instead of failing, and what waits with it")
    deferrable: Flag | None = Field(default=None, description="wait in the triggerer; default: the orchestration's")


class _OfConsumer(Sensor):
    checkpoint_location: str | None = Field(default=None, description="of a Spark query, instead of a table")
    group_id: str | None = Field(default=None, description="a consumer group's committed offsets, instead of a table")
    topic: Names | None = Field(default=None, description="default: all that the consumer has read from")
    table_format: TableFormat | None = None
    storage_conn_id: str | None = None


class Lag(_OfConsumer):
    """Waits until a consumer has caught up: CheckpointLagSensor."""

    type: Literal["lag"]
    max_lag_records: FromZero | None = Field(default=None, description="most unread records")
    max_lag_seconds: Duration | None = Field(default=None, description="most age of an unread record")
    max_batch_age: Duration | None = Field(default=None, description="most age of the newest batch or landing")
    per_partition: Flag | None = None
    fail_when_behind: Flag | None = Field(default=None, description="look once, and fail if it is too far behind")


class Freshness(Sensor):
    """Waits until an Iceberg table is fresh: IcebergSnapshotFreshnessSensor."""

    type: Literal["freshness"]
    max_age: Duration | None = Field(default=None, description="most age of the newest landing or event")
    event_time_column: str | None = None
    complete_through: WholeNumberOrText | None = Field(
        default=None, description='a time, such as "{{ data_interval_end }}"'
    )
    idle_after: Duration | None = None
    idle_is_fresh: Flag | None = None
    operations: Names | None = None
    branch: str | None = None
    fail_when_stale: Flag | None = Field(default=None, description="look once, and fail if it is not fresh")


class Retention(_OfConsumer):
    """Fails before Kafka removes records that a consumer has not read: RetentionRiskSensor."""

    type: Literal["retention"]
    min_time_left: Duration | None = Field(default=None, description="how long unread records must at least stay")
    watch_for: Duration | None = None
    run_interval: Duration | None = None


AnySensor = Annotated[Lag | Freshness | Retention, Field(discriminator="type")]


EngineName = Literal["extract", "group", "spark", "flink", "connect"]


class Metadata(Part):
    """Name and description of the pipeline for people."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,200}$", description="the DAG's id, and the default consumer group")
    # With the letter v it is a tag of Airflow's.
    version: str | None = Field(default=None, max_length=99, description="of this file; a tag of the DAG")
    # As many characters as Airflow's database keeps of all owners of a DAG.
    owner: str | None = Field(default=None, max_length=500, description="the DAG's owner")
    description: str | None = None
    tags: Tags = []


@with_settings(SettingSection.SOURCE)
class Source(Part):
    """A Kafka topic, and the decoding of the records; the arguments of KafkaExtractOperator."""

    type: Literal["kafka"]
    topic: str = Field(description="a topic, or a regex that begins with ^")
    connection: str = Field(default="kafka_default", description="id of an Airflow connection of type kafka")
    consumer_group: str | None = Field(default=None, description="names the ledger; default: the pipeline's name")
    format: ValueFormat = ValueFormat.JSON
    key_format: KeyFormat | None = None
    envelope: RecordEnvelope | None = None
    start_offset: StartOffset = StartOffset.EARLIEST
    schema_: str | None = Field(default=None, alias="schema", description="DDL of what transformations read")


class Transformation(Part):
    """A SELECT that turns each record into a row, or leaves it out."""

    name: str = Field(pattern=NAME)
    type: Literal["sql_transform"]
    input: str = Field(description="a source, or another transformation")
    sql: str = Field(description="reads from {{ input }}; see docs/sql.md")


class RowCount(Part):
    """Limits on the number of rows in a commit."""

    min: FromZero | None = Field(default=None)
    max: FromZero | None = Field(default=None)
    min_of_week: NumberFromZero | None = Field(default=None, description="times the mean of the last week's landings")
    max_of_week: NumberFromZero | None = Field(default=None, description="times the mean of the last week's landings")


class Checks(Part):
    """Conditions on the rows of each commit, checked before the rows are visible; see docs/checks.md."""

    sql: Names | None = Field(default=None, description="SELECTs from landing that have to return no rows")
    not_null: Names | None = Field(default=None, description="columns without NULL")
    unique: Names | None = Field(default=None, description="columns that together are a key of the commit's rows")
    row_count: RowCount | None = None
    freshness: Duration | None = Field(default=None, description="most age of the newest record")


@with_settings(SettingSection.ERRORS)
class Quality(Part):
    """Treatment of bad records, and conditions on the rows."""

    checks: Checks | None = None
    freshness: Duration | None = Field(
        default=None, description="most age of a record that the table lacks, looked at after each landing"
    )


@with_settings(SettingSection.SCHEMA, SettingSection.TABLE, SettingSection.ROWS)
class PipelineSink(Part):
    """A table, and the landing in the table."""

    type: Literal["iceberg", "delta"]
    input: str | None = Field(
        default=None, description="the source or the transformation whose records land; one sink may leave it out"
    )
    table: str = Field(description="namespace.table; of a Delta table its path or URI")
    connection: str | None = Field(
        default=None, description="id of an Airflow connection: of type iceberg, or that of a Delta table's store"
    )
    mode: Literal["append", "replace", "mirror", "upsert"] = Field(
        default="append",
        description="replace: each run lands its data interval again; mirror: by Debezium's events; "
        "upsert: the newest record of each key",
    )
    schema_: str | None = Field(default=None, alias="schema", description='DDL, such as "id bigint not null"')
    properties: dict[str, str] | None = None
    consumer_group: str | None = Field(default=None, description="names the ledger; default: the source's")
    quality: Quality | None = Field(default=None, description="of this sink, instead of the file's")


class Spark(Part):
    """Settings for Spark only."""

    connection: str = Field(default="spark_default", description="id of an Airflow connection of type spark")
    checkpoint_location: str | None = None
    conf: dict[str, str] | None = None
    packages: str | None = None
    driver_memory: str | None = None
    executor_memory: str | None = None
    num_executors: WholeNumber | None = None
    executor_cores: WholeNumber | None = None


class Flink(Part):
    """Settings for Flink only."""

    connection: str = Field(default="flink_default", description="id of an Airflow connection: the SQL Gateway's")
    checkpoint_location: str | None = Field(default=None, description="a place that Flink's processes share")
    branch: str | None = None


class Connect(Part):
    """Settings for Kafka Connect only."""

    connection: str = Field(default="kafka_connect_default", description="id of an Airflow connection: the workers'")
    connector: str | None = Field(default=None, description="its name in Connect; default: the pipeline's name")
    config: dict[str, str] = Field(default={}, description="more settings of the sink, such as iceberg.catalog.uri")


_LOG = "`log` for a line in the log and a count in the metrics, or module:function"


class Alerts(Part):
    """Functions to call when a run goes wrong."""

    on_failure: Functions = Field(default=[], description=f"called with a failed task's context: {_LOG}")
    deadline: Duration | None = Field(default=None, description="most time for a run, from when it is queued")
    on_deadline: str = Field(
        default="log", pattern=FUNCTION, description=f"called, in the triggerer, after that: {_LOG}; async"
    )


@with_settings(SettingSection.LIMITS)
class Orchestration(Part):
    """Engine and schedule of the landings."""

    engine: EngineName = "extract"
    schedule: str | None = Field(
        default=None, description="cron, a preset such as @hourly, continuous, or never; default: by the engine"
    )
    start_date: str = Field(default="2026-01-01", description="a date; matters with catchup, and for data intervals")
    catchup: Flag = False
    parallelism: FromOne | None = Field(default=None, description="processes, or tasks of a group")
    retries: FromZero = Field(default=3)
    retry_delay: Duration = 60.0
    # As many characters as Airflow's database keeps.
    pool: str | None = Field(default=None, max_length=256)
    deferrable: Flag | None = None
    alerts: Alerts = Alerts()
    sensors: dict[Named, AnySensor] = Field(default={}, description="what landings wait for, and what looks on")
    spark: Spark | None = None
    flink: Flink | None = None
    connect: Connect | None = None


class PipelineMaintenance(Part):
    """Upkeep of the sinks' tables by a DAG of its own: LakestreamMaintainOperator."""

    schedule: str = Field(default="0 3 * * *", description="cron, a preset such as @daily, or never")
    sinks: Names | None = Field(default=None, description="sinks whose tables are maintained; default: all")
    retention: Flag = Field(default=True, description="remove rows older than lakestream.retention of a table says")
    retention_column: str | None = Field(default=None, description="column of times, in place of the tables' property")
    keep: Duration | None = Field(default=None, description='age up to which rows stay, such as "90 days"')
    exact: Flag | None = Field(default=None, description="also write files again in which some rows are old")
    compact: Flag = Field(default=True, description="rewrite small files, and files with deletes")
    target_file_size: FromOne | None = Field(default=None, description="bytes of a new file; default: the table's")
    rewrite_manifests: Flag = Field(default=True, description="merge small manifests")
    expire: Flag = Field(default=True, description="remove old snapshots, and files that only they need")
    expire_older_than: Duration | None = Field(default=None, description="least age of a snapshot; default: 5d")
    retain_last: FromOne | None = Field(default=None, description="newest snapshots that stay; default: 1")
    remove_orphans: Flag = Field(default=True, description="delete old files that no snapshot has")
    orphans_older_than: Duration | None = Field(default=None, description="least age of an orphan; default: 3d")
    longest_run: Duration | None = Field(default=None, description="time of the longest run into a table; default: 1d")
    budget: Duration | None = Field(default=None, description="time after which no work begins; the next run goes on")


class Pipeline(Part):
    """A pipeline: topics into tables, by one of the engines."""

    metadata: Metadata
    sources: dict[str, Source] = Field(min_length=1)
    transformations: list[Transformation] = []
    sinks: dict[str, PipelineSink] = Field(min_length=1)
    orchestration: Orchestration = Orchestration()
    quality: Quality = Quality()
    maintenance: PipelineMaintenance | None = None


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of pipeline files.

    Beyond the model, each number, boolean and choice may be a text with `${VARIABLES}`, and numbers and booleans may be
    in quotes.
    """
    found = Pipeline.model_json_schema(by_alias=True)
    found["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    found["title"] = "airflow_lakestream pipeline"
    for part in found["$defs"].values():
        for name, value in part.get("properties", {}).items():
            is_any = value.get("type") in ("string", "array", "object") and "pattern" not in value
            if "const" not in value and not is_any:
                part["properties"][name] = _or_variable(value)
    return found


def _or_variable(value: dict[str, Any]) -> dict[str, Any]:
    about: dict[str, Any] = {key: value[key] for key in ("description", "default", "title") if key in value}
    rest = {key: one for key, one in value.items() if key not in about}
    kinds = {one.get("type") for one in [value, *value.get("anyOf", ())]}
    # A number or a boolean in quotes, like the value of a variable.
    quoted = [NUMBER] * bool(kinds & {"integer", "number"}) + [FLAG] * ("boolean" in kinds)
    return {**about, "anyOf": [rest, {"type": "string", "pattern": "|".join([r"\$\{[^}]+\}", *quoted])}]}
