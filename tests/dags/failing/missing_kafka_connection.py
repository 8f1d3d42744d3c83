"""A Kafka connection that nobody has made."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator

EXPECTED = ("kafka_conn_id", "kafka_nowhere", "bootstrap.servers")

with DAG(dag_id="missing_kafka_connection", schedule=None, params={"topic": ""}) as dag:
    KafkaExtractOperator(
        task_id="land",
        topic="{{ params.topic }}",
        kafka_conn_id="kafka_nowhere",
        table="lake.t",
        retries=2,
        retry_delay=0,
    )
