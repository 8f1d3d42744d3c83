"""Runs that events of a watched asset have started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.support.airflow_home import AirflowHome, Run


def consume(run: Run, events: Iterable[int]) -> None:
    """Let events, by their ids, be what has started a run, as the scheduler does."""
    from airflow.models.asset import AssetEvent
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        found = session.scalars(select(DagRun).filter_by(dag_id=run.dag_id, run_id=run.run_id)).one()
        wanted = select(AssetEvent).where(AssetEvent.id.in_(list(events))).order_by(AssetEvent.id)
        found.consumed_asset_events.extend(session.scalars(wanted))


def started_by(airflow: AirflowHome, file: Path, asset: str, payloads: Iterable[Mapping[str, Any]]) -> Run:
    """Start a run of a file's DAG by events of a watched asset, as a trigger's payloads make them."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    run = airflow.start(airflow.dag(file))
    with create_session() as session:
        asset_id = session.scalars(select(AssetModel.id).where(AssetModel.name == asset)).one()
        extras = [{"from_trigger": True, "payload": dict(payload)} for payload in payloads]
        events = [AssetEvent(asset_id=asset_id, extra=extra) for extra in extras]
        session.add_all(events)
        session.flush()
        ids = [one.id for one in events]
    consume(run, ids)
    return run
