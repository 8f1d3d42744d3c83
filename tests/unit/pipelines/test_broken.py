"""Broken files of a folder: who hears of them, and how many statements a call checks."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.hooks.dags import dags_in
from airflow_lakestream.pipelines import folder as pipeline_folder
from airflow_lakestream.pipelines.compiled import CompiledPipeline
from airflow_lakestream.pipelines.dags import load_folder
from airflow_lakestream.pipelines.folder import read_folder
from airflow_lakestream.pipelines.yaml_file import FileProblem

NAMES = ("healthy", "sick", "dead")
# Airflow looks for the words "dag" and "airflow" in a file before it reads it.
LOADING = "# The DAGs of pipelines.\nfrom airflow_lakestream.pipelines import load\nload('pipelines')\n"
ALONE = """\
from airflow.sdk import DAG
from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator
with DAG("alone"):
    KafkaExtractOperator(task_id="land", topic="orders", table="lake.orders", format="json")
"""


def content(name: str) -> dict[str, Any]:
    """Return a pipeline, which is right."""
    return {
        "metadata": {"name": name},
        "sources": {"orders": {"type": "kafka", "topic": name}},
        "sinks": {"lake": {"type": "iceberg", "table": f"lake.{name}"}},
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder with a pipeline that is right, and two that are broken."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "home"))
    folder = tmp_path / "dags" / "pipelines"
    folder.mkdir(parents=True)
    for name in NAMES:
        more = {} if name == "healthy" else {"orchestration": {"schedule": "often"}}
        (folder / f"{name}.yaml").write_text(json.dumps({**content(name), **more}))
    return folder


@pytest.mark.parametrize(
    ("asked", "named"),
    [(None, ["dead", "sick"]), ("healthy", []), ("sick", ["sick"]), ("of another file", [])],
    ids=["the DAG processor", "a healthy DAG's task", "a broken DAG's task", "a task of another file"],
)
def test_a_broken_file_is_one_line_and_only_for_those_who_ask_for_it(
    asked: str | None, named: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if asked is not None:
        monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", asked)
    with caplog.at_level(logging.WARNING):
        assert sorted(load_folder(folder)) == sorted(NAMES)
    assert [one.split()[2] for one in caplog.messages] == named
    assert all(f"{name}.yaml:1:" in line for name, line in zip(named, caplog.messages, strict=True))


@pytest.mark.parametrize(("asked", "named"), [("alone", 0), ("sick", 1)])
def test_a_command_for_a_dag_reports_its_own_pipeline_only(
    asked: str, named: int, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder.parent / "load.py").write_text(LOADING)
    (folder.parent / "alone.py").write_text(ALONE)
    dags, errors, _ = dags_in(folder.parent, asked)
    assert asked in dags
    assert errors == {}
    assert caplog.text.count("is broken") == named
    assert "_AIRFLOW_PARSING_CONTEXT_DAG_ID" not in os.environ


@pytest.mark.parametrize(("on_the_clock", "checks"), [(0.5, 6), (1.5, 6), (2.0, 5), (100.0, 1)])
def test_a_call_checks_statements_for_three_seconds_of_a_processor_and_nine_on_the_clock(
    on_the_clock: float, checks: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, processor = [0.0], [0.0]
    checked: list[str] = []

    def check(_: float, one: CompiledPipeline) -> list[FileProblem]:
        clock[0] += on_the_clock
        processor[0] += 0.5
        checked.append(one.name)
        return []

    monkeypatch.setattr(pipeline_folder, "problems_within", check)
    monkeypatch.setattr(pipeline_folder, "_clock_seconds", lambda: clock[0])
    monkeypatch.setattr(pipeline_folder, "_processor_seconds", lambda: processor[0])
    for number in range(20):
        (folder / f"more{number}.yaml").write_text(json.dumps(content(f"more{number}")))
    lookup = dict[str, str]().__getitem__
    assert len(read_folder(folder, lookup, tmp_path / "memory.json", patience=3).right) == 21
    assert len(checked) == checks
    while len(checked) < 21:
        read_folder(folder, lookup, tmp_path / "memory.json", patience=3)
    assert len(set(checked)) == 21
