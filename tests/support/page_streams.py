"""Streams in the database as runs leave them there, made without a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import DAG
    from sqlalchemy.orm import Session

BUNDLE = "made"


def report(topic: str, table: str, start: int, until: int, **more: Any) -> dict[str, Any]:
    """Return what a landing of one partition reports."""
    return {
        "topic": topic,
        "table": table,
        "consumer_group": f"{topic}_group",
        "read": until - start,
        "rows": until - start,
        "tables": {table: until - start},
        "rejected": 0,
        "skipped": 0,
        "remaining_lag": 0,
        "snapshot_ids": [str(10**18 + until)],
        "ranges": [[0, start, until]],
        "lost": [],
        "schema_changes": [],
        **more,
    }


def know(session: Session, dag: DAG, *, paused: bool = False) -> None:
    """Write a DAG down as the DAG processor does, with its outlets."""
    from airflow.models.asset import AssetModel, TaskOutletAssetReference
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.serialization.serialized_objects import LazyDeserializedDAG
    from sqlalchemy import select

    if session.get(DagBundleModel, BUNDLE) is None:
        session.add(DagBundleModel(name=BUNDLE))
        session.flush()
    model = DagModel(
        dag_id=dag.dag_id,
        bundle_name=BUNDLE,
        is_stale=False,
        is_paused=paused,
        fileloc="made.py",
        max_active_tasks=1,
        max_consecutive_failed_dag_runs=0,
    )
    session.merge(model)
    session.flush()
    SerializedDagModel.write_dag(LazyDeserializedDAG.from_dag(dag), bundle_name=BUNDLE, session=session)
    for task in dag.tasks:
        for outlet in task.outlets:
            asset = session.scalar(select(AssetModel).where(AssetModel.name == outlet.name))
            if asset is None:
                asset = AssetModel(name=outlet.name, uri=outlet.uri, group="asset")
                session.add(asset)
                session.flush()
            session.merge(TaskOutletAssetReference(asset_id=asset.id, dag_id=dag.dag_id, task_id=task.task_id))
    session.flush()


def run(
    session: Session,
    dag_id: str,
    states: Mapping[str, str],
    at: datetime,
    xcoms: Iterable[tuple[str, int, str, Any]] = (),
    *,
    mapped: Mapping[str, Iterable[str]] | None = None,
    conf: Mapping[str, Any] | None = None,
) -> str:
    """Make a run, which has ended unless one of its tasks runs, and return its id.

    :param states: by task how it ended.
    :param xcoms: (task, map index, key, value) each.
    :param mapped: by mapped task how each of its parts ended.
    :param conf: what the form has sent.
    """
    from airflow.models.dag_version import DagVersion
    from airflow.models.dagrun import DagRun
    from airflow.models.xcom import XComModel
    from airflow.utils.state import DagRunState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType
    from sqlalchemy import insert

    run_id, version = f"manual__{at.isoformat()}", DagVersion.get_latest_version(dag_id, session=session)
    all_states = [*states.values(), *(one for many in (mapped or {}).values() for one in many)]
    ended = DagRunState.FAILED if "failed" in all_states else DagRunState.SUCCESS
    made = DagRun(
        dag_id=dag_id,
        run_id=run_id,
        logical_date=at,
        run_after=at,
        run_type=DagRunType.MANUAL,
        conf=dict(conf or {}),
        triggered_by=DagRunTriggeredByType.TEST,
        state=DagRunState.RUNNING if "running" in all_states else ended,
    )
    made.start_date = at
    made.end_date = None if "running" in all_states else at
    session.add(made)
    session.flush()
    tries = [(task_id, -1, state) for task_id, state in states.items()]
    tries += [(task_id, n, state) for task_id, many in (mapped or {}).items() for n, state in enumerate(many)]
    _write_tries(session, dag_id, run_id, tries, at, version.id)
    told = [
        {"dag_run_id": made.id, "dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": n}
        | {"key": key, "value": value, "timestamp": at}
        for task_id, n, key, value in xcoms
    ]
    if told:
        session.execute(insert(XComModel), told)
    return run_id


def render(session: Session, dag_id: str, run_id: str, fields: Mapping[str, Any]) -> None:
    """Write down what Airflow shows of a task's arguments, as a run had them."""
    from airflow.models.renderedtifields import RenderedTaskInstanceFields
    from sqlalchemy import insert

    key = {"dag_id": dag_id, "task_id": "land", "run_id": run_id, "map_index": -1}
    session.execute(insert(RenderedTaskInstanceFields), [{**key, "rendered_fields": dict(fields)}])


def _write_tries(
    session: Session, dag_id: str, run_id: str, tries: Iterable[tuple[str, int, str]], at: datetime, version: Any
) -> None:
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import insert

    rows = [
        {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": n, "state": state}
        | {"start_date": at, "end_date": at, "dag_version_id": version, "pool": "default_pool", "try_number": 1}
        | {"max_tries": 0, "queue": "default", "priority_weight": 1, "pool_slots": 1, "custom_operator_name": ""}
        for task_id, n, state in tries
    ]
    session.execute(insert(TaskInstance), rows)


def land(session: Session, dag_id: str, outlet: str, run_id: str, at: datetime, extra: Mapping[str, Any]) -> None:
    """Write the asset event of a landing."""
    from airflow.models.asset import AssetEvent, AssetModel
    from sqlalchemy import insert, select

    asset = session.scalar(select(AssetModel.id).where(AssetModel.name == outlet))
    source = {"source_dag_id": dag_id, "source_task_id": "land", "source_run_id": run_id, "source_map_index": -1}
    session.execute(insert(AssetEvent), [{"asset_id": asset, "timestamp": at, "extra": dict(extra), **source}])
