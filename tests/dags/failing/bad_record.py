"""A record that is no JSON document, behind two good ones."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator

EXPECTED = ("[0] offset 2",)

with DAG(dag_id="bad_record", schedule=None, params={"topic": ""}) as dag:
    KafkaExtractOperator(
        task_id="land",
        topic="{{ params.topic }}",
        schema="n bigint",
        on_error="fail",
        table="lake.t",
        retries=2,
        retry_delay=0,
    )
