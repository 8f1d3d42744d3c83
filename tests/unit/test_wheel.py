"""The wheel that users install: built from the sdist, and without the documentation's site from the checkout."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import HeaderParser
from functools import cache
from pathlib import Path

import pytest

import airflow_lakestream
from dev.archives import unpack

pytestmark = pytest.mark.long

CHECKOUT = Path(__file__).parents[2]
VERSION = airflow_lakestream.__version__
INFO = f"airflow_lakestream-{VERSION}.dist-info"


SITE = "airflow_lakestream/site/"


def build(source: Path, out: Path, kind: str, **more: str) -> Path:
    """Build with uv, which brings hatchling from its cache: `make setup` put it there."""
    uv = Path(sys.executable).with_name("uv")
    command = [uv, "build", f"--{kind}", "--offline", "--out-dir", out, source]
    environment = {**os.environ, **more}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=out, env=environment)
    assert done.returncode == 0, done.stderr
    [built] = out.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(CHECKOUT, tmp_path_factory.mktemp("sdist"), "sdist")


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        unpack(archive, folder)
    return build(folder / f"airflow_lakestream-{VERSION}", tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def of_checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the wheel as the checkout makes it, but for the site: to build that takes longer than all the rest."""
    return build(CHECKOUT, tmp_path_factory.mktemp("of_checkout"), "wheel", HATCH_BUILD_NO_HOOKS="true")


@cache
def content(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


def metadata(wheel: Path) -> Message:
    return HeaderParser().parsestr(content(wheel)[f"{INFO}/METADATA"].decode())


def in_git(folder: str) -> set[str]:
    listed = subprocess.run(["git", "ls-files", folder], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    return set(listed.stdout.split())


def test_dags_and_spark_apps_travel_where_airflow_and_the_operators_look(wheel: Path) -> None:
    names = set(content(wheel))
    for folder, place in (("dags", "example_dags"), ("spark_apps", "spark_apps")):
        expected = {f"airflow_lakestream/{place}/{Path(file).relative_to(folder)}" for file in in_git(folder)}
        assert expected
        assert expected <= names


def test_the_documented_lines_copy_the_bundled_dags(of_checkout: Path, tmp_path: Path) -> None:
    section = (CHECKOUT / "docs" / "deploy.md").read_text().partition("## The bundled DAGs\n")[2].partition("\n## ")[0]
    lines = [line.strip() for line in section.splitlines() if line.startswith("    ")]
    installed, home = tmp_path / "installed", tmp_path / "home"
    with zipfile.ZipFile(of_checkout) as archive:
        archive.extractall(installed)
    (home / "dags").mkdir(parents=True)
    python = str(Path(sys.executable).parent)
    environment = {"PYTHONPATH": str(installed), "AIRFLOW_HOME": str(home), "PATH": f"{python}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-ec", "\n".join(lines)], env=environment, cwd=tmp_path, check=True)
    copied = {file.name: file.read_bytes() for file in (home / "dags").iterdir()}
    assert copied == {name: (CHECKOUT / "dags" / name).read_bytes() for name in copied}
    assert {f"{name}.py" for name in ("supervise_lakestream", "lake_audit", "lake_replay")} == set(copied)


def test_nothing_but_the_package_is_inside(wheel: Path, of_checkout: Path) -> None:
    for name in (*content(wheel), *content(of_checkout)):
        top, *below = Path(name).parts
        assert top in ("airflow_lakestream", INFO), name
        assert not {"tests", "dev", ".dev", "__pycache__"} & set(below), name
        assert not name.endswith((".pyc", ".db", ".log")), name


def test_every_module_of_the_package_is_inside(wheel: Path) -> None:
    assert in_git("airflow_lakestream") <= set(content(wheel))


def test_the_search_of_the_site_knows_other_words(wheel: Path) -> None:
    index = json.loads(content(wheel)[f"{SITE}search/search_index.json"])
    tags = {tag: one["location"] for one in index["docs"] for tag in one.get("tags", ())}
    assert tags["dead letter"] == "rejects.html"
    assert tags["upsert"] == "upsert.html"
    assert tags["GDPR"] == "maintenance.html#delete-personal-data"
    assert tags["compaction"] == "maintenance.html"


def test_airflow_will_find_the_provider(wheel: Path) -> None:
    entry_points = content(wheel)[f"{INFO}/entry_points.txt"].decode()
    assert "[apache_airflow_provider]" in entry_points
    assert "provider_info = airflow_lakestream.get_provider_info:get_provider_info" in entry_points


def test_the_metadata_names_version_license_and_extras(wheel: Path) -> None:
    found = metadata(wheel)
    assert (found["Name"], found["Version"]) == ("airflow-lakestream", VERSION)
    assert found["License-Expression"] == "Apache-2.0"
    assert f"{INFO}/licenses/LICENSE" in content(wheel)
    # An index shows them as links.
    assert [one for one in found.get_all("Project-URL", []) if not re.match(r"[^,]+, https?://", one)] == []
    assert {"spark", "all"} <= set(found.get_all("Provides-Extra"))
    spark = [line for line in found.get_all("Requires-Dist") if "extra == 'spark'" in line]
    assert {re.split(r"[<>=;]", line)[0] for line in spark} == {
        "apache-airflow-providers-apache-spark",
        "obstore",
        "pyspark",
        "pyspark-client",
    }


def test_landing_needs_no_extra(wheel: Path) -> None:
    base = [line for line in metadata(wheel).get_all("Requires-Dist") if "extra ==" not in line]
    assert not [line for line in base if "pyspark" in line]
    assert any(line.startswith("pyiceberg[") for line in base)


def test_the_sdist_builds_the_same_wheel_as_the_checkout(wheel: Path, of_checkout: Path) -> None:
    assert {name: data for name, data in content(wheel).items() if not name.startswith(SITE)} == content(of_checkout)


def test_the_site_has_each_page_and_picture_of_the_documentation(wheel: Path) -> None:
    for file in in_git("docs"):
        page = f"{SITE}{file.removeprefix('docs/')}"
        if file.endswith(".md"):
            assert f"{page.removesuffix('.md')}.html" in content(wheel)
        else:
            assert content(wheel)[page] == (CHECKOUT / file).read_bytes()


def test_the_sdist_holds_only_what_is_in_git(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {
            str(Path(member.name).relative_to(f"airflow_lakestream-{VERSION}")) for member in archive if member.isfile()
        }
    tops = {Path(name).parts[0] for name in names}
    assert tops <= {
        "airflow_lakestream",
        "dags",
        "spark_apps",
        "tests",
        "dev",
        "docs",
        "Makefile",
        "README.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "LICENSE",
        "pyproject.toml",
        "PKG-INFO",
        ".gitignore",
    }
    assert not [name for name in names if "__pycache__" in name or name.startswith((".dev", ".venv"))]


def test_a_fresh_interpreter_runs_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    # As Spark does it: from the zip, with nothing of the checkout and no Airflow around.
    code = (
        "from airflow_lakestream.core.ranges import RangeSet; import airflow_lakestream, sys\n"
        "print(airflow_lakestream.__file__, 'airflow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(wheel)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [f"{wheel}/airflow_lakestream/__init__.py", "False"]
