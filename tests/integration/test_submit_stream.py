"""SparkStreamingSubmitOperator on a real Airflow, its driver a stand-in without a JVM."""

from __future__ import annotations

import pytest

from tests.support.spark_stand_in import launched, most_drivers
from tests.support.spark_stream import Streams

pytestmark = pytest.mark.airflow


def test_a_stream_that_ends_is_reported(streams: Streams) -> None:
    run, log = streams.run("ends", {"batches": 3})
    task = run.task("stream")
    assert task.state == "success", log
    assert {name: task.xcom[name] for name in ("batches", "rows_in", "rows_out", "rejected", "restarts", "lag")} == {
        "batches": 3,
        "rows_in": 30,
        "rows_out": 27,
        "rejected": 3,
        "restarts": 0,
        "lag": 7,
    }
    assert "batch 3: 10 records in, 9 rows out" in log
    assert (launched(streams.location), most_drivers(streams.location)) == (1, 1)
