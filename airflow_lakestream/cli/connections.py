"""Airflow connections on the command line, with the same ids as in DAGs, and Airflow's own settings.

The settings are read from variables of the environment and from airflow.cfg, without an import of Airflow.
"""

from __future__ import annotations

import atexit
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from configparser import Error, RawConfigParser
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airflow_lakestream.config.arguments import problem_of
from airflow_lakestream.core.printable import printable_lines
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.lakes import LakeCapability, lake_of
from airflow_lakestream.registry.config import is_client_setting
from airflow_lakestream.runtime.interpreter import pause_collection

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from airflow_lakestream.connect.client import ConnectClient
    from airflow_lakestream.delta.storage import DeltaStorage
    from airflow_lakestream.registry.config import RegistryConfig

_LOCAL_BUNDLE = "airflow.dag_processing.bundles.local.LocalDagBundle"


@dataclass(frozen=True, slots=True)
class AirflowSettings:
    """Settings of the Airflow of this environment.

    :param home: the value of AIRFLOW_HOME, or its default.
    :param file: the content of airflow.cfg; empty for a missing file.
    """

    home: Path
    file: RawConfigParser

    def get(self, section: str, name: str) -> str | None:
        """Return a setting by Airflow's order, the environment first, or None if neither has it."""
        found = os.environ.get(f"AIRFLOW__{section}__{name}".upper(), self.file.get(section, name, fallback=None))
        return None if found is None else found.strip()

    def has_dags_at(self, path: Path) -> bool:
        """Return whether Airflow reads DAGs from the place of a file."""
        return any(folder.resolve() in path.resolve().parents for folder in self._folders())

    @property
    def dag_place(self) -> str:
        """The place for new DAG files, in words."""
        folders = [str(folder) for folder in self._folders()]
        if not folders:
            return f"the DAG bundle {' or '.join(str(bundle.get('name')) for bundle in self._bundles())}"
        if not self.file.sections() and not any(name.startswith("AIRFLOW_") for name in os.environ):
            # Nothing describes the Airflow that the file is for: it may run on another machine.
            return "Airflow's DAG folder, if it is not there yet"
        if len(folders) == 1:
            return f"Airflow's DAG folder, {folders[0]}"
        return f"one of Airflow's DAG folders: {', '.join(folders)}"

    def _folders(self) -> list[Path]:
        """Return the local folders of DAG files; an empty list if all bundles of DAGs are elsewhere, such as in Git."""
        usual = _expanded(self.get("core", "dags_folder") or str(self.home / "dags"))
        bundles = list(self._bundles())
        if not bundles:
            return [usual]
        local = [bundle.get("kwargs") for bundle in bundles if bundle.get("classpath") == _LOCAL_BUNDLE]
        paths = [one.get("path") if isinstance(one, dict) else None for one in local]
        return [usual if path is None else Path(str(path)) for path in paths]

    def _bundles(self) -> Iterator[dict[str, object]]:
        # A list that is wrong is Airflow's to refuse: the DAG folder is then the best guess.
        with suppress(ValueError):
            found = json.loads(self.get("dag_processor", "dag_bundle_config_list") or "[]")
            yield from (bundle for bundle in found if isinstance(bundle, dict))


def airflow_settings() -> AirflowSettings:
    """Read the settings of the environment's Airflow. Raises ValueError for a file that is no configuration."""
    home = _expanded(os.environ.get("AIRFLOW_HOME") or "~/airflow")
    path = _expanded(os.environ.get("AIRFLOW_CONFIG") or str(home / "airflow.cfg"))
    file = RawConfigParser(strict=False)
    try:
        file.read(path, encoding="utf-8")
    except (Error, OSError) as e:
        raise ValueError(f"{path} can't be read as a configuration: {e}") from e
    return AirflowSettings(home, file)


def _expanded(path: str) -> Path:
    """Return a path with variables of the environment and the home folder in place, as Airflow expands it."""
    return Path(os.path.expandvars(path)).expanduser()


_FIELDS = {"conn_type", "description", "host", "login", "password", "port", "schema", "extra"}
# Catalogs that need only their properties, and that can compare and set.
_CATALOGS = ("rest", "sql", "glue", "hive")
# Airflow's settings with their accepted values: other values concern the origin of connections, or shared disks.
_USUAL = {("secrets", "backend"): "", ("workers", "secrets_backend"): "", ("core", "executor"): "LocalExecutor"}


