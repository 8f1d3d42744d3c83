"""A policy for bad records that does not exist, from the run's form."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator

EXPECTED = ("on_error", "ignore", "reject", "fail", "skip")

with DAG(dag_id="unknown_on_error", schedule=None, params={"topic": "", "on_error": "ignore"}) as dag:
    KafkaExtractOperator(
        task_id="land",
        topic="{{ params.topic }}",
        on_error="{{ params.on_error }}",
        table="lake.t",
        retries=2,
        retry_delay=0,
    )
