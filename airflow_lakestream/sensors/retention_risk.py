"""RetentionRiskSensor: fails before Kafka removes what a consumer has not read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_lakestream.core.policies import is_given
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.operators.arguments import templated
from airflow_lakestream.sensors.base import LookSensor


class RetentionRiskSensor(LookSensor):
    """Fail in time: before retention removes records that a consumer has not read.

    Looks once, and succeeds if no unread record leaves within `min_time_left`. With `watch_for` it goes on looking for
    that long, and fails as soon as one would. How long a record stays follows from the topic's `retention.ms` and
    `retention.bytes`, the rate at which records come, and the rate at which the consumer's last runs or batches read
    them. A consumer group's rate is unknown: it counts as stopped. In the last quarter of `min_time_left` no rate is
    trusted. Records that are already lost also fail it.

    Returns, or leaves as XCom if it fails: `time_left` and `time_left_if_stopped` (seconds; None: they stay),
    `partitions` (the first ones by topic and partition), `unread`, `lost`, `records_per_second` and `max_records` (what
    would catch up in half of the time).

    .. seealso:: docs/sensors.md

    :param checkpoint_location: checkpoint of a Spark query, as Spark takes it (templated)
    :param table: `namespace.table` with a ledger; with `table_format="delta"` its path or URI (templated)
    :param consumer_group: name of the table's ledger; default: the DAG's id (templated)
    :param group_id: a consumer group, by its committed offsets (templated)
    :param topic: one topic or a list; default: all that the consumer has read from (templated)
    :param min_time_left: how long unread records must at least stay, such as `"6h"` (templated)
    :param watch_for: how long to go on looking; default: look once (templated)
    :param run_interval: time between two runs of the landing, to compute how large they must be; default: that of its
        last runs (templated)
    :param table_format: `"iceberg"` or `"delta"` (templated)
    :param kafka_conn_id: connection of type `kafka` (templated)
    :param iceberg_conn_id: connection of type `iceberg` (templated)
    :param storage_conn_id: connection of a Delta table's or checkpoint's store: type `aws`, `generic` or `iceberg`
        (templated)
    :param kwargs: those of `LookSensor`: `missing`, `deferrable`, `start_from_trigger`, and Airflow's own
    """

    check_name = "retention_risk"

    def __init__(
        self,
        *,
        checkpoint_location: str | None = None,
        table: str | None = None,
        consumer_group: str = "{{ dag.dag_id }}",
        group_id: str | None = None,
        topic: str | Sequence[str] | None = None,
        min_time_left: float | str = "1h",
        watch_for: float | str | None = None,
        run_interval: float | str | None = None,
        table_format: str = "iceberg",
        kafka_conn_id: str = "kafka_default",
        iceberg_conn_id: str = "iceberg_default",
        storage_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not any(is_given(one) for one in (checkpoint_location, table, group_id)):
            raise InvalidArgument(
                "checkpoint_location", "one of checkpoint_location, table and group_id has to be given."
            )
        self.checkpoint_location = checkpoint_location
        self.table = table
        self.consumer_group = consumer_group
        self.group_id = group_id
        self.topic = topic
        self.min_time_left = min_time_left
        self.watch_for = watch_for
        self.run_interval = run_interval
        self.table_format = table_format
        self.kafka_conn_id = kafka_conn_id
        self.iceberg_conn_id = iceberg_conn_id
        self.storage_conn_id = storage_conn_id
        self.ready()

    template_fields: Sequence[str] = (*templated(__init__), *LookSensor.template_fields)
