"""A partition transform that Iceberg does not have."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator

EXPECTED = ("partition_by", "weeks")

with DAG(dag_id="invalid_partition_by", schedule=None, params={"topic": ""}) as dag:
    KafkaExtractOperator(
        task_id="land",
        topic="{{ params.topic }}",
        partition_by=["weeks(timestamp)"],
        table="lake.t",
        retries=2,
        retry_delay=0,
    )
