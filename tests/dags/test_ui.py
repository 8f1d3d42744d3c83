"""What the wheel adds to Airflow's own web server: the documentation, under a link of its menu."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.airflow_home import CHECKOUT

SERVE = """
import json, sys
from airflow.api_fastapi.app import create_app
from starlette.testclient import TestClient

client = TestClient(create_app(apps="core"))
said = {path: (answer.status_code, answer.text) for path in sys.argv[1:] for answer in [client.get(path)]}
print(json.dumps(said))
"""

IMPORT = """
import sys
import airflow.configuration, airflow.plugins_manager
before = set(sys.modules)
import airflow_lakestream.ui.plugin as plugin
print(sorted({name.split(".")[0] for name in set(sys.modules) - before}))
print(sorted({"fastapi", "starlette", "pyiceberg", "pyarrow", "confluent_kafka"} & (set(sys.modules) - before)))
print(sorted(name for name in sys.modules if name.startswith("airflow_lakestream.ui.")))
view = plugin.LakestreamPlugin.external_views[0]
print(view["href"])
import airflow_lakestream.ui.app
print(sorted({"pyiceberg", "confluent_kafka"} & (set(sys.modules) - before)))
"""


def python(code: str, *arguments: str, wheel: Path | None = None) -> str:
    path = {"PYTHONPATH": str(wheel)} if wheel else {}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **path},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of an unpacked wheel, as an installation has it."""
    out = tmp_path_factory.mktemp("wheel")
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "build", "--wheel", "--offline", "--out-dir", out, CHECKOUT], check=True, capture_output=True)
    [built] = out.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(out / "installed")
    return out / "installed"


def test_the_documentation_is_served_from_the_wheel(airflow: object, wheel: Path) -> None:
    pages = [f"/lakestream/docs/{page}" for page in ("index.html", "start.html", "operators/kafka_extract.html")]
    said = json.loads(python(SERVE, *pages, "/lakestream/docs/nowhere.html", wheel=wheel).splitlines()[-1])
    assert [said[page][0] for page in pages] == [200] * 3
    assert "from a clone of the repository, and read the table in three ways" in said[pages[1]][1]
    assert said["/lakestream/docs/nowhere.html"][0] == 404


def test_an_installation_without_the_site_says_how_to_build_it(airflow: object, wheel: Path, tmp_path: Path) -> None:
    page = "/lakestream/docs/index.html"
    shutil.copytree(wheel, tmp_path / "checkout", ignore=shutil.ignore_patterns("site"))
    [status, text] = json.loads(python(SERVE, page, wheel=tmp_path / "checkout").splitlines()[-1])[page]
    assert status == 404
    assert "make docs" in text

    # There it is built beside the package.
    (tmp_path / "checkout" / ".site").mkdir()
    (tmp_path / "checkout" / ".site" / "index.html").write_text("the pages")
    said = json.loads(python(SERVE, page, wheel=tmp_path / "checkout").splitlines()[-1])
    assert said[page] == [200, "the pages"]


def test_the_plugin_loads_nothing_heavy(airflow: object) -> None:
    loaded, heavy, ours, href, served = python(IMPORT).splitlines()[-5:]
    assert loaded == "['airflow_lakestream']"
    assert heavy == "[]"
    # Nor the page's own modules, which load FastAPI and Airflow's models.
    assert ours == "['airflow_lakestream.ui.plugin']"
    assert href == "/lakestream/docs/index.html"
    # Nor does the API server ever open a topic or a table.
    assert served == "[]"
