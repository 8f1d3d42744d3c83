"""DAGs that must fail: at the first try, saying which argument and what to do, and leaving nothing half made."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from tests.support.airflow_home import CASES, AirflowHome, Connections

FILES = sorted((CASES / "failing").glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_fails_at_once_and_says_what_to_do(
    file: Path, airflow: AirflowHome, connections: Connections, topic, produce
) -> None:
    name = topic(1)
    produce(name, 0, [b'{"n":1}', b'{"n":2}', b'{"n":', b'{"n":4}'] if file.stem == "bad_record" else [b'{"n":1}'])
    run = airflow.run(airflow.dag(file), {"topic": name})
    assert (run.state, run.task().tries) == ("failed", 1)
    [error] = run.errors
    assert isinstance(error, AirflowFailException)
    for word in runpy.run_path(str(file))["EXPECTED"]:
        assert word in str(error)
    assert run.task().xcom is None
    assert run.asset_events == []
    assert connections.catalog.list_namespaces() == []
    assert not [path for path in connections.warehouse.rglob("*") if path.is_file()]
