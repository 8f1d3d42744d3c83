"""The parts of a task that has a driver, put together from the operator's arguments."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from airflow_lakestream.core.policies import ModeName, is_given, seconds
from airflow_lakestream.driver.backends import BackendKind, Job
from airflow_lakestream.driver.driving import Driving, StreamSpec
from airflow_lakestream.driver.supervisor import History, Limits
from airflow_lakestream.hooks.iceberg import IcebergHook
from airflow_lakestream.hooks.spark import SparkHook
from airflow_lakestream.hooks.spark_cluster import backend_of
from airflow_lakestream.hooks.store import store_properties
from airflow_lakestream.operators.base import run_key
from airflow_lakestream.operators.interval import resolve_interval
from airflow_lakestream.operators.spark.arguments import count_from_zero
from airflow_lakestream.operators.spark.config import ConnectionIds, DriverConfig, bundled, new_folder, own
from airflow_lakestream.operators.spark.place import Place, folder_of, place_of
from airflow_lakestream.operators.spark.stream_arguments import StreamArguments
from airflow_lakestream.spark.apps import DELTA_APPS, MAINTAIN_ICEBERG, app_path, package_zip
from airflow_lakestream.spark.packages import kafka_packages, resolve
from airflow_lakestream.spark.settings import s3a
from airflow_lakestream.spark.settings.catalog import catalog_packages
from airflow_lakestream.stores.folders import is_object_store
from airflow_lakestream.triggers.spark_stream import SparkStreamTrigger

if TYPE_CHECKING:
    from airflow_lakestream.operators.spark.task_report import TaskReport

log = logging.getLogger(__name__)

# Seconds between two looks. In the triggerer many streams are looked at: each look takes a millisecond.
_POLL = 5.0
_POLL_DEFERRED = 30.0


def driving_of(operator: StreamArguments, context: Any, wait: Callable[[float], None]) -> Driving:
    """Check all arguments, and return what finds or submits the driver. Raises InvalidArgument."""
    owner, hook = run_key(context), _hook(operator, operator.dag_id)
    place = place_of(operator, owner, hook.kind)
    config = _configured(operator, context, place)
    _add_packages(operator, hook, place)
    spec = StreamSpec(
        location=place.location,
        fingerprint=config.fingerprint,
        inputs=config.inputs,
        limits=Limits(**limits_of(operator)),
        poll_interval=_poll_interval(operator, _POLL),
        by=owner,
        properties=store_properties(_store(operator)),
    )
    application = operator.application or app_path(str(operator.app))
    launch = _Launch(operator, config, application, hook, place.stream)
    return Driving(spec, backend_of(hook, application), launch.prepare, wait)


def limits_of(operator: StreamArguments) -> dict[str, Any]:
    """Return how much is borne, as `Limits` has it. Raises InvalidArgument."""

    def bound(name: str) -> float | None:
        value = getattr(operator, name)
        return seconds(name, value) if is_given(value) else None

    required = ("healthy_after", "start_timeout", "unknown_timeout")
    return {
        "max_restarts": count_from_zero("max_restarts", operator.max_restarts),
        "backoff": seconds("restart_backoff", operator.restart_backoff),
        "stall_timeout": bound("stall_timeout"),
        "stop_timeout": bound("stop_timeout"),
        **{name: seconds(name, getattr(operator, name)) for name in required},
    }


def trigger_of(operator: StreamArguments, driving: Driving, history: History, told: TaskReport) -> SparkStreamTrigger:
    """Return what watches the driver in the triggerer."""
    return SparkStreamTrigger(
        checkpoint_location=driving.spec.location,
        generation=driving.generation,
        limits=asdict(driving.spec.limits),
        history=history.to_dict(),
        poll_interval=_poll_interval(operator, _POLL_DEFERRED),
        on_kill_action=operator.on_kill_action,
        seen=told.progress.batches,
        begun=told.begun,
        restarts=told.restarts,
        storage_conn_id=_store(operator),
    )


def state_at_server(ti: Any) -> str | None:
    """Ask Airflow's API server for the state that it has for a task instance; None where it does not say."""
    try:
        states = ti.get_task_states(ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=ti.map_index)
        name = ti.task_id if ti.map_index < 0 else f"{ti.task_id}_{ti.map_index}"
        # A task that was cleared, and not scheduled again yet, has none.
        return str(states[ti.run_id][name] or "cleared")
    except Exception as e:  # noqa: BLE001  # whatever is wrong: the stream is left alone then, and the retry finds it
        log.warning("The state of this task could not be had: %s: %s", type(e).__name__, e)
        return None


