"""Without OpenLineage's provider nothing of it is imported, and nothing fails."""

from __future__ import annotations

import subprocess
import sys

import pytest
from airflow.sdk import DAG

from airflow_lakestream.operators.kafka_extract_group import kafka_extract_group
from airflow_lakestream.operators.lineage import is_lineage_enabled
from airflow_lakestream.operators.spark_streaming_submit import SparkStreamingSubmitOperator

_WITHOUT = """
import sys

# Airflow itself asks each installed provider what it has.
import airflow
for name in [name for name in sys.modules if "openlineage" in name]:
    del sys.modules[name]

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("openlineage", "airflow.providers.openlineage")):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())

from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator
from airflow_lakestream.operators.lineage import is_lineage_enabled
from airflow_lakestream.operators.spark_streaming_submit import SparkStreamingSubmitOperator
from airflow_lakestream.operators.lineage import LineageKeeping

land = KafkaExtractOperator(task_id="land", topic="t", table="lake.t")
stream = SparkStreamingSubmitOperator(task_id="stream", application="a.py", checkpoint_location="/c")
# Who looks after the driver is not even asked.
with LineageKeeping(stream, None):
    pass
print(is_lineage_enabled(), [one.get_openlineage_facets_on_complete(None) for one in (land, stream)])
print([one.get_openlineage_facets_on_failure(None) for one in (land, stream)])
print([name for name in sys.modules if "openlineage" in name])
"""


def test_without_the_provider_nothing_is_kept_and_nothing_imported() -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-3:] == ["False [None, None]", "[None, None]", "[]"]


@pytest.mark.parametrize("is_off", [True, False])
def test_facts_are_kept_only_where_events_go_somewhere(monkeypatch: pytest.MonkeyPatch, is_off: bool) -> None:
    monkeypatch.setattr("airflow.providers.openlineage.conf.is_disabled", lambda: is_off)
    assert is_lineage_enabled() is not is_off


def test_a_mapped_task_has_the_defaults_of_every_operator() -> None:
    with DAG("group") as dag:
        kafka_extract_group("group", topic="t", table="lake.t")
    read = dag.get_task("group.read")
    assert (read.inlets, read.outlets) == ([], [])


def test_a_stream_on_spark_tells_the_fields_that_its_columns_are_made_of() -> None:
    statement = "select id, name || site as label from {{ input }}"
    landing = {"topic": "t", "table": "lake.t", "sql": statement, "sql_input": "decoded"}
    columns = {"schema": "id bigint, name string, site string"}
    stream = SparkStreamingSubmitOperator(
        task_id="stream", dag=DAG("told"), app="kafka_to_iceberg", app_config=landing | columns
    )
    assert stream.column_sources() == {"id": ("id",), "label": ("name", "site")}
    for app, config in (
        ("kafka_to_iceberg", {"topic": "t", "table": "lake.t"} | columns),
        ("kafka_to_iceberg", {"topic": "t", "table": "lake.t", "sql": "select value as v from {{ input }}"}),
        ("maintain_iceberg", {"tables": ["lake.t"]}),
    ):
        other = SparkStreamingSubmitOperator(task_id="other", dag=DAG("told"), app=app, app_config=config)
        assert other.column_sources() == {}
