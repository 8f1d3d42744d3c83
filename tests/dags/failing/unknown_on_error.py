"""A policy for bad records that is not there yet."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator

EXPECTED = ("on_error", "reject", "fail")

with DAG(dag_id="unknown_on_error", schedule=None, params={"topic": ""}) as dag:
    KafkaExtractOperator(
        task_id="land",
        topic="{{ params.topic }}",
        on_error="reject",
        table="lake.t",
        retries=2,
        retry_delay=0,
    )
