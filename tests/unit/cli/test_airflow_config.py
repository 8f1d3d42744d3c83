"""Places of DAG files by Airflow's variables and its file, without an import of Airflow; one is compared with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_lakestream.cli.connections import airflow_settings

LOCAL = "airflow.dag_processing.bundles.local.LocalDagBundle"
GIT = {"name": "ours", "classpath": "airflow.providers.git.bundles.git.GitDagBundle", "kwargs": {"subdir": "dags"}}
# Airflow's own answer, by its own import: the folder of each local bundle.
ASKED = """
from airflow.dag_processing.bundles.manager import DagBundlesManager
for bundle in DagBundlesManager().get_all_dag_bundles():
    print(bundle.path)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("AIRFLOW_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def bundles(*rows: dict[str, object]) -> str:
    return f"[dag_processor]\ndag_bundle_config_list = {json.dumps(rows)}\n"


TWO = bundles(
    {"name": "a", "classpath": LOCAL, "kwargs": {}}, {"name": "b", "classpath": LOCAL, "kwargs": {"path": "/b"}}
)
CASES = {
    "no file": ("", {}, ["{home}/airflow/dags"]),
    "the home": ("", {"AIRFLOW_HOME": "~/elsewhere"}, ["{home}/elsewhere/dags"]),
    "the file": ("[core]\ndags_folder = ~/mine\n", {}, ["{home}/mine"]),
    "a variable in the file": ("[core]\ndags_folder = $PLACE/dags\n", {"PLACE": "/srv"}, ["/srv/dags"]),
    "a variable": ("[core]\ndags_folder = /a\n", {"AIRFLOW__CORE__DAGS_FOLDER": "/b"}, ["/b"]),
    "a bundle": (bundles({"name": "a", "classpath": LOCAL, "kwargs": {}}), {}, ["{home}/airflow/dags"]),
    "two bundles": (f"[core]\ndags_folder = $PLACE/dags\n{TWO}", {"PLACE": "/srv"}, ["/srv/dags", "/b"]),
}


@pytest.mark.parametrize("case", CASES)
def test_the_places_are_those_of_airflow(case: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, variables, folders = CASES[case]
    (home / "airflow").mkdir()
    (home / "airflow/airflow.cfg").write_text(config)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings = airflow_settings()
    for folder in folders:
        place = folder.format(home=home)
        assert settings.has_dags_at(Path(place, "teams/orders_to_lake.py"))
        assert not settings.has_dags_at(Path(f"{place}-2/orders_to_lake.py"))
        assert place in settings.dag_place or not (config or variables)


def test_airflow_itself_reads_the_same_places(home: Path) -> None:
    config, variables, folders = CASES["two bundles"]
    (home / "airflow").mkdir()
    (home / "airflow/airflow.cfg").write_text(config)
    environment = {**os.environ, **variables, "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split()[-2:] == folders


def test_a_place_that_is_no_folder_and_an_unknown_airflow(home: Path) -> None:
    assert airflow_settings().dag_place == "Airflow's DAG folder, if it is not there yet"
    (home / "airflow").mkdir()
    file = home / "airflow/airflow.cfg"
    file.write_text(bundles(GIT))
    assert airflow_settings().dag_place == "the DAG bundle ours"
    assert not airflow_settings().has_dags_at(home / "airflow/dags/orders_to_lake.py")
    file.write_text("?")
    with pytest.raises(ValueError, match=r"airflow\.cfg can't be read as a configuration"):
        airflow_settings()
