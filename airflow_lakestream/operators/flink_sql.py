"""FlinkSqlOperator: a landing by Flink, submitted once and watched from Airflow, published with the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

# Nothing that imports PyIceberg or Arrow up here: Airflow parses DAG files anew every half minute.
from airflow_lakestream.config.arguments import positive_seconds, proven_share
from airflow_lakestream.config.literals import Check, check_literals
from airflow_lakestream.core.names import check_branch
from airflow_lakestream.core.policies import is_given
from airflow_lakestream.core.secrecy import refuse_shown
from airflow_lakestream.flink.formats.known import check_format
from airflow_lakestream.operators.arguments import templated
from airflow_lakestream.operators.flink.base import FlinkOperator
from airflow_lakestream.operators.sql_template import RendersSql
from airflow_lakestream.registry.config import refuse_secrets

if TYPE_CHECKING:
    from airflow_lakestream.flink.config import FlinkConfig


_CHECKS: dict[str, Check] = {
    "branch": check_branch,
    "format": check_format,
    "publish_interval": positive_seconds,
    "prove": proven_share,
}


class FlinkSqlOperator(RendersSql, FlinkOperator):
    """Land a topic by a Flink job that runs on and on, and see to it that there is one, that it moves, and ends well.

    Flink writes a branch of the table. A driver beside the worker looks after the job, and publishes the branch: files
    that agree with Flink's own checkpoint and with the table's ledger go on main, with the ledger, in one commit.
    Adopts the stream's driver, and its job, where they run; else submits them. A job that fails, vanishes or stalls is
    restarted from its newest complete checkpoint. Stopping it takes a savepoint, from which the next one goes on.
    Returns the report that `SparkStreamingSubmitOperator` returns; a batch is a publication.

    .. seealso:: docs/flink.md

    :param topic: the topic (templated)
    :param table: the Iceberg table, `database.table`; created if it is missing (templated)
    :param columns: the columns of the records, a DDL string such as `"id bigint, name string"`; not for a statement
        that reads keys and values as text (templated)
    :param consumer_group: whose ledger it is; default: the DAG's id (templated)
    :param sql: a SELECT from `source`, which has the columns of the records and `_kafka_topic`, `_kafka_partition`,
        `_kafka_offset`, `_kafka_timestamp`; the first three of these have to be among its own. Records that it leaves
        out count as filtered. Or a statement that reads from `{{ input }}`, as `KafkaExtractOperator` takes it, of the
        common subset. None: each record becomes a row (templated)
    :param sql_input: of a statement that reads from `{{ input }}`: `"raw"`, the texts of keys and values, or
        `"decoded"`, the columns (templated)
    :param schema: the columns of a new table, where `sql` makes others than the records'; a DDL string (templated)
    :param format: of the values: `"json"`, `"avro"` in the framing of Confluent's registry, or `"raw"`. A value that
        does not fit fails the job (templated)
    :param schema_registry: for `format="avro"`, as for `KafkaExtractOperator`; Flink reaches it, too (templated)
    :param branch: the branch that Flink writes; default: `flink-<consumer_group>` (templated)
    :param start_offset: where a group without an origin begins, as for `KafkaExtractOperator` (templated)
    :param start_timestamp: goes with `start_offset="timestamp"` (templated)
    :param publish_interval: time between two publications, each a commit on main (templated)
    :param partition_by: of a new table, as for `KafkaExtractOperator` (templated)
    :param table_properties: of a new table (templated)
    :param on_data_loss: what happens when records left Kafka before they were landed: `"fail"` or `"record"`
        (templated)
    :param on_error: what happens to bad records: `"reject"`, `"skip"` or `"fail"`, as for `KafkaExtractOperator`, whose
        code then lands in the driver what Flink can't make the same of. Default: `"reject"` where `sql` reads from
        `{{ input }}`, else a bad record ends the task (templated)
    :param max_rejected: goes with it: how many of a publication's records may be bad (templated)
    :param checks: what has to hold of the rows of each publication before they show, such as `{"not_null": ["id"]}`;
        see docs/checks.md (templated)
    :param prove: `"all"`: before they show, rows are compared with what the extract makes of the same records; a share
        of them between 0 and 1; or `"off"`. The ledger says of which rows nobody has (templated)
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
        # As early as can be: a DAG with a secret in it is not written down anywhere.
        refuse_shown("sql", sql)
        refuse_shown("table_properties", table_properties or {})
        refuse_secrets(schema_registry or "")
        self.topic = topic
        self.table = table
        self.columns = columns
        self.consumer_group = consumer_group
        self.sql = sql
        self.sql_input = sql_input
        self.schema = schema
        self.format = format
        self.schema_registry = schema_registry
        self.branch = branch
        self.start_offset = start_offset
        self.start_timestamp = start_timestamp
        self.publish_interval = publish_interval
        self.partition_by = partition_by
        self.table_properties = table_properties
        self.on_data_loss = on_data_loss
        self.on_error = on_error
        self.max_rejected = max_rejected
        self.checks = checks
        self.prove = prove
        own = {name: getattr(self, name) for name in templated(FlinkSqlOperator.__init__)}
        check_literals({name: value for name, value in own.items() if name in _CHECKS}, _CHECKS)
        others = (
            "topic",
            "consumer_group",
            "schema_registry",
            "start_offset",
            "start_timestamp",
            "partition_by",
            "on_data_loss",
            "on_error",
            "max_rejected",
            "sql_input",
            "checks",
        )
        check_literals({name: own[name] for name in others if is_given(own[name])})

    template_fields: Sequence[str] = (*templated(__init__), *FlinkOperator.template_fields)

    def configuration(self, owner: str) -> FlinkConfig:
        """Check all arguments, and return what the driver is told. Raises InvalidArgument."""
        from airflow_lakestream.operators.flink.set_up import configured

        return configured(self, owner)

    def what(self) -> Mapping[str, Any]:
        """Return topic, table and group."""
        return {"topic": self.topic, "table": self.table, "consumer_group": self.consumer_group or self.dag_id}
