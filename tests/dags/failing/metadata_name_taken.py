"""A schema with a column of the name of a metadata column."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator

EXPECTED = ("_kafka_offset",)

with DAG(dag_id="metadata_name_taken", schedule=None, params={"topic": ""}) as dag:
    KafkaExtractOperator(
        task_id="land",
        topic="{{ params.topic }}",
        schema="n bigint, _kafka_offset string",
        table="lake.t",
        retries=2,
        retry_delay=0,
    )