def kafka_settings(conn_id: str) -> dict[str, Any] | None:
    """Return librdkafka's configuration, equal to `KafkaHook.configuration`, without an import of Airflow.

    Returns None if only the hook can do it: for a connection outside the environment, for callbacks and OAuth, and for
    wrong settings, of which the hook has the error.
    """
    connection = _connection(conn_id)
    if connection is None:
        return None
    extra = connection["extra"]
    servers = str(extra.get("bootstrap.servers") or "")
    needs_a_hook = any(name.endswith("_cb") or name == "on_commit" for name in extra) or "OAUTHBEARER" in extra.values()
    has_login = bool(connection.get("login") or connection.get("password"))
    is_wrong = problem_of(extra, has_login=has_login) is not None
    if not servers or "cloud.goog" in servers or needs_a_hook or is_wrong:
        return None
    return {name: value for name, value in extra.items() if not is_client_setting(name)}


def catalog_properties(conn_id: str) -> dict[str, Any] | None:
    """Return PyIceberg's properties of a catalog, equal to `IcebergHook.catalog`'s, without an import of Airflow.

    Returns None if only the hook can do it: for a connection outside the environment, or with unusual settings.
    """
    connection = _connection(conn_id)
    if connection is None:
        return None
    properties = {"type": "rest", **connection["extra"]}
    if not all(isinstance(value, str) for value in properties.values()):
        return None
    if host := connection.get("host"):
        properties["uri"] = host.rstrip("/")
    login, password = connection.get("login"), connection.get("password")
    if properties["type"] not in _CATALOGS or bool(login) != bool(password):
        return None
    if login and properties["type"] != "rest":
        return None
    if login:
        properties["credential"] = f"{login}:{password}"
    return properties


# The fields of a connection, if the environment has it as JSON, and if Airflow would look there first; else None.
def _connection(conn_id: str) -> dict[str, Any] | None:
    text = os.environ.get(f"AIRFLOW_CONN_{conn_id.upper()}", "")
    if not text.lstrip().startswith("{") or not _is_airflow_as_usual():
        return None
    try:
        found = json.loads(text)
        extra = found.get("extra") or {}
        extra = json.loads(extra) if isinstance(extra, str) else extra
    except ValueError:
        return None
    return found | {"extra": extra} if isinstance(extra, Mapping) and set(found) <= _FIELDS else None


def _is_airflow_as_usual() -> bool:
    """Return whether Airflow looks into the environment first, and runs tasks on this machine alone.

    Otherwise a secrets backend may have the connection, or the hook adds settings for shared disks.
    """
    if any(name.startswith(("AIRFLOW__SECRETS__", "AIRFLOW__WORKERS__SECRETS")) for name in os.environ):
        return False
    try:
        settings = airflow_settings()
    except ValueError:
        return False
    given = {(section, name): settings.get(section, name) for section, name in _USUAL}
    return all(value in (None, "", _USUAL[one]) for one, value in given.items())


# Airflow's messages about itself while it is imported are not part of an answer.
_ENVIRONMENT = {"_AIRFLOW_PROCESS_CONTEXT": "server", "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR"}
# Airflow, while it is imported, sets up its database unless this is set.
_AS_LIBRARY = "_AIRFLOW__AS_LIBRARY"


def of_iceberg(table: str | None) -> str | None:
    """Return the name of an Iceberg table. Raises InvalidArgument for the path of a Delta table."""
    if table is not None:
        lake_of(table).require(LakeCapability.EDITS, "--table", table)
    return table


Table = Annotated[str, typer.Option("--table", help="namespace.table", callback=of_iceberg)]
AnyTable = Annotated[str, typer.Option("--table", help="namespace.table, or the path or URI of a Delta table")]
StorageConn = Annotated[str | None, typer.Option("--storage-conn", help="Airflow connection of a Delta table's store")]
GroupIfSeveral = Annotated[
    str | None,
    typer.Option("--group", help="consumer group: the name of the ledger; default: the only one that the table has"),
]
KafkaConn = Annotated[str, typer.Option("--kafka-conn", help="Airflow connection of type kafka")]
IcebergConn = Annotated[str, typer.Option("--iceberg-conn", help="Airflow connection of type iceberg")]
ConnectConn = Annotated[str, typer.Option("--connect-conn", help="Airflow connection with Kafka Connect's workers")]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]


