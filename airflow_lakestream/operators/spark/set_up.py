"""Parts of a task with a Spark driver, built from the operator's arguments."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.openlineage.utils.spark import inject_parent_job_information_into_spark_properties
from airflow.providers.common.compat.sdk import conf

from airflow_lakestream.config.arguments import AVAILABLE_NOW
from airflow_lakestream.core.names import FUNCTIONS, TRANSFORM
from airflow_lakestream.core.policies import ModeName, choose, is_given
from airflow_lakestream.driver.driver_folder import DriverConfig, new_folder
from airflow_lakestream.driver.driving import DriverSupervision, StreamSpec
from airflow_lakestream.driver.lease_record import fingerprint_of
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.hooks.iceberg import IcebergHook
from airflow_lakestream.hooks.kafka import KafkaHook
from airflow_lakestream.hooks.registry import registry_of
from airflow_lakestream.hooks.spark import SECRET_FILES, BackendKind, DriverSubmission, SparkHook
from airflow_lakestream.hooks.spark_cluster import backend_of
from airflow_lakestream.hooks.store import DeltaStorageHook, store_properties
from airflow_lakestream.lakes import LakeCapability, lake_of_app
from airflow_lakestream.operators.arguments import resolve_interval
from airflow_lakestream.operators.base import run_key
from airflow_lakestream.operators.spark.stream_arguments import StreamArguments
from airflow_lakestream.spark.app_config import LANDING_APPS, AppConfig
from airflow_lakestream.spark.apps import MAINTAIN_ICEBERG, app_path, check_app, package_zip
from airflow_lakestream.spark.lake_settings import catalog_packages, is_on_s3a, s3a_left_out, s3a_packages
from airflow_lakestream.spark.maintenance.config import MaintenanceConfig
from airflow_lakestream.spark.packages import check_java, check_spark, check_submitter, kafka_packages, resolve

if TYPE_CHECKING:
    from airflow_lakestream.spark.frames.function import FrameFunction


@dataclass(frozen=True)
class ConnectionIds:
    """Ids of Airflow's connections for source and target of the records."""

    kafka: str | None
    iceberg: str | None
    storage: str | None = None


def configure_bundled(
    app: str, arguments: Mapping[str, Any], query: Mapping[str, Any], connections: ConnectionIds
) -> DriverConfig:
    """Return the configuration of a driver with a bundled app. Raises InvalidArgument.

    :param app: the app's name, such as `"kafka_to_iceberg"`.
    :param arguments: the app's own arguments: of the landing, or of the maintenance.
    :param query: `owner`, and for a streaming query `checkpoint_location`, `trigger`, `max_batches`,
        `max_offsets_per_trigger`; for a driver without a query `lease_location` and `run_id`. `code` is the fingerprint
        of the user's function. Values may be None.
    :param connections: the connections of source and target; an unneeded id may be None.
    """
    check_app(app)
    settings = {key: value for key, value in query.items() if is_given(value)}
    if app == MAINTAIN_ICEBERG:
        return _maintenance(arguments, settings, connections)
    return _landing(app, arguments, settings, connections)


def _landing(
    app: str, landing: Mapping[str, Any], query: Mapping[str, Any], connections: ConnectionIds
) -> DriverConfig:
    """Return the configuration of a bundled app that lands records. Raises InvalidArgument."""
    if connections.kafka is None:
        raise InvalidArgument("kafka_conn_id", f"is None, but the app {app!r} needs a connection.")
    kafka = KafkaHook(connections.kafka)
    arguments = dict(landing)
    formats = (arguments.get("format", "json"), arguments.get("key_format"))
    if (registry := registry_of(arguments.get("schema_registry"), kafka, *formats)) is not None:
        arguments["schema_registry"] = registry
    lake = _lake_settings(app, connections)
    config = AppConfig.parse({"app": app, "kafka": kafka.configuration(), **lake, "landing": arguments, **query})
    return DriverConfig(config.to_dict(), config.fingerprint, config.inputs)


