"""What the sensors that look at a consumer of topics share: how they name it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_lakestream.core.policies import is_given
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.operators.arguments import templated
from airflow_lakestream.sensors.base import LookSensor


class ConsumerSensor(LookSensor):
    """Looks at a Spark query, a table's ledger, or a consumer group.

    :param checkpoint_location: checkpoint of a Spark query, as Spark takes it (templated)
    :param table: `namespace.table` with a ledger; with `table_format="delta"` its path or URI (templated)
    :param consumer_group: name of the table's ledger; default: the DAG's id (templated)
    :param group_id: a consumer group, by its committed offsets (templated)
    :param topic: one topic or a list; default: all that the consumer has read from (templated)
    :param table_format: `"iceberg"` or `"delta"` (templated)
    :param kafka_conn_id: connection of type `kafka` (templated)
    :param iceberg_conn_id: connection of type `iceberg` (templated)
    :param storage_conn_id: connection of a Delta table's or checkpoint's store: type `aws`, `generic` or `iceberg`
        (templated)
    :param kwargs: those of `LookSensor`: `missing`, `deferrable`, `start_from_trigger`, and Airflow's own
    """

    def __init__(
        self,
        *,
        checkpoint_location: str | None = None,
        table: str | None = None,
        consumer_group: str = "{{ dag.dag_id }}",
        group_id: str | None = None,
        topic: str | Sequence[str] | None = None,
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
        self.table_format = table_format
        self.kafka_conn_id = kafka_conn_id
        self.iceberg_conn_id = iceberg_conn_id
        self.storage_conn_id = storage_conn_id

    template_fields: Sequence[str] = (*templated(__init__), *LookSensor.template_fields)