@dataclass(frozen=True)
class KafkaConnection:
    """librdkafka's configuration, and the connection's name for errors (`where`)."""

    configuration: dict[str, Any]
    where: str


def open_kafka(conn_id: str) -> KafkaConnection:
    """Return the configuration of a `kafka` connection. Raises InvalidArgument."""
    if (settings := kafka_settings(conn_id)) is not None:
        return KafkaConnection(settings, f"Kafka connection {conn_id!r}")
    with like_the_airflow_command(conn_id):
        from airflow_lakestream.hooks.kafka import KafkaHook

        hook = KafkaHook(conn_id)
        return KafkaConnection(hook.configuration(), hook.where)


def open_connect(conn_id: str) -> ConnectClient:
    """Open the workers of a Connect cluster. Raises InvalidArgument."""
    with like_the_airflow_command(conn_id):
        from airflow_lakestream.hooks.kafka_connect import KafkaConnectHook

        return KafkaConnectHook(conn_id).open_client()


def connection_fields(conn_id: str) -> dict[str, Any] | None:
    """Return a connection's fields, or None if the connection does not exist.

    The fields include secrets; `extra` is a mapping.
    """
    with like_the_airflow_command(conn_id):
        from airflow_lakestream.hooks.store import fields_of

        return fields_of(conn_id)


def open_variables() -> tuple[Callable[[str], object], Callable[[str], Mapping[str, object] | None]]:
    """Return two functions: from an Airflow variable's name to the value or None, and `connection_fields`."""
    return _variable, connection_fields


def _variable(name: str) -> object:
    if (found := os.environ.get(f"AIRFLOW_VAR_{name.upper()}")) is not None:
        return found
    with like_the_airflow_command(needs_database=True):
        from airflow_lakestream.hooks.variables import variable_outside_airflow

        return variable_outside_airflow(name)


def open_catalog(conn_id: str) -> Catalog:
    """Open the catalog of an `iceberg` connection. Raises InvalidArgument and CatalogUnavailable.

    Without Airflow if possible; if that fails, the hook tries again, for its error message.
    """
    if (properties := catalog_properties(conn_id)) is not None:
        with pause_collection(), suppress(Exception):
            from pyiceberg.catalog import load_catalog

            return load_catalog(conn_id, **properties)
    # The hook's error message also describes the problem.
    with like_the_airflow_command(conn_id):
        from airflow_lakestream.hooks.iceberg import IcebergHook

        return IcebergHook(conn_id).open_catalog()


def open_storage(conn_id: str | None) -> DeltaStorage:
    """Open the store of a Delta table. Raises InvalidArgument.

    :param conn_id: None: without a connection, for a local disk, or with the credentials of the environment.
    """
    with like_the_airflow_command(conn_id):
        from airflow_lakestream.hooks.store import DeltaStorageHook

        return DeltaStorageHook(conn_id).open_storage()


def open_lake(table: str, iceberg_conn: str, storage_conn: str | None) -> Any:
    """Open the catalog of an Iceberg table, or the store of a Delta table.

    Raises InvalidArgument and CatalogUnavailable.
    """
    return open_catalog(iceberg_conn) if LakeCapability.CATALOG in lake_of(table).can else open_storage(storage_conn)


def group_of(lake: Any, table: str, given: str | None, remedy: str = "") -> str:
    """Return the given consumer group, or the only group with a ledger on the table.

    :param lake: catalog or store of the table; see `open_lake`.
    :param given: the option's value; None if the option is missing.
    :param remedy: the remedy for a missing table, besides the right name.

    Raises InvalidArgument if no group is given and the table is missing, or has no ledger, or several.
    """
    if given is not None:
        return given

    streams = lake_of(table).part("books").at(lake, table)
    if streams is None:
        raise InvalidArgument("--table", lake_of(table).missing_text(lake, table), remedy)
    known = tuple(group for group in streams.groups() if _has_ledger(streams, group))
    if len(known) == 1:
        return str(known[0])
    problem = f"{table} has ledgers of {', '.join(known)}." if known else f"{table} has no ledger."
    raise InvalidArgument(
        "--group", problem, "Say which group is meant." if known else "Say the group that is to land."
    )


