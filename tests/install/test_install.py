"""The wheel, installed as users install it: with each extra, with constraints and without, at both ends of the bounds.

In each environment a DAG of a real Airflow lands a topic of a real broker, by each engine that the extras bring.
`make test-install` plays all of them, each extra by itself included; `make test SUITES=install` plays some.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from packaging.version import Version

from dev.java import find_jdk
from dev.stack import Stack

pytestmark = pytest.mark.own_parts

CHECKOUT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
COUNT = 20
# The oldest Airflow that the bounds admit, and the one that our constraints name.
OLDEST, NEWEST = "3.1.3", ""
ALL = ("database", "delta", "hdfs", "openlineage", "protobuf", "spark")
NEWEST_TRIED = next(
    line.partition("==")[2].strip()
    for line in (CHECKOUT / "dev" / "constraints.txt").read_text().splitlines()
    if line.startswith("apache-airflow==")
)
PROTO = 'syntax = "proto3"; message Order { int64 id = 1; string name = 2; }'


def lowest_of(extras: Sequence[str], constraints: Path, folder: Path) -> Path:
    """Return a file with the lowest versions of what the project itself names, and all that comes with these."""
    of_extras = [word for one in extras for word in ("--extra", one)]
    options = ["--resolution", "lowest-direct", "--constraints", str(constraints)]
    found = folder / "low.txt"
    project = str(CHECKOUT / "pyproject.toml")
    compiled = ["pip", "compile", "--quiet", "--python", sys.executable, project, *of_extras, *options]
    uv([*compiled, "--output-file", str(found)])
    return found


@dataclass(frozen=True)
class Installation:
    """How the wheel is installed.

    :param airflow: its version; empty for the newest that there is.
    :param versions: "constraints": those of dev/; "lowest" or "highest": of each dependency, without constraints.
    """

    extras: tuple[str, ...]
    airflow: str
    versions: str

    def __str__(self) -> str:
        return f"{'+'.join(self.extras) or 'none'}-airflow {self.airflow or 'newest'}-{self.versions}"

    def options(self, wheel: Path, folder: Path) -> list[str]:
        """Return what uv is told.

        :param folder: for the lowest versions, which uv knows of what the project itself names, not of a wheel.
        """
        what = f"{wheel}[{','.join(self.extras)}]" if self.extras else str(wheel)
        pins = folder / "constraints.txt"
        if self.versions == "constraints":
            name = "constraints-airflow-3.1.txt" if self.airflow else "constraints.txt"
            return [what, "--constraints", str(CHECKOUT / "dev" / name)]
        # The lowest of all would be the oldest Airflow again.
        airflow = self.airflow or (NEWEST_TRIED if self.versions == "lowest" else "")
        pins.write_text(f"apache-airflow=={airflow}\n" if airflow else "")
        if self.versions == "lowest":
            pins = lowest_of(self.extras, pins, folder)
        return [what, "--constraints", str(pins)]


FEW = [
    Installation((), OLDEST, "lowest"),
    Installation(ALL, OLDEST, "lowest"),
    Installation(ALL, NEWEST, "highest"),
]
EVERY = [
    Installation(extras, airflow, versions)
    for extras in ((), *((one,) for one in ALL), ALL)
    for airflow in (OLDEST, NEWEST)
    for versions in ("constraints", "lowest", "highest")
]
PLAYED = EVERY if os.environ.get("LAKESTREAM_INSTALLATIONS") == "all" else FEW


@pytest.mark.parametrize("extra", ["", *ALL])
def test_no_lower_bound_is_below_what_others_ask_for(extra: str, tmp_path: Path) -> None:
    """A bound below what Airflow, or another dependency, asks for admits nothing more, and says something untrue."""
    (tmp_path / "constraints.txt").write_text(f"apache-airflow=={OLDEST}\n")
    file = lowest_of([extra] if extra else [], tmp_path / "constraints.txt", tmp_path)
    found = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", file.read_text(), re.MULTILINE))
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    named = project["optional-dependencies"][extra] if extra else project["dependencies"]
    bounds = {match[1]: match[2] for one in named if (match := re.match(r"([\w-]+)(?:\[.*\])?[>=]=([\d.]+)", one))}
    assert len(bounds) == len(named)
    assert {name: found[name] for name in bounds if Version(found[name]) != Version(bounds[name])} == {}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [UV, "build", "--wheel", "--out-dir", folder, CHECKOUT], capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def given() -> Iterator[dict[str, str]]:
    """Give what the environments find: a broker with two topics, a registry, and HDFS."""
    with Stack.owned("install") as stack:
        kafka, registry = stack.up_kafka(), stack.up_registry()
        schema_id = registry.register("proto-value", PROTO, "PROTOBUF")
        admin = AdminClient(kafka.client_config())
        for one in admin.create_topics([NewTopic(name, 2) for name in ("orders", "proto")]).values():
            one.result()
        failed: list[Any] = []
        producer = Producer(kafka.client_config() | {"on_delivery": lambda error, _: error and failed.append(error)})
        for n in range(COUNT):
            producer.produce("orders", json.dumps({"id": n, "name": f"order {n}"}))
            name = f"order {n}".encode()
            # The registry's header, the first message of the schema, and its two fields.
            head = b"\0" + schema_id.to_bytes(4, "big") + b"\0"
            producer.produce("proto", head + bytes([0x08, n, 0x12, len(name)]) + name)
        # What could not be delivered is flushed as well.
        assert (producer.flush(30), failed) == (0, [])
        in_hdfs = {
            "type": "sql",
            "warehouse": f"{stack.up_hdfs().uri}/lake",
            "py-io-impl": "airflow_lakestream.iceberg.hdfs.HdfsFileIO",
        }
        yield {
            "TOPIC": "orders",
            "PROTOBUF_TOPIC": "proto",
            "REGISTRY": registry.url,
            "IN_HDFS": json.dumps(in_hdfs),
            "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"conn_type": "kafka", "extra": kafka.client_config()}),
        }


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder of what is made once: Airflow's databases, and compiled modules, which a place of its own has."""
    return tmp_path_factory.mktemp("shared")


