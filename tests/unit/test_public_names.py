"""What DAGs, programs and documentation import stays where it is, whatever moves behind it."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[2]
# What the version of before the package was rearranged gave Airflow's database for waiting tasks: path and arguments.
KEPT_TRIGGERS = json.loads(Path(__file__).with_name("kept_triggers.json").read_text())
PUBLIC = {
    "airflow_lakestream.alerts": ["tell", "tell_deadline"],
    "airflow_lakestream.cli.app": ["main"],
    "airflow_lakestream.core.ledger": ["Counts", "Landing", "TopicEntry", "TopicIdentity"],
    "airflow_lakestream.core.policies": ["OnError", "Tombstones"],
    "airflow_lakestream.core.ranges": ["OffsetRange", "RangeSet"],
    "airflow_lakestream.core.records": ["RawBatch"],
    "airflow_lakestream.driver.lease": ["request_stop"],
    "airflow_lakestream.events": ["once_per_landing"],
    "airflow_lakestream.flink.script.bundled": ["flink_cdc_script", "flink_script"],
    "airflow_lakestream.get_provider_info": ["get_provider_info"],
    "airflow_lakestream.hooks.allowed_tables": ["refuse_others", "table_param"],
    "airflow_lakestream.hooks.iceberg": ["IcebergHook"],
    "airflow_lakestream.hooks.kafka": ["KafkaHook"],
    "airflow_lakestream.hooks.kafka_connect": ["KafkaConnectHook"],
    "airflow_lakestream.hooks.places": ["AirflowPlaces"],
    "airflow_lakestream.hooks.registry": ["registry_of"],
    "airflow_lakestream.hooks.spark": ["SparkHook"],
    "airflow_lakestream.iceberg.ledger_store": ["read_ledger"],
    # Serialized DAGs name links by their class.
    "airflow_lakestream.links": ["DriverLogLink", "SparkUILink", "TableLink", "TopicLink"],
    "airflow_lakestream.operators.asset_partitions": ["AssetPartitionsOperator"],
    "airflow_lakestream.operators.audit": ["LakestreamAuditOperator"],
    "airflow_lakestream.operators.kafka_connect": ["KafkaConnectOperator"],
    "airflow_lakestream.operators.kafka_extract": ["KafkaExtractOperator"],
    "airflow_lakestream.operators.kafka_extract_group": ["kafka_extract_group"],
    "airflow_lakestream.operators.kafka_mirror": ["KafkaMirrorOperator"],
    "airflow_lakestream.operators.maintain": ["LakestreamMaintainOperator"],
    "airflow_lakestream.operators.mirror_tag": ["LakestreamTagOperator"],
    "airflow_lakestream.operators.replay": ["LakestreamReplayOperator"],
    "airflow_lakestream.operators.spark_streaming_submit": ["SparkStreamingSubmitOperator"],
    "airflow_lakestream.operators.table_contents": ["TableContentsOperator"],
    "airflow_lakestream.pipelines": ["load"],
    "airflow_lakestream.retries": ["LakestreamRetryPolicy"],
    "airflow_lakestream.sensors.checkpoint_lag": ["CheckpointLagSensor"],
    "airflow_lakestream.sensors.iceberg_snapshot_freshness": ["IcebergSnapshotFreshnessSensor"],
    "airflow_lakestream.sensors.retention_risk": ["RetentionRiskSensor"],
    "airflow_lakestream.spark.app_config": ["AppConfig"],
    "airflow_lakestream.spark.apps": ["app_path", "package_zip"],
    "airflow_lakestream.spark.lease": ["Lease", "request_stop"],
    "airflow_lakestream.spark.maintenance": ["maintain", "open_maintenance_session"],
    "airflow_lakestream.spark.maintenance.config": ["MaintenanceConfig"],
    "airflow_lakestream.spark.maintenance.work": ["maintain", "open_maintenance_session"],
    "airflow_lakestream.spark.maintenance_config": ["MaintenanceConfig"],
    "airflow_lakestream.spark.packages": ["kafka_packages", "resolve"],
    "airflow_lakestream.spark.program": ["run_app", "run_program"],
    "airflow_lakestream.spark.progress": ["BatchProgress", "ProgressLog"],
    "airflow_lakestream.spark.session": ["open_session"],
    "airflow_lakestream.spark.stream": ["kafka_to_iceberg"],
    "airflow_lakestream.transform": ["SqlTransform"],
    # A deferred task's trigger is kept by this path in Airflow's database, also over an upgrade.
    "airflow_lakestream.triggers.kafka_lag_event": ["KafkaLagEventTrigger"],
    "airflow_lakestream.triggers.landing_event": ["LandingEventTrigger"],
    "airflow_lakestream.triggers.kafka_connect": ["KafkaConnectTrigger"],
    "airflow_lakestream.triggers.look": ["LookTrigger"],
    "airflow_lakestream.triggers.spark_stream": ["SparkStreamTrigger"],
    "airflow_lakestream.watching.proposals": ["Proposing"],
}


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_where_they_were(module: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in PUBLIC[module] if not hasattr(found, name)] == []


def test_what_the_documentation_dags_and_programs_import_is_on_the_list() -> None:
    pages = [CHECKOUT / "README.md", *CHECKOUT.glob("docs/**/*.md"), *CHECKOUT.glob("dags/*.py")]
    text = "".join(page.read_text() for page in (*pages, *CHECKOUT.glob("spark_apps/*.py")))
    imports = re.findall(r"from (airflow_lakestream[\w.]*) import (\w+(?:, \w+)*)", text)
    imported = {(module, name) for module, names in imports for name in names.split(", ")}
    assert len(imported) > 10
    assert sorted(imported - {(module, name) for module in PUBLIC for name in PUBLIC[module]}) == []


@pytest.mark.parametrize(("path", "arguments"), KEPT_TRIGGERS)
def test_a_waiting_task_of_an_earlier_version_goes_on(path: str, arguments: dict[str, Any]) -> None:
    module, _, name = path.rpartition(".")
    trigger = getattr(importlib.import_module(module), name)(**arguments)
    # As it was written: also an earlier triggerer takes it.
    assert trigger.serialize() == (path, arguments)


def test_a_page_shows_each_picture() -> None:
    text = "".join(path.read_text() for path in [CHECKOUT / "README.md", *(CHECKOUT / "docs").rglob("*.md")])
    assert [path.name for path in (CHECKOUT / "docs" / "images").iterdir() if f"images/{path.name}" not in text] == []