def _maintenance(work: Mapping[str, Any], query: Mapping[str, Any], connections: ConnectionIds) -> DriverConfig:
    lease_keys = {key: query[key] for key in ("owner", "lease_location") if key in query}
    for key, default in (("trigger", AVAILABLE_NOW), ("max_batches", None), ("max_offsets_per_trigger", None)):
        if query.get(key) != default:
            raise InvalidArgument(key, f"goes with a query; {MAINTAIN_ICEBERG} has no query.", "Leave it out.")
    lake = _lake_settings(MAINTAIN_ICEBERG, connections)
    config = MaintenanceConfig.parse({"app": MAINTAIN_ICEBERG, **lake, "maintenance": dict(work), **lease_keys})
    content = config.to_dict()
    _check_json(content)
    return DriverConfig(content, config.fingerprint, config.inputs)


def configure_own(
    application: str,
    app_config: Mapping[str, Any],
    query: Mapping[str, Any],
    connections: ConnectionIds,
) -> DriverConfig:
    """Return the configuration of a driver with the user's program. Raises InvalidArgument.

    The content has the program's own arguments, the query's arguments, the connections, and the inputs and fingerprint
    for the lease.
    """
    kafka = KafkaHook(connections.kafka).configuration() if connections.kafka else {}
    catalog = _catalog(connections.iceberg) if connections.iceberg else {}
    storage = _storage(connections.storage) if connections.storage else {}
    inputs = {"application": Path(application).name}
    # Without values that differ between the tries and runs of one stream, and without secrets.
    identity = {**query, "app_config": dict(app_config), "application": application, "catalog": catalog.get("name")}
    identity |= {"owner": "", "run_id": "", "kafka": kafka.get("bootstrap.servers")}
    content = {
        **app_config,
        **{key: value for key, value in query.items() if is_given(value)},
        **({"kafka": kafka} if kafka else {}),
        **({"catalog": catalog} if catalog else {}),
        **({"storage": storage} if storage else {}),
        "inputs": inputs,
        "fingerprint": fingerprint_of(identity),
    }
    _check_json(content)
    return DriverConfig(content, content["fingerprint"], inputs)


def _check_json(content: Mapping[str, Any]) -> None:
    """Raise InvalidArgument for content that can't be written as JSON."""
    try:
        json.dumps(content)
    except TypeError as e:
        raise InvalidArgument("app_config", f"it can't be written as JSON: {e}.") from e


def _lake_settings(app: str, connections: ConnectionIds) -> dict[str, Any]:
    """Return the catalog or the storage of an app's tables. Raises InvalidArgument for a missing connection."""
    lake = lake_of_app(app)
    if LakeCapability.CATALOG not in lake.can:
        return {"storage": _storage(connections.storage)}
    if is_given(connections.storage):
        lake.require(LakeCapability.STORE, "storage_conn_id")
    if connections.iceberg is None:
        raise InvalidArgument("iceberg_conn_id", f"is None, but the app {app!r} needs a connection.")
    return {"catalog": _catalog(connections.iceberg)}


def _storage(conn_id: str | None) -> dict[str, str]:
    return dict(DeltaStorageHook(conn_id if is_given(conn_id) else None).open_storage().options)


def _catalog(conn_id: str) -> dict[str, Any]:
    return {"name": conn_id, "properties": IcebergHook(conn_id).properties()}


# Seconds for which the folders of ended runs are kept.
_KEPT_SECONDS = 30 * 86_400


@dataclass(frozen=True)
class DriverPlace:
    """The places of a driver's files.

    :param location: location of the checkpoint, or of the run's lease and progress.
    :param stream: name of the stream, whose drivers have their folders below a common folder.
    """

    location: str
    stream: str
    is_query: bool


def place_of(operator: StreamArguments, run: str, kind: BackendKind) -> DriverPlace:
    """Return the place of a task run's driver.

    A query has its checkpoint. A driver without a query has a folder for each run; in the default folder, folders of
    runs from more than 30 days ago are deleted. Raises InvalidArgument if `checkpoint_location` is missing for a query,
    or for a driver in a cluster.

    :param run: key of the task's run, the same for all tries.
    """
    location = str(operator.checkpoint_location) if is_given(operator.checkpoint_location) else ""
    if _is_query(operator, location):
        if not location:
            raise InvalidArgument("checkpoint_location", "is missing; a query keeps its place there.")
        return DriverPlace(location, location, is_query=True)
    name = fingerprint_of({"run": run})
    stream = f"{operator.dag_id}/{operator.task_id}"
    if location:
        return DriverPlace(f"{location.rstrip('/')}/{name}", stream, is_query=False)
    if kind is not BackendKind.DETACHED:
        raise InvalidArgument(
            "checkpoint_location",
            "is missing: without a query it has no checkpoint, but the driver's lease and progress.",
            "Give a path or URI that workers, triggerer and the cluster share.",
        )
    root = operator.root_folder() / "runs"
    _delete_old_folders(root)
    return DriverPlace(str(root / name), stream, is_query=False)


