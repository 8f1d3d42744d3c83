"""Which configurations are of the same stream."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_lakestream.registry.config import RegistryConfig
from airflow_lakestream.spark.app_config import AppConfig

CONFIG = AppConfig(
    app="kafka_to_iceberg",
    kafka={"bootstrap.servers": "b:9092", "security.protocol": "SASL_SSL", "sasl.password": "one"},
    catalog={"name": "c", "properties": {"type": "sql", "uri": "postgresql://u:one@h/db", "s3.secret": "one"}},
    landing={
        "topic": "clicks",
        "table": "lake.clicks",
        "consumer_group": "g",
        "format": "avro",
        "schema_registry": RegistryConfig("http://r", username="u", password="one"),
    },
    checkpoint_location="/c",
    owner="one",
)


def test_a_checkpoint_belongs_to_app_topic_table_and_group() -> None:
    assert CONFIG.inputs == {"app": "kafka_to_iceberg", "topic": "clicks", "table": "lake.clicks", "group": "g"}


def test_new_passwords_and_another_submitter_are_the_same_stream() -> None:
    other = replace(
        CONFIG,
        kafka={**CONFIG.kafka, "sasl.password": "two"},
        catalog={"name": "c", "properties": {"type": "sql", "uri": "postgresql://u:two@h/db", "s3.secret": "two"}},
        landing={**CONFIG.landing, "schema_registry": RegistryConfig("http://r", username="u", password="two")},
        owner="two",
    )
    assert other.fingerprint == CONFIG.fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"kafka": {"bootstrap.servers": "other:9092"}},
        {"catalog": {"name": "other", "properties": CONFIG.catalog_properties}},
        {"catalog": {"name": "c", "properties": {**CONFIG.catalog_properties, "uri": "postgresql://u:one@h/other"}}},
        {"landing": {**CONFIG.landing, "on_error": "fail"}},
        {"landing": {**CONFIG.landing, "schema_registry": RegistryConfig("http://other")}},
        {"trigger": "10 seconds"},
        {"max_batches": 3},
        {"max_offsets_per_trigger": 100},
        {"spark": {"spark.sql.shuffle.partitions": "1"}},
    ],
)
def test_whatever_changes_what_lands_is_another_stream(change: dict) -> None:
    assert replace(CONFIG, **change).fingerprint != CONFIG.fingerprint
