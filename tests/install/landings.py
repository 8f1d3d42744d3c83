"""A DAG that lands by each engine that the extras of this environment bring; run as a program it says what has landed.

It is copied into an Airflow in which nothing but the wheel is installed: it imports nothing of the checkout.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

EXTRAS = os.environ["INSTALLED_EXTRAS"].split(",")
TOPIC, PROTOBUF, REGISTRY = (os.environ[name] for name in ("TOPIC", "PROTOBUF_TOPIC", "REGISTRY"))
HOME = Path(os.environ["AIRFLOW_HOME"])
SQL = "SELECT json_value(value, '$.id')::BIGINT AS id, json_value(value, '$.name') AS name FROM {{ input }}"
COLUMNS = "id bigint, name string"
ICEBERG = [
    "extract",
    "grouped",
    *(["spark"] if "spark" in EXTRAS else []),
    *(["proto"] if "protobuf" in EXTRAS else []),
]


def landed() -> dict[str, int]:
    """Return how many rows each table has."""
    from pyiceberg.catalog import load_catalog

    def rows(conn_id: str, name: str) -> int:
        properties = json.loads(os.environ[f"AIRFLOW_CONN_{conn_id.upper()}"])["extra"]
        return int(load_catalog(conn_id, **properties).load_table(f"lake.{name}").scan().to_arrow().num_rows)

    found = {name: rows("iceberg_default", name) for name in ICEBERG}
    if "hdfs" in EXTRAS:
        found["hdfs"] = rows("iceberg_hdfs", "hdfs")
    if "delta" in EXTRAS:
        from deltalake import DeltaTable

        found["delta"] = DeltaTable(str(HOME / "delta")).to_pyarrow_table().num_rows
    if "openlineage" in EXTRAS:
        told = (HOME / "events.jsonl").read_text().splitlines()
        found["openlineage"] = sum(1 for one in told if "outputs" in one and "lake.extract" in one)
    return found


if __name__ == "__main__":
    print(json.dumps(landed()), flush=True)
    # A thread of PyArrow that releases a buffer while Python ends itself would abort the program.
    os._exit(0)
else:
    from airflow.sdk import DAG

    from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator
    from airflow_lakestream.operators.kafka_extract_group import kafka_extract_group

    with DAG("landings", schedule=None):
        KafkaExtractOperator(
            task_id="extract",
            topic=TOPIC,
            table="lake.extract",
            sql=SQL,
            checks={"sql": "SELECT * FROM landing WHERE id < 0"},
        )
        kafka_extract_group("group", tasks=2, topic=TOPIC, table="lake.grouped", schema=COLUMNS)
        if "delta" in EXTRAS:
            KafkaExtractOperator(
                task_id="delta", topic=TOPIC, table=str(HOME / "delta"), table_format="delta", schema=COLUMNS
            )
        if "hdfs" in EXTRAS:
            KafkaExtractOperator(
                task_id="hdfs", topic=TOPIC, table="lake.hdfs", iceberg_conn_id="iceberg_hdfs", schema=COLUMNS
            )
        if "protobuf" in EXTRAS:
            KafkaExtractOperator(
                task_id="protobuf",
                topic=PROTOBUF,
                table="lake.proto",
                format="protobuf",
                schema_registry={"url": REGISTRY},
            )
        if "spark" in EXTRAS:
            from airflow_lakestream.operators.spark_streaming_submit import SparkStreamingSubmitOperator

            SparkStreamingSubmitOperator(
                task_id="spark",
                app="kafka_to_iceberg",
                app_config={"topic": TOPIC, "table": "lake.spark", "schema": COLUMNS},
                checkpoint_location=str(HOME / "checkpoint"),
                trigger="available_now",
            )
