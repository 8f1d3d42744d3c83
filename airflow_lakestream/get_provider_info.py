"""Provider description for Airflow's ProvidersManager, without imports, as it runs in every Airflow process."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description by Airflow's provider_info schema."""
    return {
        "package-name": "airflow-lakestream",
        "name": "Lakestream",
        "description": "Lands Kafka topics in Iceberg and Delta tables, exactly once, with the proof in the table.",
        "integrations": [
            {"integration-name": "Lakestream", "tags": ["software"]},
            {"integration-name": "Apache Kafka", "external-doc-url": "https://kafka.apache.org/", "tags": ["apache"]},
            {"integration-name": "Apache Flink", "external-doc-url": "https://flink.apache.org/", "tags": ["apache"]},
            {
                "integration-name": "Apache Iceberg",
                "external-doc-url": "https://iceberg.apache.org/",
                "tags": ["apache"],
            },
            {"integration-name": "Delta Lake", "external-doc-url": "https://delta.io/", "tags": ["software"]},
            {"integration-name": "Apache Spark", "external-doc-url": "https://spark.apache.org/", "tags": ["apache"]},
        ],
        "operators": [
            {
                "integration-name": "Lakestream",
                "python-modules": [
                    "airflow_lakestream.operators.asset_partitions",
                    "airflow_lakestream.operators.audit",
                    "airflow_lakestream.operators.flink_script",
                    "airflow_lakestream.operators.flink_sql",
                    "airflow_lakestream.operators.kafka_connect",
                    "airflow_lakestream.operators.kafka_extract",
                    "airflow_lakestream.operators.kafka_extract_group",
                    "airflow_lakestream.operators.kafka_mirror",
                    "airflow_lakestream.operators.maintain",
                    "airflow_lakestream.operators.mirror_tag",
                    "airflow_lakestream.operators.replay",
                    "airflow_lakestream.operators.spark_streaming_submit",
                    "airflow_lakestream.operators.table_contents",
                ],
            }
        ],
        "sensors": [
            {
                "integration-name": "Lakestream",
                "python-modules": [
                    "airflow_lakestream.sensors.checkpoint_lag",
                    "airflow_lakestream.sensors.iceberg_snapshot_freshness",
                    "airflow_lakestream.sensors.retention_risk",
                ],
            }
        ],
        "hooks": [
            {
                "integration-name": "Lakestream",
                "python-modules": [
                    "airflow_lakestream.hooks.flink",
                    "airflow_lakestream.hooks.iceberg",
                    "airflow_lakestream.hooks.kafka",
                    "airflow_lakestream.hooks.kafka_connect",
                    "airflow_lakestream.hooks.registry",
                    "airflow_lakestream.hooks.spark",
                ],
            }
        ],
        "triggers": [
            {
                "integration-name": "Lakestream",
                "python-modules": [
                    "airflow_lakestream.triggers.kafka_lag_event",
                    "airflow_lakestream.triggers.landing_event",
                    "airflow_lakestream.triggers.flink_stream",
                    "airflow_lakestream.triggers.kafka_connect",
                    "airflow_lakestream.triggers.look",
                    "airflow_lakestream.triggers.spark_stream",
                ],
            }
        ],
        "extra-links": [
            "airflow_lakestream.links.DriverLogLink",
            "airflow_lakestream.links.FlinkLink",
            "airflow_lakestream.links.SparkUILink",
            "airflow_lakestream.links.TableLink",
            "airflow_lakestream.links.TopicLink",
        ],
    }