@dataclass
class _Launch:
    """Makes what is launched, anew for each launch."""

    operator: StreamArguments
    config: DriverConfig
    application: str
    hook: SparkHook
    stream: str

    def prepare(self) -> Job:
        folder = new_folder(folder_of(self.operator), self.stream)
        file = self.config.write(folder)
        path = str(file)
        if self.hook.kind is not BackendKind.DETACHED:
            # The cluster brings it into the driver's working folder.
            self.hook.add_file(path)
            path = file.name
        if not self.hook.is_local and not is_given(self.operator.py_files):
            self.hook.add_py_file(package_zip(folder))
        return Job(self.hook.command(self.application, folder, ["--config", path]), self.hook.environment(), folder)


def _configured(operator: StreamArguments, context: Any, place: Place) -> DriverConfig:
    run = run_key(context)
    query = {"trigger": operator.trigger, "owner": run}
    query |= {name: getattr(operator, name) for name in ("max_batches", "max_offsets_per_trigger")}
    query |= {"checkpoint_location": place.location} if place.is_query else {"lease_location": place.location}
    if not place.is_query:
        query["run_id"] = run
    ids = ConnectionIds(operator.kafka_conn_id, operator.iceberg_conn_id, operator.storage_conn_id)
    if operator.app is None:
        return own(str(operator.application), operator.app_config, query, ids)
    if operator.app == MAINTAIN_ICEBERG:
        return bundled(operator.app, operator.app_config, query, ids)
    landing = {"consumer_group": operator.dag_id, **operator.app_config}
    if landing.get("mode") == ModeName.INTERVAL:
        landing |= resolve_interval(context, landing)
    return bundled(operator.app, landing, query, ids)


def _hook(operator: StreamArguments, dag_id: str) -> SparkHook:
    options = {"name": f"lakestream {dag_id}.{operator.task_id}", **operator.spark_options()}
    if operator.packages is not None:
        options["packages"] = operator.packages
    return SparkHook(operator.spark_conn_id, **options)


def _add_packages(operator: StreamArguments, hook: SparkHook, place: Place) -> None:
    if operator.packages is not None or operator.app is None:
        return
    packages, without = kafka_packages(), tuple[str, ...]()
    if operator.app == MAINTAIN_ICEBERG:
        packages = catalog_packages(IcebergHook(str(operator.iceberg_conn_id)).properties())
    elif place.is_query and s3a.is_on_s3a(place.location):
        packages, without = (*packages, *s3a.packages()), s3a.left_out()
    if hook.kind is BackendKind.KUBERNETES:
        # Its driver can't see this machine's files.
        hook.add_packages(packages, without)
    else:
        hook.add_jars(resolve(packages, without=without))


def _poll_interval(operator: StreamArguments, default: float) -> float:
    given = operator.poll_interval
    return seconds("poll_interval", given) if is_given(given) else default


def _store(operator: StreamArguments) -> str | None:
    """Return the connection that opens the object store where lease and checkpoint lie; None where there is none."""
    location = operator.checkpoint_location
    if not is_given(location) or not is_object_store(str(location)):
        return None
    if operator.app in DELTA_APPS or operator.iceberg_conn_id is None:
        return operator.storage_conn_id
    return operator.iceberg_conn_id
