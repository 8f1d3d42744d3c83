"""A deadline alert by Airflow's own scheduler and triggerer, on a home of their own: they run whatever they find."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.airflow_home import CHECKOUT, settings
from tests.support.broker import poll_until
from tests.support.sensing import PATIENCE
from tests.support.statsd import StatsD

pytestmark = [pytest.mark.integration, pytest.mark.airflow, pytest.mark.long]

_DAG = """
import datetime
from airflow.sdk import DAG
from airflow.sdk.definitions.deadline import AsyncCallback, DeadlineAlert, DeadlineReference
from airflow_lakestream.alerts import tell_deadline
from airflow_lakestream.sensors.checkpoint_lag import CheckpointLagSensor

alert = DeadlineAlert(
    reference=DeadlineReference.DAGRUN_QUEUED_AT,
    interval=datetime.timedelta(seconds=1),
    callback=AsyncCallback(tell_deadline, kwargs={"team": "lake"}),
)
with DAG("late", schedule=None, deadline=alert, is_paused_upon_creation=False):
    # A pool that is not there keeps it waiting.
    CheckpointLagSensor(task_id="waits", group_id="g", topic="t", pool="nowhere")
"""


class Home:
    """An Airflow of the test alone, with the one DAG."""

    def __init__(self, folder: Path) -> None:
        (folder / "written").mkdir(parents=True)
        (folder / "written" / "late.py").write_text(_DAG)
        self._folder = folder
        others = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW__DAG_PROCESSOR")}
        own = settings(folder) | {"AIRFLOW__CORE__DAGS_FOLDER": str(folder / "written")}
        del own["AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"]
        # It would listen on all addresses.
        self._environment = {**others, **own, "AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK": "False"}
        self._started: list[subprocess.Popen[bytes]] = []

    def run(self, *arguments: str) -> None:
        """Run a command of Airflow to its end."""
        command = [sys.executable, "-m", "airflow", *arguments]
        done = subprocess.run(
            command, env=self._environment, cwd=CHECKOUT, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr[-3000:]

    def start(self, service: str) -> None:
        """Start a service of Airflow; it ends with the test."""
        command = [sys.executable, "-m", "airflow", service, "--skip-serve-logs"]
        with self._log(service).open("ab") as log:
            self._started.append(subprocess.Popen(command, env=self._environment, cwd=CHECKOUT, stdout=log, stderr=log))

    def logged(self, service: str) -> str:
        """Return what a service has logged."""
        return self._log(service).read_text()

    def stop(self) -> None:
        """End the services."""
        for one in self._started:
            one.terminate()
        for one in self._started:
            try:
                one.wait(60)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()

    def _log(self, service: str) -> Path:
        return self._folder / f"{service}.log"


@pytest.fixture
def home(tmp_path: Path, statsd: StatsD) -> Iterator[Home]:
    """Give an Airflow that sends its metrics to the test."""
    given = Home(tmp_path / "airflow")
    yield given
    given.stop()


def test_the_scheduler_finds_a_late_run_and_the_triggerer_tells_of_it(home: Home, statsd: StatsD) -> None:
    home.run("db", "migrate")
    home.run("dags", "reserialize")
    home.run("dags", "trigger", "late", "--run-id", "too_slow")
    home.start("scheduler")
    home.start("triggerer")
    try:
        poll_until(lambda: bool(statsd.named("alerts")), "the alert", PATIENCE)
    except TimeoutError as e:
        raise AssertionError(f"{e}\n{home.logged('scheduler')[-3000:]}\n{home.logged('triggerer')[-3000:]}") from e
    home.stop()
    assert statsd.sum("alerts", kind="deadline", dag_id="late") == len(statsd.named("alerts")) == 1
    text = home.logged("triggerer")
    assert "ALERT run too_slow of late was not done at" in text
    assert "team: lake" in text
