"""The provider as Airflow finds it: by its entry point, through Airflow's own ProvidersManager."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

import airflow_lakestream
from airflow_lakestream.get_provider_info import get_provider_info

# Importing any of these in every Airflow process, the API server included, is what users would feel.
HEAVY = ("airflow", "pyarrow", "pyiceberg", "confluent_kafka", "pyspark", "pendulum", "airflow_lakestream.core")


@pytest.fixture(scope="module")
def found():
    from airflow.providers_manager import ProvidersManager

    providers = ProvidersManager().providers
    assert "airflow-lakestream" in providers, f"Airflow found only {sorted(providers)}"
    return providers["airflow-lakestream"]


def test_airflow_finds_the_provider(found) -> None:
    assert found.version == airflow_lakestream.__version__
    assert get_provider_info().items() <= found.data.items()


def test_the_info_is_valid_by_airflows_own_schema() -> None:
    from airflow.providers_manager import _create_provider_info_schema_validator

    _create_provider_info_schema_validator().validate(get_provider_info())


def test_the_description_names_what_it_is_for() -> None:
    info = get_provider_info()
    assert all(name in info["description"] for name in ("Kafka", "Iceberg", "Delta"))
    names = {one["integration-name"] for one in info["integrations"]}
    assert {"Apache Kafka", "Apache Iceberg", "Delta Lake", "Apache Spark"} < names


def test_the_schema_check_would_notice_a_mistake() -> None:
    from airflow.providers_manager import _create_provider_info_schema_validator
    from jsonschema import ValidationError

    broken = get_provider_info()
    del broken["name"]
    with pytest.raises(ValidationError):
        _create_provider_info_schema_validator().validate(broken)


def test_the_entry_point_imports_nothing_heavy() -> None:
    code = (
        "import sys; from importlib.metadata import entry_points\n"
        "all = entry_points(group='apache_airflow_provider')\n"
        "[found] = [e for e in all if e.value.startswith('airflow_lakestream.')]\n"
        "found.load()()\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_there_is_one_entry_point() -> None:
    mine = [e for e in entry_points(group="apache_airflow_provider") if e.value.startswith("airflow_lakestream")]
    assert [(e.name, e.value) for e in mine] == [
        ("provider_info", "airflow_lakestream.get_provider_info:get_provider_info")
    ]


@pytest.mark.parametrize("kind", ["operators", "sensors", "hooks", "triggers"])
def test_what_the_info_lists_is_there_and_nothing_is_missing(kind: str) -> None:
    listed = {module for entry in get_provider_info().get(kind, ()) for module in entry["python-modules"]}
    package = importlib.import_module(f"airflow_lakestream.{kind}")
    found = pkgutil.iter_modules(package.__path__)
    there = {f"airflow_lakestream.{kind}.{module.name}" for module in found if not module.ispkg}
    for module in listed:
        importlib.import_module(module)
    # What operators share among themselves is no operator.
    own = ("arguments", "base", "landing", "lineage", "rendering", "sql_template")
    shared = {f"airflow_lakestream.operators.{name}" for name in own}
    shared |= {
        f"airflow_lakestream.hooks.{name}"
        for name in ("allowed_tables", "connections", "database", "kubernetes", "lake", "places")
    }
    shared |= {f"airflow_lakestream.hooks.spark_{name}" for name in ("cluster", "kubernetes", "submission")}
    shared |= {f"airflow_lakestream.hooks.{name}" for name in ("dags", "store", "variables")}
    shared |= {"airflow_lakestream.sensors.base"}
    shared |= {f"airflow_lakestream.triggers.{name}" for name in ("driver", "logs", "patience", "shared_looks")}
    shared |= {f"airflow_lakestream.triggers.{name}" for name in ("landing_cursor", "landing_stream")}
    assert there - shared == listed


def test_the_links_that_the_info_lists_are_there() -> None:
    for path in get_provider_info()["extra-links"]:
        module, _, name = path.rpartition(".")
        assert getattr(importlib.import_module(module), name)().name


def test_no_deprecated_way_of_describing_connections_is_used(found) -> None:
    # The connections are those of the official providers: ours would take theirs over in the forms of the UI.
    assert not {"connection-types", "hook-class-names"} & set(found.data)


PARSED = (
    "operators.kafka_connect",
    "operators.kafka_extract",
    "operators.kafka_mirror",
    "operators.spark_streaming_submit",
    "sensors.checkpoint_lag",
    "triggers.kafka_lag_event",
    "triggers.landing_event",
    "events",
)
# Airflow itself is imported once.
LOADED = """
import importlib, os, sys, traceback, airflow.sdk

before = set(sys.modules)
for module in sys.argv[1:]:
    if not os.fork():
        try:
            importlib.import_module(f"airflow_lakestream.{module}")
            unwanted = {"pyiceberg", "pyarrow", "pandas", "confluent_kafka", "duckdb", "pyspark"}
            if module.startswith("operators.kafka_") and module != "operators.kafka_connect":
                unwanted |= {"airflow_lakestream.core.ledger"}
            print("loaded:", module, *sorted(unwanted & (set(sys.modules) - before)), flush=True)
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.wait()
"""


@pytest.mark.long
def test_a_dag_file_is_parsed_without_the_heavy_libraries() -> None:
    # The ledger's modules take as long as the rest of a landing's operator.
    done = subprocess.run([sys.executable, "-c", LOADED, *PARSED], capture_output=True, text=True, check=True)
    found = [line.removeprefix("loaded: ") for line in done.stdout.splitlines() if line.startswith("loaded: ")]
    assert found == list(PARSED), done.stderr[-3000:]
