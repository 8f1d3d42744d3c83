"""Work without a query and its checkpoint, through the operator: the run's own place, links, report, asset events."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_lakestream.driver.lease import read_lease
from tests.support.broker import poll_until
from tests.support.spark_stand_in import launched
from tests.support.spark_stream import PATIENCE, Streams, xcom

pytestmark = pytest.mark.airflow

_OUTLETS = """
from airflow.sdk import Asset, AssetAlias
dag.get_task("stream").outlets.extend([Asset("iceberg://lake/t"), AssetAlias("written")])
"""
PAGES = {"topic_url": "http://ui/topics/{topic}", "table_url": "http://ui/tables?name={table}"}
WHAT = {"topic": "t", "table": "lake.t"}
REPORT = {"rows": 27, "read": 30, "rejected": 3, "skipped": 0, "filtered": 0, "ranges": [[0, 0, 30]], "batches": 3}


@pytest.mark.parametrize("deferrable", [False, True])
def test_what_landed_is_on_the_outlets_events_and_topic_and_table_are_linked(
    streams: Streams, deferrable: bool
) -> None:
    config = {"batches": 3, **WHAT}
    dag_id = f"tells_outlets_{deferrable}"
    run = streams.run(dag_id, config, more=_OUTLETS, deferrable=deferrable, **PAGES)
    assert run.state == "success"
    told = run.task("stream").xcom
    assert {name: told[name] for name in REPORT} == REPORT
    assert (told["tables"], told["topic"], told["table"]) == ({"lake.t": 27}, "t", "lake.t")
    events = run.asset_events
    assert {uri for uri, _ in events} == {"iceberg://lake/t"}
    assert len(events) == 2
    for _, extra in events:
        assert {name: extra[name] for name in REPORT} == REPORT
    assert xcom(run, "_link_TopicLink") == "http://ui/topics/t"
    assert xcom(run, "_link_TableLink") == "http://ui/tables?name=lake.t"


def test_each_run_has_a_place_of_its_own_and_its_tries_share_it(streams: Streams) -> None:
    go = streams.folder / "go"
    config = {"batches": 3, "waits_for": str(go), **WHAT}
    run, file = streams.write("at_once", config, checkpoint_location=None, retries=3)
    with streams.airflow.process(run, file, "stream") as process:
        poll_until(lambda: len(_places(streams)) == 1, "the driver", PATIENCE)
        poll_until(lambda: "Submitted a driver" in process.log, "the submit to be written down", PATIENCE)
        process.terminate()
        streams.await_end(process)
    assert run.task("stream").state == "up_for_retry", process.log
    [place] = _places(streams)
    go.touch()
    with streams.airflow.process(run, file, "stream") as process:
        streams.await_end(process)
    assert run.task("stream").state == "success", process.log
    # The retry has adopted the driver, or has found that it had ended: then the same work is asked for once more.
    told = run.task("stream").xcom
    assert told["rows"] == 27 * launched(place)
    seen = json.loads(Path(f"{place}.seen").read_text())
    assert seen["config"]["run_id"] == f"at_once/stream/{run.run_id}/-1"
    assert "checkpoint_location" not in seen["config"]
    assert seen["modes"]["app.json"] == "0o600"
    lease = read_lease(str(place))
    assert lease is not None
    # Another run of the DAG is other work, in another place.
    other = streams.airflow.run(streams.airflow.dag(file))
    assert other.task("stream").xcom["rows"] == 27
    assert len(_places(streams)) == 2


def _places(streams: Streams) -> list[Path]:
    return [path.with_suffix("") for path in (streams.folder / "drivers" / "runs").glob("*.drivers")]
