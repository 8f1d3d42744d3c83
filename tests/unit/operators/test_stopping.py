"""How a stream is stopped for good is said where the DAG would start the next run at once, and nowhere else."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from airflow.sdk import DAG

from airflow_lakestream.operators.supervised.operator import _how_to_stop

DAGS = sorted((Path(__file__).parents[3] / "dags").glob("*.py"))


def test_the_pause_comes_first() -> None:
    assert _how_to_stop({"dag": DAG("d", schedule=None)}) == ""
    said = _how_to_stop({"dag": DAG("d", schedule="@continuous", max_active_runs=1)})
    assert said.index("first pause the DAG") < said.index("mark this task failed")


@pytest.mark.parametrize("file", DAGS, ids=lambda file: file.stem)
def test_each_dag_says_what_it_does_in_the_list_and_a_continuous_one_how_it_is_stopped(file: Path) -> None:
    dag = runpy.run_path(str(file))["dag"]
    assert dag.description
    assert dag.description == dag.doc_md.partition("\n")[0]
    if dag.schedule == "@continuous":
        assert "first pause the DAG" in " ".join(dag.doc_md.split())
