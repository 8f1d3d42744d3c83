"""Airflow by `airflow standalone`, in a home of its own, on the loopback only.

Its connections `kafka_default` and `iceberg_default` lead to this stack's broker, and to a catalog in its folder.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dev.ports import LOOPBACK, free_ports, listening
from dev.service import Owner, ServiceFolder, clean_environment
from dev.services.airflow_api import AirflowApi

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

USERNAME = "admin"
ICEBERG_CONNECTION = "iceberg_default"
KAFKA_CONNECTION = "kafka_default"

_READY_WITHIN_S = 300
_PASSWORDS_FILE = "simple_auth_manager_passwords.json.generated"

# The log servers of scheduler and triggerer bind to all addresses, and no setting keeps them from it. Here the API
# server reads the logs from disk, so nobody misses them. `airflow standalone` starts its parts by this name on PATH.
_SHIM = """\
#!/bin/sh
case "$1" in
  scheduler|triggerer) exec "{python}" -m airflow "$@" --skip-serve-logs ;;
  *) exec "{python}" -m airflow "$@" ;;
esac
"""


@dataclass(frozen=True)
class Airflow:
    """A running Airflow, as people and the demo see it."""

    url: str
    username: str
    password: str
    home: str
    catalog_uri: str
    warehouse: str
    database: str
    pid: int
    folder: str

    @cached_property
    def api(self) -> AirflowApi:
        """Its REST API, logged in once."""
        return AirflowApi(self.url, self.username, self.password)

    @property
    def ports(self) -> dict[str, int]:
        """Its one port."""
        return {"ui": int(self.url.rsplit(":", 1)[1])}

    def healthy(self, timeout: float = 5) -> bool:
        """Whether the UI answers, and the scheduler and its companions are alive."""
        return listening(self.ports["ui"]) and AirflowApi(self.url).healthy(timeout)

    def catalog(self) -> Catalog:
        """Open the catalog of `iceberg_default`; a SqlCatalog scopes its tables by that name."""
        from pyiceberg.catalog import load_catalog

        return load_catalog(ICEBERG_CONNECTION, type="sql", uri=self.catalog_uri, warehouse=self.warehouse)


def start(
    folder: ServiceFolder,
    dags_folder: Path,
    database: str,
    kafka_config: Mapping[str, str],
    owner: Owner | None,
    check: Callable[[], object],
) -> Airflow:
    """Start a new Airflow in `folder`, and wait until UI and scheduler are healthy.

    :param database: the URL of an empty database that is its own.
    :param kafka_config: settings of the connection `kafka_default`; the broker may still be starting.
    :param check: called while waiting; what it raises ends the start.
    """
    folder.prepare()
    home = folder.path / "home"
    home.mkdir()
    shim = folder.path / "bin" / "airflow"
    shim.parent.mkdir()
    shim.write_text(_SHIM.format(python=sys.executable))
    shim.chmod(0o755)
    port = free_ports(1)[0]
    airflow = Airflow(
        url=f"http://{LOOPBACK}:{port}",
        username=USERNAME,
        password="",
        home=str(home),
        catalog_uri=f"sqlite:///{folder.path.parent / 'catalog.db'}",
        warehouse=(folder.path.parent / "warehouse").as_uri(),
        database=database,
        pid=0,
        folder=str(folder.path),
    )
    environment = {
        **_environment(folder.path, dags_folder, port),
        **database_settings(database),
        **environment_of(airflow, kafka_config),
    }
    leash = folder.start([sys.executable, "-m", "airflow", "standalone"], owner, environment)

    def ready() -> bool:
        check()
        return airflow.healthy()

    folder.wait_ready(ready, leash, _READY_WITHIN_S)
    service = folder.process("service")
    assert service is not None
    passwords = json.loads((home / _PASSWORDS_FILE).read_text())
    airflow = Airflow(**{**asdict(airflow), "pid": service.pid, "password": passwords[USERNAME]})
    folder.write_state(asdict(airflow))
    return airflow


def database_of(home: Path) -> str:
    """Return the URL of a database in a file, for an Airflow without a web server: its processes wait their turn.

    With one, two requests at once, such as the trigger form's, wait for each other until the time is out.
    """
    return f"sqlite:///{home / 'airflow.db'}?timeout=60"


def database_settings(database: str) -> dict[str, str]:
    """Return the settings of Airflow that lead to a PostgreSQL, given its URL for psycopg 3.

    That one serves what is asynchronous. All else goes by psycopg2: for the graph of assets Airflow 3.3 compares JSON
    with a text, which psycopg 3 calls a VARCHAR, and PostgreSQL has no such operator.
    """
    name = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
    return {name: database.replace("+psycopg:", "+psycopg2:"), f"{name}_ASYNC": database}


def environment_of(airflow: Airflow, kafka_config: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the environment that hold connections, and the variable of `supervise_lakestream`."""
    iceberg = {"type": "sql", "uri": airflow.catalog_uri, "warehouse": airflow.warehouse}
    return {
        "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"conn_type": "kafka", "extra": {**kafka_config}}),
        "AIRFLOW_CONN_ICEBERG_DEFAULT": json.dumps({"conn_type": "iceberg", "extra": iceberg}),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        # What `supervise_lakestream` looks at.
        "AIRFLOW_VAR_LAKESTREAM_STREAMS": json.dumps(
            [{"table": "lake.clickstream", "consumer_group": "clickstream_to_lake"}]
        ),
    }


def _environment(folder: Path, dags_folder: Path, port: int) -> dict[str, str]:
    url = f"http://{LOOPBACK}:{port}"
    settings = {
        "AIRFLOW_HOME": str(folder / "home"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags_folder),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__API__HOST": LOOPBACK,
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__SECRET_KEY": secrets.token_hex(16),
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
        "AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK": "False",
        # A task whose API does not answer for 5 seconds, the default, would fail.
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
        # The first parse, while everything starts at once on a busy machine, has been seen to take over 30 s.
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "150",
        "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "180",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "30",
        # A file that has changed is parsed at once all the same.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "120",
        # The type of the catalog in the connection's extra, sql, would be a warning in each task's log.
        "AIRFLOW__LOGGING__MIN_LENGTH_MASKED_SECRET": "3",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "SCARF_ANALYTICS": "False",
        # The parts of Airflow talk to each other over the loopback: never by a proxy.
        "NO_PROXY": f"{LOOPBACK},localhost",
        "no_proxy": f"{LOOPBACK},localhost",
        # Where the DAGs on Spark keep their checkpoints, and Spark's own servers, which would take all addresses.
        "AIRFLOW_VAR_LAKESTREAM_CHECKPOINTS": str(folder.parent / "checkpoints"),
        "SPARK_LOCAL_IP": LOOPBACK,
        "PATH": os.pathsep.join([str(folder / "bin"), os.environ.get("PATH", os.defpath)]),
    }
    # Without bytecode each of the five processes compiles all of Airflow again: twice the time to come up.
    inherited = clean_environment(drop=("AIRFLOW", "PYICEBERG_", "OTEL_", "PYTHONDONTWRITEBYTECODE"))
    return {**inherited, **settings}
