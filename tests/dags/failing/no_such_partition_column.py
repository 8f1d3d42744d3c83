"""Partitions by a column that no record has."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator

EXPECTED = ("partition_by", "when")

with DAG(dag_id="no_such_partition_column", schedule=None, params={"topic": ""}) as dag:
    KafkaExtractOperator(
        task_id="land",
        topic="{{ params.topic }}",
        partition_by=["days(when)"],
        table="lake.t",
        retries=2,
        retry_delay=0,
    )
