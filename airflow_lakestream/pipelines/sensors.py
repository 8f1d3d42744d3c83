"""Sensors in a pipeline's file: arguments of the package's own sensors, and landings waiting for sensors."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from airflow_lakestream.core.policies import MissingPolicy, TableFormat
from airflow_lakestream.pipelines.part import Duration, Flag, FromZero, Names, Part, WholeNumber


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
    complete_through: str | WholeNumber | None = Field(
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
