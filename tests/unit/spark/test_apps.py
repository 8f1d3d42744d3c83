from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.spark.apps import app_path, apps, package_zip
from airflow_lakestream.spark.lake_settings import catalog_packages
from airflow_lakestream.spark.packages import (
    PROVEN,
    NoRoomForJars,
    PackagesMissing,
    PackagesUnavailable,
    SparkMixed,
    check_spark,
    cut_jars,
    installed_spark,
    kafka_packages,
    resolve,
)

# The module that each app begins with is imported once; each app starts in a fork.
STARTED = """
import gc, os, runpy, sys
sys.modules["airflow"] = None
import airflow_lakestream.spark.program
# At their ends the forks would walk through all of it.
gc.freeze()
for app in sys.argv[1:]:
    if not os.fork():
        sys.argv = [app, "--help"]
        runpy.run_path(app, run_name="__main__")
        os._exit(1)
    _, status = os.wait()
    print("ended:", os.waitstatus_to_exitcode(status), app, flush=True)
"""


@pytest.mark.long
def test_each_app_is_a_program_that_tells_how_it_is_called_without_airflow() -> None:
    assert apps() == sorted(path.stem for path in (Path(__file__).parents[3] / "spark_apps").glob("*.py"))
    paths = [app_path(name) for name in apps()]
    done = subprocess.run([sys.executable, "-c", STARTED, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rest = done.stdout
    for path in paths:
        said, ended, rest = rest.partition(f"ended: 0 {path}\n")
        assert ended, done.stderr
        assert "--config" in said


def test_an_unknown_app_names_the_nearest() -> None:
    with pytest.raises(InvalidArgument, match="Did you mean 'kafka_to_iceberg'"):
        app_path("kafka_2_iceberg")


def test_the_zip_has_what_executors_import_and_nothing_of_airflows(tmp_path: Path) -> None:
    path = package_zip(tmp_path)
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    assert not [name for name in names if "/operators/" in name or "/hooks/" in name]
    code = (
        "import sys; sys.modules['airflow'] = sys.modules['pyspark'] = None\n"
        "import airflow_lakestream.spark.executors as e; print(e.__file__)\n"
        # A driver beside such executors has the package from there, too.
        "from airflow_lakestream.spark.apps import check_app; check_app('kafka_to_iceberg')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": path, "PATH": ""},
    )
    assert done.returncode == 0, done.stderr
    assert path in done.stdout


def test_packages_fit_the_installed_spark() -> None:
    (one,) = kafka_packages()
    assert one == f"org.apache.spark:spark-sql-kafka-0-10_2.13:{installed_spark()}"
    assert kafka_packages("4.1.0")[0].endswith(":4.1.0")


@pytest.mark.long
def test_jars_that_are_there_are_not_fetched_again(tmp_path: Path) -> None:
    jars = resolve(kafka_packages(), tmp_path)
    names = {Path(jar).name.rsplit("-", 1)[0] for jar in jars}
    assert {"spark-sql-kafka-0-10_2.13", "kafka-clients", "commons-pool2"} <= names
    # What Spark has itself does not stand beside it once more.
    assert not [name for name in names if name.startswith(("scala-library", "slf4j", "hadoop"))]
    times = {jar: Path(jar).stat().st_mtime_ns for jar in jars}
    assert {jar: Path(jar).stat().st_mtime_ns for jar in resolve(kafka_packages(), tmp_path)} == times


def test_jars_that_were_cut_are_told_from_whole_ones_and_from_those_elsewhere(tmp_path: Path) -> None:
    whole, cut, empty = (tmp_path / name for name in ("whole.jar", "cut.jar", "empty.jar"))
    with zipfile.ZipFile(whole, "w") as jar:
        jar.writestr("A.class", "x" * 10_000)
    cut.write_bytes(whole.read_bytes()[:5_000])
    empty.touch()
    given = [
        str(whole),
        f"file://{cut}",
        f" {empty}",
        str(tmp_path / "absent.jar"),
        "s3a://jars/cut.jar",
        "hdfs://n/c.jar",
    ]
    assert cut_jars(",".join(given)) == [f"file://{cut}", str(empty)]
    assert cut_jars("") == []


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_full_disk_is_no_matter_of_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    # Java, as it is where Ivy's folder or this one is on a full disk.
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(
        f"#!/bin/sh\necho 'java.io.IOException: No space left on device' >&{1 if stream == 'stdout' else 2}\nexit 1\n"
    )
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NoRoomForJars, match=r"a disk is full .*AIRFLOW_LAKESTREAM_JARS"):
        resolve(kafka_packages(), tmp_path / "jars")


def test_what_can_not_be_had_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="group:artifact:version"):
        resolve(["spark-sql-kafka"], tmp_path)
    with pytest.raises(PackagesMissing, match=r"no-such-artifact.* do not have it"):
        resolve(["org.apache.spark:no-such-artifact:4.0.0"], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_repository_that_does_not_answer_is_told_from_a_package_that_there_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What Ivy prints without a network.
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    lines = [
        "\t\t:: org.apache.spark#spark-sql-kafka-0-10_2.13;9.9.9: not found",
        "Server access error at url https://repo/spark.pom (java.net.UnknownHostException: repo)",
    ]
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    for said, error in ((lines, PackagesUnavailable), (lines[:1], PackagesMissing)):
        java.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in said) + "exit 1\n")
        java.chmod(0o755)
        with pytest.raises(error, match="spark-sql-kafka"):
            resolve(kafka_packages("9.9.9"), tmp_path / "jars")


def test_two_versions_of_spark_in_one_folder_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"pyspark": "4.3.0", "pyspark-client": "4.2.0"}
    monkeypatch.setattr("importlib.metadata.version", found.__getitem__)
    with pytest.raises(SparkMixed, match=r"pyspark is 4\.3\.0, and pyspark-client 4\.2\.0: .*pyspark==4\.0\.0 "):
        check_spark()
    with pytest.raises(InvalidArgument, match=r"pyspark: is 4\.3\.0, for which Iceberg .* has no runtime"):
        catalog_packages({"type": "rest", "uri": "http://catalog"})
    found["pyspark-client"] = "4.3.0"
    assert check_spark() == "4.3.0"


def test_the_extra_brings_the_one_version_that_was_tried() -> None:
    wanted = {one.split(";")[0].strip() for one in metadata.requires("airflow-lakestream") or ()}
    assert {f"pyspark=={PROVEN}", f"pyspark-client=={PROVEN}"} <= wanted
