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
        """Return a setting of the environment, or else of airflow.cfg, or None. The order is Airflow's."""
        value = os.environ.get(f"AIRFLOW__{section}__{name}".upper(), self.file.get(section, name, fallback=None))
        return None if value is None else value.strip()

    def has_dags_at(self, path: Path) -> bool:
        """Return whether a file is in a folder from which Airflow reads DAGs."""
        return any(folder.resolve() in path.resolve().parents for folder in self._folders())

    @property
    def dag_place(self) -> str:
        """The place for new DAG files, in words."""
        folders = [str(folder) for folder in self._folders()]
        if not folders:
            return f"the DAG bundle {' or '.join(str(bundle.get('name')) for bundle in self._bundles())}"
        if not self.file.sections() and not any(name.startswith("AIRFLOW_") for name in os.environ):
            # Without any setting here, the Airflow for the file may run on another machine.
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
        paths = [kwargs.get("path") if isinstance(kwargs, dict) else None for kwargs in local]
        return [usual if path is None else Path(str(path)) for path in paths]

    def _bundles(self) -> Iterator[dict[str, object]]:
        # Airflow itself refuses an invalid list. Here the DAG folder is then the best guess.
        with suppress(ValueError):
            bundles = json.loads(self.get("dag_processor", "dag_bundle_config_list") or "[]")
            yield from (bundle for bundle in bundles if isinstance(bundle, dict))


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
# Types of catalogs that need only their properties, and that compare and set on a commit.
_CATALOGS = ("rest", "sql", "glue", "hive")
# Settings of Airflow, each with its only value under which connections and disks are those of this machine.
_USUAL = {("secrets", "backend"): "", ("workers", "secrets_backend"): "", ("core", "executor"): "LocalExecutor"}


