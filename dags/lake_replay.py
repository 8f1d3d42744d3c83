"""Lands a table's rejected records again, once a schema, a setting or the table has been corrected.

The page of streams in Airflow has a button that starts it for one stream, with the settings of that stream's task.
Records that fit now become rows, and the others stay rejected, with the new reason. Kafka is not asked. Form and task
take the tables that the Airflow variable `lakestream_tables` lists, as `lake_audit` does.
"""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_lakestream.hooks.allowed_tables import refuse_others, table_param
from airflow_lakestream.operators.replay import LakestreamReplayOperator


def text(title: str, description: str) -> Param:
    """Return an optional text field of the form."""
    return Param(None, type=["null", "string"], title=title, description=description)


with DAG(
    dag_id="lake_replay",
    schedule=None,
    tags=["lakestream"],
    description=__doc__.partition("\n")[0],
    doc_md=__doc__,
    params={
        "table": table_param(
            "lake.clickstream", "Iceberg table, as namespace.table, beside which the rejected records are."
        ),
        "consumer_group": Param(
            "clickstream_to_lake",
            type="string",
            minLength=1,
            title="Consumer group",
            description="Whose records are landed: the id of the DAG that rejected them, unless it has another.",
        ),
        "stage": Param(
            None,
            enum=[None, "record", "decode", "route", "sql"],
            type=["null", "string"],
            title="Stage",
            description="Only records that were found bad there; empty for all.",
        ),
        "reason": text("Reason", "Only records whose reason has this text in it; empty for all."),
        "limit": Param(
            None, type=["null", "integer"], minimum=1, title="Limit", description="Most records; empty for all."
        ),
        "format": Param(
            "json",
            type="string",
            minLength=1,
            title="Format",
            description="How values are decoded, as the extract operator's, as are all of the following.",
        ),
        "schema": text("Schema", "Columns, such as: id bigint, created_at timestamp; empty for the table's."),
        "unknown_fields": Param(
            "ignore",
            enum=["ignore", "rescue", "evolve", "fail"],
            title="Unknown fields",
            description="What becomes of a field that the table has no column for.",
        ),
        "schema_evolution": Param(
            "none",
            enum=["none", "add", "widen"],
            title="Schema evolution",
            description="How far the table's schema may be changed.",
        ),
        "tombstones": Param(
            "keep",
            enum=["keep", "skip", "reject"],
            title="Tombstones",
            description="What a record without a value is.",
        ),
        "key_format": text("Format of keys", "How keys are decoded; empty for not at all."),
        "envelope": text("Envelope", "Such as debezium; empty for none."),
        "schema_registry": text("Schema registry", "URL or id of a connection; empty for the Kafka connection's."),
        "writer_schemas": Param(
            None,
            type=["null", "array"],
            items={"type": "string"},
            title="Writer schemas",
            description="Schemas of Avro's single-object encoding; empty for none.",
        ),
        "csv_delimiter": Param(
            ",", type="string", minLength=1, title="Delimiter", description="What separates the fields of CSV."
        ),
        "unavailable_placeholder": Param(
            "__debezium_unavailable_value",
            type="string",
            minLength=1,
            title="Placeholder",
            description="The connector's unavailable.value.placeholder; goes with the envelope debezium.",
        ),
        "unavailable_values": Param(
            "reject",
            enum=["reject", "null"],
            title="Values that events leave out",
            description="What becomes of an event of Debezium's that leaves a value out.",
        ),
        "rename_columns": text("Names of columns", "By those of fields, as JSON; empty for the same names."),
        "timestamps_finer": Param(
            "reject",
            enum=["reject", "truncate"],
            title="Finer timestamps",
            description="What becomes of timestamps and times that are finer than microseconds.",
        ),
        "sql": text("SQL", "The statement that makes rows of records, if they were landed through one."),
        "sql_input": Param(
            "raw",
            enum=["raw", "decoded"],
            title="Input of SQL",
            description="Whether the statement reads records as they are, or decoded ones.",
        ),
        "kafka_conn_id": Param(
            "kafka_default",
            type="string",
            minLength=1,
            title="Kafka connection",
            description="For its schema registry only.",
        ),
        "iceberg_conn_id": Param(
            "iceberg_default",
            type="string",
            minLength=1,
            title="Iceberg connection",
            description="The catalog of the table.",
        ),
    },
) as dag:
    LakestreamReplayOperator(
        task_id="replay",
        pre_execute=refuse_others,
        table="{{ params.table }}",
        consumer_group="{{ params.consumer_group }}",
        stage="{{ params.stage or '' }}",
        reason="{{ params.reason or '' }}",
        limit="{{ params.limit or '' }}",
        format="{{ params.format }}",
        schema="{{ params.schema or '' }}",
        unknown_fields="{{ params.unknown_fields }}",
        schema_evolution="{{ params.schema_evolution }}",
        tombstones="{{ params.tombstones }}",
        key_format="{{ params.key_format or '' }}",
        envelope="{{ params.envelope or '' }}",
        schema_registry="{{ params.schema_registry or '' }}",
        writer_schemas="{{ params.writer_schemas | tojson if params.writer_schemas else '' }}",
        csv_delimiter="{{ params.csv_delimiter }}",
        unavailable_placeholder="{{ params.unavailable_placeholder }}",
        unavailable_values="{{ params.unavailable_values }}",
        rename_columns="{{ params.rename_columns or '' }}",
        timestamps_finer="{{ params.timestamps_finer }}",
        sql="{{ params.sql or '' }}",
        sql_input="{{ params.sql_input }}",
        kafka_conn_id="{{ params.kafka_conn_id }}",
        iceberg_conn_id="{{ params.iceberg_conn_id }}",
    )