def _is_query(operator: StreamArguments, location: str) -> bool:
    """Return whether the driver runs a streaming query; a user's program does if it has a checkpoint."""
    if operator.app is None:
        return bool(location)
    if operator.app not in LANDING_APPS:
        return False
    return choose(ModeName, "app_config.mode", operator.app_config.get("mode", ModeName.RESUME)) is ModeName.RESUME


def _delete_old_folders(root: Path) -> None:
    """Delete the folders of old runs."""
    for folder in root.glob("*.lakestream"):
        if folder.stat().st_mtime < time.time() - _KEPT_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)


def import_function(function: str, dag_folder: Path | None, argument: str = TRANSFORM) -> FrameFunction:
    """Import a function in the same way as the driver: the folder of the DAG's file is searched first.

    Raises InvalidArgument if the function does not exist, does not take two arguments, or its module fails.

    :param function: module:function.
    :param dag_folder: the folder of the DAG's file, or None if unknown.
    :param argument: the argument with the function's name, for the error.
    """
    from airflow_lakestream.spark.frames.function import load_function

    with _importing_from(dag_folder):
        return load_function(function, argument)


def write_zip(function: str, dag_folder: Path | None, folder: Path) -> str:
    """Write the function's module, or the package around the module, into a zip; return the zip's path.

    :param function: module:function, imported before.
    :param dag_folder: the folder of the DAG's file, searched first.
    :param folder: the folder for the zip.
    """
    top = function.partition(":")[0].partition(".")[0]
    with _importing_from(dag_folder):
        spec = importlib.util.find_spec(top)
    assert spec is not None, "the module was imported before"
    origin = Path(str(spec.origin)) if spec.origin else Path(next(iter(spec.submodule_search_locations or ())))
    is_package = spec.submodule_search_locations is not None
    root = origin if origin.is_dir() else origin.parent
    files = sorted(root.rglob("*.py")) if is_package else [origin]
    path = folder / "transform.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            archive.write(file, Path(top) / file.relative_to(root) if is_package else file.name)
    return str(path)


@contextmanager
def _importing_from(folder: Path | None) -> Iterator[None]:
    """Search modules in a folder first; without a folder, search as before."""
    if folder is None:
        yield
        return
    sys.path.insert(0, str(folder))
    # Python's cached listing of the folder may be older than a file.
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def build_supervision(operator: StreamArguments, context: Any, wait: Callable[[float], None]) -> DriverSupervision:
    """Check all arguments, and return the supervision of a Spark driver.

    :param wait: waits for some seconds, and raises an error after a signal.

    Raises InvalidArgument.
    """
    check_spark()
    owner, hook = run_key(context), _hook(operator, context)
    place = place_of(operator, owner, hook.kind)
    config = _configured(operator, context, place)
    _add_packages(operator, hook, place)
    spec = StreamSpec(
        location=place.location,
        fingerprint=config.fingerprint,
        inputs=config.inputs,
        limits=operator.limits(),
        poll_interval=operator.seconds_between_looks(),
        by=owner,
        properties=store_properties(operator.store_conn_id()),
    )
    application = operator.application or app_path(str(operator.app))
    launch = _SparkLaunch(operator, config, application, hook, place)
    return DriverSupervision(spec, backend_of(hook), launch.prepare, wait)