def kafka_settings(conn_id: str) -> dict[str, Any] | None:
    """Return librdkafka's configuration, equal to `KafkaHook.configuration`, without an import of Airflow.

    Returns None if the hook is needed: for a connection that is not in the environment, for callbacks and OAuth, and
    for wrong settings, for which the hook raises the error.
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

    Returns None if the hook is needed: for a connection that is not in the environment, or has unusual settings.
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


def _connection(conn_id: str) -> dict[str, Any] | None:
    """Return the fields of a connection, or None unless it is JSON in the environment, where Airflow looks first."""
    text = os.environ.get(f"AIRFLOW_CONN_{conn_id.upper()}", "")
    if not text.lstrip().startswith("{") or not _is_airflow_as_usual():
        return None
    try:
        connection = json.loads(text)
        extra = connection.get("extra") or {}
        extra = json.loads(extra) if isinstance(extra, str) else extra
    except ValueError:
        return None
    return connection | {"extra": extra} if isinstance(extra, Mapping) and set(connection) <= _FIELDS else None


def _is_airflow_as_usual() -> bool:
    """Return whether Airflow looks for connections in the environment first, and runs tasks only on this machine.

    Otherwise a secrets backend may have the connection, or the hook adds settings for shared disks.
    """
    if any(name.startswith(("AIRFLOW__SECRETS__", "AIRFLOW__WORKERS__SECRETS")) for name in os.environ):
        return False
    try:
        settings = airflow_settings()
    except ValueError:
        return False
    given = {(section, name): settings.get(section, name) for section, name in _USUAL}
    return all(value in (None, "", _USUAL[setting]) for setting, value in given.items())


# Variables that silence Airflow's messages about its own import: a command's output has no place for these.
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
    """librdkafka's configuration; `where` is the connection's name for errors."""

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
    """Return two functions: the lookup of an Airflow variable (its value, or None), and `connection_fields`."""
    return _variable, connection_fields


def _variable(name: str) -> object:
    if (value := os.environ.get(f"AIRFLOW_VAR_{name.upper()}")) is not None:
        return value
    with like_the_airflow_command(needs_database=True):
        from airflow_lakestream.hooks.variables import variable_outside_airflow

        return variable_outside_airflow(name)


def open_catalog(conn_id: str) -> Catalog:
    """Open the catalog of an `iceberg` connection, without Airflow if possible.

    Raises InvalidArgument and CatalogUnavailable.
    """
    if (properties := catalog_properties(conn_id)) is not None:
        with pause_collection(), suppress(Exception):
            from pyiceberg.catalog import load_catalog

            return load_catalog(conn_id, **properties)
    # After an error, too, the hook opens the catalog: its error message has the remedy.
    with like_the_airflow_command(conn_id):
        from airflow_lakestream.hooks.iceberg import IcebergHook

        return IcebergHook(conn_id).open_catalog()


def open_storage(conn_id: str | None) -> DeltaStorage:
    """Open the store of a Delta table. Raises InvalidArgument.

    :param conn_id: the connection; None: a local disk, or credentials of the environment.
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
    """Return the given consumer group, or the only group with a ledger in the table.

    :param lake: catalog or store of the table; see `open_lake`.
    :param given: the option's value; None if the option is missing.
    :param remedy: text for the error about a missing table; empty: none.

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
    """Return whether a group's ledger has a topic, or can't be read.

    After a rename or a reset the old group's ledger is still there, without a topic.
    """
    try:
        return bool(streams.ledger(group).topics)
    except streams.problems:
        # A ledger that can't be read exists all the same.
        return True


def open_store_properties(conn_id: str | None) -> Mapping[str, str] | None:
    """Return the properties of a checkpoint's store, or None without a connection. Raises InvalidArgument.

    By the type of the connection the properties are a catalog's, or storage options of delta-rs.
    """
    with like_the_airflow_command(conn_id):
        from airflow_lakestream.hooks.store import store_properties

        return store_properties(conn_id)


def open_registry(decoding: Mapping[str, Any], kafka_conn: str) -> dict[str, RegistryConfig]:
    """Return the schema registry as a mapping with the key `schema_registry`; empty if no format needs a registry.

    :param decoding: decoding arguments: schema_registry (a URL or a connection), format and key_format are used.
    :param kafka_conn: the Kafka connection, whose extra has the registry if `decoding` has none.

    Raises InvalidArgument.
    """
    registry = decoding.get("schema_registry")
    with like_the_airflow_command(kafka_conn, registry if isinstance(registry, str) else None):
        from airflow_lakestream.hooks.kafka import KafkaHook
        from airflow_lakestream.hooks.registry import registry_of

        formats = (decoding.get("format"), decoding.get("key_format"))
        config = registry_of(registry, KafkaHook(kafka_conn), *formats)
    return {} if config is None else {"schema_registry": config}


def report_text(text: str, *, err: bool = False) -> None:
    """Print a text with invisible characters escaped: a text may have names and values from records.

    :param err: whether to print to stderr.
    """
    typer.echo(printable_lines(text), err=err)


def report_answer(answer: object, text: str, *, as_json: bool) -> None:
    """Print a command's answer as JSON, or as the text for people."""
    report_text(json.dumps(answer, indent=2) if as_json else text)


@contextmanager
def output_to_stderr() -> Iterator[None]:
    """Send all output in the block to stderr: Airflow logs to stdout, where programs expect the command's answer."""
    with redirect_stdout(sys.stderr):
        yield


def open_streams() -> None:
    """Open streams that the shell has closed (`>&-`), and let stdout escape characters that the locale lacks.

    A command must not fail for a missing stream or character.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def flush_streams() -> bool:
    """Flush stdout and stderr; return whether the whole output went to stdout.

    A stream without a reader is replaced: Python would flush it again at its end, and exit with the code 120.
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
    """Register a function that ends the process at its exit, without Python's finalization.

    The finalization takes a second for Airflow's objects. It may crash or hang if a thread of PyArrow releases a buffer
    of a Python file (apache/arrow#49942; PyArrow 26 still does).

    :param codes: a list to which the caller appends the exit code; the process ends normally if it stays empty.
    """
    atexit.register(lambda: [(flush_streams(), os._exit(code)) for code in codes])


@contextmanager
def like_the_airflow_command(*conn_ids: str | None, needs_database: bool = False) -> Iterator[None]:
    """Let Airflow look up connections in the block like `airflow connections get`: also in its database.

    Outside of a task Airflow would skip its database. Output in the block goes to stderr. The environment is restored.

    :param conn_ids: the connections to look up. If all are in the environment, Airflow is set up without its database.
    :param needs_database: whether to set up the database in any case.
    """
    environment = dict(_ENVIRONMENT)
    settings = sys.modules.get("airflow.settings")
    if (
        not needs_database
        and settings is None
        and all(f"AIRFLOW_CONN_{conn_id.upper()}" in os.environ for conn_id in conn_ids if conn_id)
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
