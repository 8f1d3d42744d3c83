"""A topic that nobody has created."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator

EXPECTED = ("no-such-topic", "does not exist", "kafka_default")

with DAG(dag_id="missing_topic", schedule=None, params={"topic": ""}) as dag:
    KafkaExtractOperator(
        task_id="land",
        topic="no-such-topic",
        table="lake.t",
        retries=2,
        retry_delay=0,
    )
