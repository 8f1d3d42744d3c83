"""Parts of a task with a Spark driver, built from the operator's arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow.providers.common.compat.openlineage.utils.spark import inject_parent_job_information_into_spark_properties
from airflow.providers.common.compat.sdk import conf

from airflow_lakestream.core.names import FUNCTIONS
from airflow_lakestream.core.policies import ModeName, is_given
from airflow_lakestream.driver.driving import DriverSupervision, StreamSpec
from airflow_lakestream.driver.job_folder import DriverConfig, new_folder
from airflow_lakestream.hooks.iceberg import IcebergHook
from airflow_lakestream.hooks.spark import SECRET_FILES, BackendKind, SparkHook
from airflow_lakestream.hooks.spark_cluster import backend_of
from airflow_lakestream.hooks.spark_submission import DriverSubmission
from airflow_lakestream.hooks.store import store_properties
from airflow_lakestream.operators.base import run_key
from airflow_lakestream.operators.interval import resolve_interval
from airflow_lakestream.operators.spark.code import import_function, write_zip
from airflow_lakestream.operators.spark.config import ConnectionIds, configure_bundled, configure_own
from airflow_lakestream.operators.spark.place import DriverPlace, folder_of, place_of
from airflow_lakestream.operators.spark.stream_arguments import StreamArguments
from airflow_lakestream.spark.app_config import LANDING_APPS
from airflow_lakestream.spark.apps import MAINTAIN_ICEBERG, app_path, package_zip
from airflow_lakestream.spark.java import check_java
from airflow_lakestream.spark.packages import check_spark, kafka_packages, resolve
from airflow_lakestream.spark.settings import s3a
from airflow_lakestream.spark.settings.catalog import catalog_packages


def build_supervision(operator: StreamArguments, context: Any, wait: Callable[[float], None]) -> DriverSupervision:
    """Check all arguments, and return the supervision of the driver. Raises InvalidArgument."""
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
    """Prepares a new submission for each launch."""

    operator: StreamArguments
    config: DriverConfig
    application: str
    hook: SparkHook
    place: DriverPlace

    def prepare(self) -> DriverSubmission:
        # The driver may run anywhere, but spark-submit runs here: with another Java version it ends without an error.
        check_java(self.hook.environment(self.hook.variables))
        folder = new_folder(folder_of(self.operator), self.place.stream, SECRET_FILES)
        code = []
        if (function := _function(self.operator)) is not None:
            code.append(write_zip(function[1], _dag_folder(self.operator), folder))
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
    if (function := _function(operator)) is not None:
        query["code"] = import_function(function[1], _dag_folder(operator), function[0]).fingerprint
    if landing.get("mode") == ModeName.INTERVAL:
        landing |= resolve_interval(context, landing)
    return configure_bundled(operator.app, landing, query, ids)


def _function(operator: StreamArguments) -> tuple[str, str] | None:
    """Return (argument, function) of the function in an app's landing, or None without a function."""
    given = operator.app_config if operator.app in LANDING_APPS else {}
    named = ((argument, str(given[argument])) for argument in FUNCTIONS if is_given(given.get(argument)))
    return next(named, None)


def _dag_folder(operator: StreamArguments) -> Path | None:
    """Return the folder of the DAG's file."""
    file = getattr(operator.dag, "fileloc", None)
    return Path(file).parent if file else None


def _hook(operator: StreamArguments, context: Any) -> SparkHook:
    options = {"name": f"lakestream {operator.dag_id}.{operator.task_id}", **operator.spark_options()}
    if conf.getboolean("openlineage", "spark_inject_parent_job_info", fallback=False):
        # As in the official operator. A driver outlives its task's tries: its parent is the try that submitted it.
        options["conf"] = inject_parent_job_information_into_spark_properties(options.get("conf") or {}, context)
    if operator.packages is not None:
        options["packages"] = operator.packages
    return SparkHook(operator.spark_conn_id, **options)


def _add_packages(operator: StreamArguments, hook: SparkHook, place: DriverPlace) -> None:
    if operator.packages is not None or operator.app is None:
        return
    packages, without = kafka_packages(), tuple[str, ...]()
    if operator.app == MAINTAIN_ICEBERG:
        packages = catalog_packages(IcebergHook(str(operator.iceberg_conn_id)).properties())
    elif place.is_query and s3a.is_on_s3a(place.location):
        packages, without = (*packages, *s3a.packages()), s3a.left_out()
    if hook.kind is BackendKind.KUBERNETES:
        # The driver in a pod can't see this machine's files.
        hook.add_packages(packages, without)
    else:
        hook.add_jars(resolve(packages, without=without))
