"""An Iceberg connection that nobody has made."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator

EXPECTED = ("iceberg_conn_id", "iceberg_nowhere", "warehouse")

with DAG(dag_id="missing_iceberg_connection", schedule=None, params={"topic": ""}) as dag:
    KafkaExtractOperator(
        task_id="land",
        topic="{{ params.topic }}",
        iceberg_conn_id="iceberg_nowhere",
        table="lake.t",
        retries=2,
        retry_delay=0,
    )