@pytest.mark.parametrize("installed", PLAYED, ids=str)
def test_a_topic_lands_by_each_engine_of_the_extras(
    installed: Installation, wheel: Path, given: dict[str, str], shared: Path, tmp_path: Path
) -> None:
    python = shared / "venv" / "bin" / "python"
    uv(["venv", "--quiet", "--clear", "--python", sys.executable, str(shared / "venv")])
    uv(["pip", "install", "--quiet", "--python", str(python), *installed.options(wheel, tmp_path)])
    uv(["pip", "check", "--quiet", "--python", str(python)])
    environment = environment_of(installed, given, shared, tmp_path)

    def run(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
        assert done.returncode == 0, f"{installed}: {' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    program = tmp_path / "dags" / "landings.py"
    program.parent.mkdir()
    program.write_text((CHECKOUT / "tests" / "install" / "landings.py").read_text())
    airflow = str(python.with_name("airflow"))
    [version] = (shared / "venv").glob("lib/*/site-packages/apache_airflow_core-*.dist-info")
    database = shared / f"{version.name}.db"
    if not database.exists():
        run(airflow, "db", "migrate")
        with closing(sqlite3.connect(tmp_path / "airflow.db")) as migrated, closing(sqlite3.connect(database)) as kept:
            migrated.backup(kept)
    shutil.copy(database, tmp_path / "airflow.db")
    run(str(python.with_name("lakestream")), "--version")
    said = run(airflow, "dags", "test", "landings")
    found = json.loads(run(str(python), str(program)).splitlines()[-1])
    told = found.pop("openlineage", 1)
    assert set(found.values()) == {COUNT}, (found, said[-4000:])
    assert told > 0
    wanted = {"extract", "grouped", *({"delta", "hdfs", "spark"} & {*installed.extras})}
    assert found.keys() - {"proto"} == wanted
    assert ("proto" in found) is ("protobuf" in installed.extras)


def environment_of(installed: Installation, given: dict[str, str], shared: Path, folder: Path) -> dict[str, str]:
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    # A folder of its own, since all environments share the server.
    in_hdfs = json.loads(given["IN_HDFS"])
    in_hdfs |= {"uri": f"sqlite:///{folder}/hdfs.db", "warehouse": f"{in_hdfs['warehouse']}/{folder.name}"}
    return {
        **given,
        "AIRFLOW_CONN_ICEBERG_HDFS": json.dumps({"conn_type": "iceberg", "extra": in_hdfs}),
        "HOME": str(Path.home()),
        "PYTHONPYCACHEPREFIX": str(shared / "compiled"),
        "PATH": f"{shared / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "JAVA_HOME": str(find_jdk().home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "LANG": "C.UTF-8",
        "INSTALLED_EXTRAS": ",".join(installed.extras),
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(
            {"type": "file", "log_file_path": str(folder / "events.jsonl"), "append": True}
        ),
        "AIRFLOW_CONN_ICEBERG_DEFAULT": json.dumps({"conn_type": "iceberg", "extra": catalog}),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
    }


def uv(arguments: list[str]) -> None:
    done = subprocess.run([UV, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"uv {' '.join(arguments)}\n{done.stderr[-4000:]}"
