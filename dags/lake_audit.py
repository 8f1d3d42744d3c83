"""Proves that a table has each record of a topic once, and changes nothing.

The page of streams in Airflow has a button that starts it for one stream. Form and task take the tables that the
Airflow variable `lakestream_tables` lists, by names or patterns; without it, the tables of `lakestream_streams`, and
without either the namespace `lake`. Damage fails the run, and its log and XCom have the offsets.
"""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_lakestream.hooks.allowed_tables import refuse_others, table_param
from airflow_lakestream.operators.audit import LakestreamAuditOperator

with DAG(
    dag_id="lake_audit",
    schedule=None,
    tags=["lakestream"],
    description=__doc__.partition("\n")[0],
    doc_md=__doc__,
    params={
        "table": table_param(
            "lake.clickstream", "Iceberg table, as namespace.table, or the path or URI of a Delta table."
        ),
        "consumer_group": Param(
            "clickstream_to_lake",
            type="string",
            minLength=1,
            title="Consumer group",
            description="Whose ledger is compared: the id of the DAG that lands, unless it has another.",
        ),
        "topic": Param(
            None,
            type=["null", "string"],
            title="Topic",
            description="One topic of the ledger; empty for all of them.",
        ),
        "full": Param(
            False,
            type="boolean",
            title="Every row",
            description="Read every row's position, and the topic; else the statistics of the files alone.",
        ),
        "landing": Param(
            None,
            type=["null", "object"],
            title="Arguments of a table by key",
            description="For every row of a mirror: the arguments of its landing that decide its rows, "
            'such as {"format": "avro", "delete_when": "op = \'D\'"}.',
        ),
        "kafka_conn_id": Param(
            "kafka_default", type="string", minLength=1, title="Kafka connection", description="For every row only."
        ),
        "iceberg_conn_id": Param(
            "iceberg_default",
            type="string",
            minLength=1,
            title="Iceberg connection",
            description="The catalog of Iceberg tables.",
        ),
        "storage_conn_id": Param(
            None,
            type=["null", "string"],
            title="Storage connection",
            description="Of a Delta table's store; empty for what the environment has.",
        ),
    },
) as dag:
    LakestreamAuditOperator(
        task_id="audit",
        pre_execute=refuse_others,
        table="{{ params.table }}",
        consumer_group="{{ params.consumer_group }}",
        topic="{{ params.topic or '' }}",
        full="{{ params.full }}",
        landing="{{ (params.landing or {}) | tojson }}",
        kafka_conn_id="{{ params.kafka_conn_id }}",
        iceberg_conn_id="{{ params.iceberg_conn_id }}",
        storage_conn_id="{{ params.storage_conn_id or '' }}",
    )
