"""Spark Connect, which the operator refuses, and does not hand on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.spark_stream import Streams

pytestmark = pytest.mark.airflow


@pytest.mark.parametrize(
    ("connection", "arguments", "problem"),
    [
        (
            {"conn_type": "spark", "host": "sc://server:15002"},
            {},
            "spark_conn_id: the connection leads to Spark Connect",
        ),
        ({"conn_type": "spark_connect", "host": "server", "port": 15002}, {}, "the connection leads to Spark Connect"),
        ("sc://server:15002", {}, "the connection leads to Spark Connect"),
        (
            None,
            {"conf": {"spark.remote": "sc://s:1/;user_id=canary"}},
            "conf: spark.remote=sc://s:1/ asks for Spark Connect",
        ),
        (None, {"conf": {"spark.api.mode": "connect"}}, "conf: spark.api.mode=connect asks"),
        (None, {"env_vars": {"SPARK_REMOTE": "sc://s:1/;user_id=canary"}}, "env_vars: SPARK_REMOTE asks"),
    ],
)
def test_spark_connect_is_refused_with_the_reason_before_anything_is_submitted(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, connection: Any, arguments: dict[str, Any], problem: str
) -> None:
    if connection is not None:
        told = connection if isinstance(connection, str) else json.dumps(connection)
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", told)
    run = streams.run("on_connect", retries=3, **arguments)
    assert [type(error).__name__ for error in run.errors] == ["AirflowFailException"]
    assert problem in str(run.errors[0])
    assert "its client has no SparkContext" in str(run.errors[0])
    assert "canary" not in str(run.errors[0])
    assert not (streams.folder / "drivers").exists()


def test_a_workers_own_spark_connect_is_not_the_drivers(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    assert streams.run("beside_connect", {"batches": 1}).task("stream").state == "success"
    seen = json.loads(Path(f"{streams.location}.seen").read_text())
    assert "SPARK_REMOTE" not in seen["environment"]