@dataclass
class _SparkLaunch:
    """The preparation of submissions."""

    operator: StreamArguments
    config: DriverConfig
    application: str
    hook: SparkHook
    place: DriverPlace

    def prepare(self) -> DriverSubmission:
        """Create a driver's folder with code for executors; return the submission. Raises JavaUnfit, SparkMixed."""
        # The driver may run anywhere, but spark-submit runs here: with an unfit Java it would end without an error.
        environment = self.hook.environment(self.hook.variables)
        check_java(environment)
        if self.operator.app is not None:
            check_submitter(self.hook.binary, environment)
        folder = new_folder(self.operator.root_folder(), self.place.stream, SECRET_FILES)
        code = []
        if (argument_and_function := _function(self.operator)) is not None:
            _, function = argument_and_function
            code.append(write_zip(function, _dag_folder(self.operator), folder))
        if not self.hook.is_local and not is_given(self.operator.py_files):
            code.append(package_zip(folder))
        return DriverSubmission(
            application=self.application,
            folder=folder,
            config=self.config,
            stream=self.place.location,
            settings=self.hook.settings,
            variables=self.hook.variables,
            py_files=code,
        )


def _configured(operator: StreamArguments, context: Any, place: DriverPlace) -> DriverConfig:
    """Return the driver's configuration. Raises InvalidArgument."""
    run = run_key(context)
    query = {"trigger": operator.trigger, "owner": run}
    query |= {name: getattr(operator, name) for name in ("max_batches", "max_offsets_per_trigger")}
    query |= {"checkpoint_location": place.location} if place.is_query else {"lease_location": place.location}
    if not place.is_query:
        query["run_id"] = run
    ids = ConnectionIds(operator.kafka_conn_id, operator.iceberg_conn_id, operator.storage_conn_id)
    if operator.app is None:
        return configure_own(str(operator.application), operator.app_config, query, ids)
    if operator.app == MAINTAIN_ICEBERG:
        return configure_bundled(operator.app, operator.app_config, query, ids)
    landing = {"consumer_group": operator.dag_id, **operator.app_config}
    if (argument_and_function := _function(operator)) is not None:
        argument, function = argument_and_function
        # Part of the fingerprint, so that a running driver with the old code of the function is not adopted.
        query["code"] = import_function(function, _dag_folder(operator), argument).fingerprint
    if landing.get("mode") == ModeName.INTERVAL:
        landing |= resolve_interval(context, landing)
    return configure_bundled(operator.app, landing, query, ids)


def _function(operator: StreamArguments) -> tuple[str, str] | None:
    """Return (argument, function's name) of an app's landing, or None for a landing without a function."""
    landing = operator.app_config if operator.app in LANDING_APPS else {}
    functions = ((argument, str(landing[argument])) for argument in FUNCTIONS if is_given(landing.get(argument)))
    return next(functions, None)


def _dag_folder(operator: StreamArguments) -> Path | None:
    """Return the folder of the DAG's file; None if unknown."""
    file = getattr(operator.dag, "fileloc", None)
    return Path(file).parent if file else None


def _hook(operator: StreamArguments, context: Any) -> SparkHook:
    options = {"name": f"lakestream {operator.dag_id}.{operator.task_id}", **operator.spark_options()}
    if conf.getboolean("openlineage", "spark_inject_parent_job_info", fallback=False):
        # As in Airflow's Spark operator. The driver's parent in OpenLineage is the try that submits the driver.
        options["conf"] = inject_parent_job_information_into_spark_properties(options.get("conf") or {}, context)
    if operator.packages is not None:
        options["packages"] = operator.packages
    return SparkHook(operator.spark_conn_id, **options)


def _add_packages(operator: StreamArguments, hook: SparkHook, place: DriverPlace) -> None:
    """Add the jars that a bundled app needs to the submission, unless the user has specified packages."""
    if operator.packages is not None or operator.app is None:
        return
    packages, without = kafka_packages(), tuple[str, ...]()
    if operator.app == MAINTAIN_ICEBERG:
        packages = catalog_packages(IcebergHook(str(operator.iceberg_conn_id)).properties())
    elif place.is_query and is_on_s3a(place.location):
        packages, without = (*packages, *s3a_packages()), s3a_left_out()
    if hook.kind is BackendKind.KUBERNETES:
        # The driver in a pod can't see this machine's files.
        hook.add_packages(packages, without)
    else:
        hook.add_jars(resolve(packages, without=without))