def _has_ledger(streams: Any, group: str) -> bool:
    """Return whether a group's ledger has any topic. A ledger that can't be read counts.

    After a rename or a reset the old group's ledger has no topic.
    """
    try:
        return bool(streams.ledger(group).topics)
    except streams.problems:
        # A ledger that can't be read exists all the same.
        return True


def open_store_properties(conn_id: str | None) -> Mapping[str, str] | None:
    """Return the properties of a checkpoint's store, or None without a connection. Raises InvalidArgument.

    The properties are a catalog's, or delta-rs' storage options, by the type of the connection.
    """
    with like_the_airflow_command(conn_id):
        from airflow_lakestream.hooks.store import store_properties

        return store_properties(conn_id)


def open_registry(decoding: Mapping[str, Any], kafka_conn: str) -> dict[str, RegistryConfig]:
    """Return the schema registry as a mapping with the key `schema_registry`; empty if no format needs a registry.

    The registry is a URL or a connection in `decoding`; without either, the extra of the Kafka connection has it.

    :param decoding: decoding arguments: schema_registry, format and key_format are used.

    Raises InvalidArgument.
    """
    registry = decoding.get("schema_registry")
    with like_the_airflow_command(kafka_conn, registry if isinstance(registry, str) else None):
        from airflow_lakestream.hooks.kafka import KafkaHook
        from airflow_lakestream.hooks.registry import registry_of

        formats = (decoding.get("format"), decoding.get("key_format"))
        found = registry_of(registry, KafkaHook(kafka_conn), *formats)
    return {} if found is None else {"schema_registry": found}


def report_text(text: str, *, err: bool = False) -> None:
    """Print a text with invisible characters escaped: names and values in it may be those of records."""
    typer.echo(printable_lines(text), err=err)


@contextmanager
def output_to_stderr() -> Iterator[None]:
    """Send all output except the answer to stderr: Airflow logs to stdout, but programs expect JSON in stdout."""
    with redirect_stdout(sys.stderr):
        yield


def open_streams() -> None:
    """Open the streams that the shell has closed (`>&-`), and let stdout escape the letters that the locale lacks.

    Neither a stream nor a letter that is missing must fail the command.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def flush_streams() -> bool:
    """Flush stdout and stderr; return whether stdout has taken the whole output.

    Python would flush a stream that takes nothing once more at its end, and exit with the code 120.
    """
    is_whole = True
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            is_whole &= stream is not sys.stdout
    return is_whole


def end_at_once(codes: list[int]) -> None:
    """End the process without Python's finalization, after its threads and the functions that are registered later.

    The finalization takes a second for all of Airflow's objects, and ends by SIGABRT or never if a thread of PyArrow
    then releases a buffer of a Python file (apache/arrow#49942; PyArrow 26 still does).

    :param codes: the exit code, once it is known.
    """
    atexit.register(lambda: [(flush_streams(), os._exit(code)) for code in codes])


@contextmanager
def like_the_airflow_command(*conn_ids: str | None, needs_database: bool = False) -> Iterator[None]:
    """Look connections up within the block like `airflow connections get`, the database included.

    Outside a task Airflow would skip the database. Output in the block goes to stderr; the environment is restored
    afterwards.

    :param conn_ids: the connections to look up. If the environment has all, Airflow is set up without its database.
    :param needs_database: the value may be in the database alone.
    """
    environment = dict(_ENVIRONMENT)
    settings = sys.modules.get("airflow.settings")
    if (
        not needs_database
        and settings is None
        and all(f"AIRFLOW_CONN_{one.upper()}" in os.environ for one in conn_ids if one)
    ):
        # Airflow's database and models are not needed, and take a second to set up.
        environment[_AS_LIBRARY] = "1"
        logging.getLogger("airflow").setLevel(logging.ERROR)
    elif settings is not None and getattr(settings, "Session", None) is None:  # Airflow 3.1.3 only declares it
        settings.initialize()
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update({name: before[name] or value for name, value in environment.items()})
    try:
        with output_to_stderr(), pause_collection():
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
