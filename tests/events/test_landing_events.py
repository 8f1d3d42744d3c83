"""Landings told by a real triggerer that is killed again and again, and handled by real tasks: each once.

`make soak-events LANDINGS=500 KILLS=20`
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.airflow_home import ICEBERG_CONNECTION, AirflowHome, Run
from tests.support.broker import poll_until
from tests.support.sensing import TASK, Sensing
from tests.support.told import ToldTable
from tests.support.watched import consume

pytestmark = [pytest.mark.integration, pytest.mark.airflow]

KILLS = int(os.environ.get("LAKESTREAM_KILLS", "1"))
LANDINGS = int(os.environ.get("LAKESTREAM_LANDINGS", "12"))
SEED = int(os.environ.get("LAKESTREAM_KILLS_SEED", "7"))
PATIENCE = 400.0
MOST_UNTOLD = 5
DAG_ID = "told_landings"
# A run takes the events of so many; in Airflow as many as came meanwhile.
RUNS = 2 if LANDINGS < 100 else 12
_DAG = """
from pathlib import Path

from airflow.sdk import DAG, Asset, AssetWatcher, task
from airflow_lakestream.events import once_per_landing
from airflow_lakestream.triggers.landing_event import LandingEventTrigger

trigger = LandingEventTrigger(table="lake.told", poll_interval=0.5)
first, second = (
    Asset(name, watchers=[AssetWatcher(name=f"of_{{name}}", trigger=trigger)]) for name in ("told_first", "told_second")
)

with DAG({dag_id!r}, schedule=[first], max_active_runs=1, is_paused_upon_creation=False) as dag:

    @task(task_id={task!r}, inlets=[first], retries=1)
    @once_per_landing
    def roll_up(landings, ti=None):
        if ti.try_number == 1 and Path({fails!r}).exists():
            Path({fails!r}).unlink()
            raise RuntimeError("killed before anything was done")
        with Path({done!r}).open("a") as done:
            done.writelines(landing["landing_id"] + "\\n" for landing in landings)

    roll_up()

with DAG({dag_id!r} + "_second", schedule=[second], is_paused_upon_creation=False) as other:
    pass
"""


class Landing:
    """Lands in the background, with other commits between, and one rollback."""

    def __init__(self, table: ToldTable, count: int) -> None:
        self.table, self.left, self.taken_back = table, count, set[str]()
        self.thread = threading.Thread(target=self._land)
        self.pause = 1.0

    def _land(self) -> None:
        at_half = self.left // 2
        while self.left:
            if self.pause and len(self.table.landed) - len(set(ids("told_first"))) > MOST_UNTOLD:
                # However slow the machine is, there is something to tell when a kill comes.
                time.sleep(self.pause)
            elif self.table.rng.random() < 0.25:
                self.table.other()
            else:
                self.table.land()
                self.left -= 1
                if self.left == at_half:
                    self.taken_back |= set(self.table.roll_back())
            time.sleep(self.table.rng.uniform(0, self.pause))

    @contextmanager
    def going_on(self) -> Iterator[None]:
        self.thread.start()
        try:
            yield
        finally:
            self.pause = 0.0
            self.thread.join()


def told(asset: str) -> list[tuple[int, dict[str, Any]]]:
    """Return (id, payload) of an asset's events."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        wanted = (
            select(AssetEvent).join(AssetModel, AssetModel.id == AssetEvent.asset_id).where(AssetModel.name == asset)
        )
        return [(one.id, dict(one.extra["payload"])) for one in session.scalars(wanted.order_by(AssetEvent.id))]


def ids(asset: str) -> list[str]:
    return [payload["landing_id"] for _, payload in told(asset)]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToldTable:
    given = ToldTable(tmp_path, random.Random(SEED))
    monkeypatch.setenv(
        ICEBERG_CONNECTION, json.dumps({"conn_type": "iceberg", "extra": {"type": "sql", **given.where}})
    )
    return given


def test_each_landing_is_told_through_kills_and_handled_once(
    airflow: AirflowHome, sensing: Sensing, table: ToldTable, tmp_path: Path
) -> None:
    done, fails = tmp_path / "done", tmp_path / "fails"
    file = airflow.write(DAG_ID, _DAG.format(dag_id=DAG_ID, task=TASK, done=str(done), fails=str(fails)))
    for dag in airflow.bag(file).dags.values():
        airflow._make_known(dag)
    chance = random.Random(SEED)
    landing = Landing(table, LANDINGS)
    sensing.triggerer.start()
    poll_until(lambda: cursors() == 2, "the triggerer to begin", PATIENCE, every=0.5)
    with landing.going_on():
        for _ in range(KILLS):
            before = len(told("told_first"))
            poll_until(lambda seen=before: len(told("told_first")) > seen or not landing.left, "an event", PATIENCE)
            time.sleep(chance.uniform(0, 3))  # the kill comes at any moment of its life
            sensing.triggerer.kill()
            sensing.triggerer.start()
    last = table.land()
    poll_until(lambda: last in ids("told_first") and last in ids("told_second"), "the last landing", PATIENCE)
    sensing.triggerer.kill()

    for asset in ("told_first", "told_second"):
        seen = ids(asset)
        # What was taken back may have been told before.
        assert set(table.landed) - landing.taken_back <= set(seen) <= set(table.landed)
        in_order = [one for one in dict.fromkeys(seen) if one not in landing.taken_back]
        assert in_order == [one for one in table.landed if one not in landing.taken_back]
    snapshots = {str(s.snapshot_id) for s in table.table.snapshots()}
    assert {payload["snapshot_id"] for _, payload in told("told_first")} <= snapshots

    events = [event for event, _ in told("told_first")]
    size = -(-len(events) // RUNS)
    for start in range(0, len(events), size):
        # The last event of the run before comes again, as after a kill.
        handle(airflow, sensing, file, events[max(0, start - 1) : start + size], fails if start else None)
    # And a run of nothing new is skipped.
    assert handle(airflow, sensing, file, events[-1:], None) == "skipped"
    assert Counter(done.read_text().split()) == Counter(dict.fromkeys(ids("told_first"), 1))


def handle(airflow: AirflowHome, sensing: Sensing, file: Path, events: list[int], fails: Path | None) -> str:
    """Let a run with these events go through, whose first try may fail; return its task's state."""
    run = airflow.start(airflow.bag(file).dags[DAG_ID])
    consume(run, events)
    if fails is not None and not list(fails.parent.glob("failed")):
        fails.touch()
        (fails.parent / "failed").touch()
    sensing.schedule(run)
    work(airflow, run, file)
    if run.task(TASK).state == "up_for_retry":
        work(airflow, run, file)
    state = run.task(TASK).state
    assert state in ("success", "skipped")
    return state


def work(airflow: AirflowHome, run: Run, file: Path) -> None:
    with airflow.process(run, file, TASK) as process:
        process.wait(PATIENCE)
        assert run.task(TASK).state in ("success", "skipped", "up_for_retry"), process.log


def cursors() -> int:
    """Return how many assets have a cursor."""
    from airflow.models.asset_state_store import AssetStateStoreModel
    from airflow.utils.session import create_session
    from sqlalchemy import func, select

    with create_session() as session:
        return session.scalar(select(func.count()).select_from(AssetStateStoreModel)) or 0
