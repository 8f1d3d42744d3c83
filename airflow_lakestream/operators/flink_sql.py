"""FlinkSqlOperator: a landing by Flink, submitted once and watched from Airflow, published with the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

# No import of PyIceberg or Arrow at the top: Airflow parses DAG files again every half minute.
from airflow_lakestream.config.setting import SettingTaker
from airflow_lakestream.core.names import check_branch
from airflow_lakestream.flink.formats.known import check_format
from airflow_lakestream.operators.arguments import documented, set_arguments, templated
from airflow_lakestream.operators.flink.base import FlinkOperator
from airflow_lakestream.operators.sql_template import SqlRendering

if TYPE_CHECKING:
    from airflow_lakestream.flink.config import FlinkConfig


@documented(SettingTaker.FLINK)
class FlinkSqlOperator(SqlRendering, FlinkOperator):
    """Land a topic by a Flink job without an end; keep the job running and moving until a good end.

    Flink writes a branch of the table. A driver next to the worker supervises the job, and publishes the branch: files
    that agree with Flink's own checkpoint and with the table's ledger are added to main, with the ledger, in one
    commit. Adopts the stream's driver and its job if they run; otherwise submits both. A job that fails, vanishes or
    stalls is restarted from its newest complete checkpoint. Stopping it takes a savepoint, from which the next job goes
    on. Returns the report of `SparkStreamingSubmitOperator`; a batch is a publication.

    .. seealso:: docs/flink.md

    :param topic: the topic (templated)
    :param table: the Iceberg table, `database.table`; created if it is missing (templated)
    :param columns: the columns of the records, a DDL string such as `"id bigint, name string"`; not for a statement
        that reads keys and values as text (templated)
    :param sql: a SELECT from `source`, which has the columns of the records and `_kafka_topic`, `_kafka_partition`,
        `_kafka_offset`, `_kafka_timestamp`; its result must have the first three of these. Records that it leaves
        out count as filtered. Or a statement that reads from `{{ input }}`, as in `KafkaExtractOperator`, in the
        common subset. None: each record becomes a row (templated)
    :param sql_input: input of a statement that reads from `{{ input }}`: `"raw"`, the texts of keys and values, or
        `"decoded"`, the columns (templated)
    :param schema: the columns of a new table, if `sql` returns others than the records'; a DDL string (templated)
    :param format: format of the values: `"json"`, `"avro"` in the framing of Confluent's registry, or `"raw"`. A value
        that does not fit fails the job (templated)
    :param schema_registry: for `format="avro"`, as for `KafkaExtractOperator`; Flink reaches it, too (templated)
    :param branch: the branch that Flink writes; default: `flink-<consumer_group>` (templated)
    :param on_error: action on bad records: `"reject"`, `"skip"` or `"fail"`, as for `KafkaExtractOperator`, whose
        code then lands in the driver the records for which Flink can't make the same row. Default: `"reject"` if `sql`
        reads from `{{ input }}`, else a bad record ends the task (templated)
    :param kwargs: of `FlinkOperator`: the cluster, parallelism, and checkpoint_interval (each checkpoint with rows is a
        snapshot of the branch); of `SupervisedOperator`: checkpoint_location (which Flink's processes have to share),
        restarts, time-outs, what a kill does, deferring
    """

    template_fields_renderers = {"checks": "json"}

    def __init__(
        self,
        *,
        topic: str,
        table: str,
        columns: str | None = None,
        consumer_group: str | None = None,
        sql: str | None = None,
        sql_input: str = "raw",
        schema: str | None = None,
        format: str = "json",  # noqa: A002  # the name that it has in the other operators
        schema_registry: str | Mapping[str, Any] | None = None,
        branch: str | None = None,
        start_offset: str = "earliest",
        start_timestamp: str | int | None = None,
        publish_interval: float | str = "60s",
        partition_by: Sequence[str] | str | None = None,
        table_properties: Mapping[str, str] | None = None,
        on_data_loss: str = "fail",
        on_error: str | None = None,
        max_rejected: int | float | str | None = None,
        checks: Mapping[str, Any] | None = None,
        prove: str | float = "all",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        set_arguments(self, FlinkSqlOperator, locals(), {"branch": check_branch, "format": check_format})

    template_fields: Sequence[str] = (*templated(__init__), *FlinkOperator.template_fields)

    def configuration(self, owner: str) -> FlinkConfig:
        """Check all arguments, and return the driver's configuration. Raises InvalidArgument."""
        from airflow_lakestream.operators.flink.set_up import configured

        return configured(self, owner)

    def stream_names(self) -> Mapping[str, Any]:
        """Return topic, table and group."""
        return {"topic": self.topic, "table": self.table, "consumer_group": self.consumer_group or self.dag_id}
