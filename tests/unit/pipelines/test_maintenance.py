"""The section `maintenance` of pipelines: a DAG of its own, and its mistakes by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.cli.app import run
from airflow_lakestream.pipelines.check import check
from airflow_lakestream.pipelines.compiled import CompiledPipeline
from airflow_lakestream.pipelines.dags import load_folder
from airflow_lakestream.pipelines.operator import calls_of, python_of
from airflow_lakestream.pipelines.reading import read_file
from airflow_lakestream.pipelines.yaml_file import PipelineError

SHOP = """\
metadata: {name: shop, owner: me}
sources:
  orders: {type: kafka, topic: shop.orders}
  clicks: {type: kafka, topic: shop.clicks}
sinks:
  lake: {type: iceberg, table: lake.orders, connection: my_lake}
  clicks: {type: delta, table: /lake/clicks, input: clicks, connection: my_store}
orchestration:
  schedule: "*/5 * * * *"
  alerts: {on_failure: log, deadline: 1h}
"""


def compiled(folder: Path, maintenance: str, text: str = SHOP) -> CompiledPipeline:
    path = folder / "shop.yaml"
    path.write_text(f"{text}maintenance: {maintenance}\n")
    return read_file(path, {}.__getitem__)


def test_each_table_is_a_task_of_a_dag_of_its_own(tmp_path: Path) -> None:
    rule = "retention_column: at, keep: 90 days, exact: true"
    more = f"{rule}, expire_older_than: 7d, retain_last: 3, orphans_older_than: 4d, longest_run: 2d, budget: 20m"
    found = compiled(tmp_path, f"{{schedule: '@daily', target_file_size: 1000, rewrite_manifests: false, {more}}}")
    check(found)
    upkeep = found.upkeep
    assert upkeep is not None
    assert (upkeep.name, upkeep.cron, upkeep.owner, upkeep.deadline) == ("shop-maintenance", "@daily", "me", None)
    assert upkeep.on_failure
    works = {
        "retention": {"column": "at", "keep": "90 days", "exact": True},
        "compact": {"options": {"target-file-size-bytes": 1000}},
        "rewrite_manifests": False,
        "expire": {"older_than": "7d", "retain_last": 3},
        "remove_orphans": {"older_than": "4d", "longest_run": "2d"},
        "budget": "20m",
    }
    calls = {call.task_id: dict(call.arguments) for call in calls_of(upkeep)}
    assert calls == {
        "maintain": {"tables": ["lake.orders", "lake.orders__*"], **works, "iceberg_conn_id": "my_lake"},
        "maintain_clicks": {"tables": ["/lake/clicks"], **works, "storage_conn_id": "my_store"},
    }
    assert {call.name for call in calls_of(upkeep)} == {"LakestreamMaintainOperator"}
    assert {call.name for call in calls_of(found)} == {"KafkaExtractOperator"}
    assert CompiledPipeline.of_dict(json.loads(json.dumps(found.to_dict()))) == found
    printed = python_of(found)
    names: dict[str, Any] = {}
    exec(compile(printed, "printed", "exec"), names)  # the text that `lakestream pipeline render` prints
    assert printed.count("with DAG(") == 2


def test_by_default_all_works_are_done_each_night(tmp_path: Path) -> None:
    upkeep = compiled(tmp_path, "{sinks: lake}").upkeep
    assert upkeep is not None
    [call] = calls_of(upkeep)
    assert upkeep.cron == "0 3 * * *"
    works = dict.fromkeys(("retention", "compact", "expire", "remove_orphans", "rewrite_manifests"), True)
    tables = ["lake.orders", "lake.orders__*"]
    assert call.arguments == {"tables": tables, **works, "iceberg_conn_id": "my_lake"}
    assert compiled(tmp_path, "null").upkeep is None


@pytest.mark.parametrize(
    ("maintenance", "problem"),
    [
        ("{schedule: often}", "maintenance.schedule: 'often' is not a cron expression"),
        ("{schedule: '{{ x }}'}", "'{{ x }}' is a template"),
        ("{sinks: [lakes]}", "there is no sink 'lakes'; there are lake, clicks."),
        ("{sinks: []}", "no table is maintained."),
        ("{expire: false, retain_last: 3}", "retain_last goes with expire, which is false."),
        (
            "{retention: no, compact: false, rewrite_manifests: no, expire: no, remove_orphans: no}",
            "contains nothing to do",
        ),
        ("{orphans_older_than: 1h}", "maintenance.orphans_older_than: 1h is not beyond longest_run, 1d"),
        ("{retention: false, keep: 3d}", "keep goes with retention, which is false."),
        ("{keep: 3d}", "maintenance.retention_column: None is not the name of a column."),
        ("{retention_column: at, keep: long}", "maintenance.keep: 'long' is not a number of seconds."),
        ("{exact: true}", "maintenance.exact: goes with column and keep."),
        ("{expire_older_than: soon}", "maintenance.expire_older_than: 'soon'"),
        ("{budget: soon}", "maintenance.budget: 'soon'"),
        ("{budgets: 1h}", "maintenance.budgets: there is no such key. Did you mean budget?"),
    ],
)
def test_mistakes_are_named_by_the_keys_of_the_file(tmp_path: Path, maintenance: str, problem: str) -> None:
    with pytest.raises(PipelineError) as caught:
        check(compiled(tmp_path, maintenance))
    found = caught.value.problems[0]
    assert found.line == 11
    assert problem in found.text


def test_tables_that_topics_choose_need_a_dag(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="topics or records choose the table of lake"):
        compiled(tmp_path, "{}", SHOP.replace("lake.orders,", "'lake.{topic}',"))
    compiled(tmp_path, "{}", SHOP.replace("lake.orders,", "'lake.{{ ds_nodash }}',"))


def test_a_folder_has_both_dags_and_a_broken_file_is_maintained_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "home"))
    folder = tmp_path / "pipelines"
    folder.mkdir()
    compiled(folder, "{schedule: '@daily'}")
    assert run(["pipeline", "validate", str(folder)]) == 0
    assert "1 right, 0 wrong" in capsys.readouterr().out
    dags = load_folder(folder)
    assert {name: sorted(dag.task_ids) for name, dag in dags.items()} == {
        "shop": ["land", "land_clicks"],
        "shop-maintenance": ["maintain", "maintain_clicks"],
    }
    (folder / "shop.yaml").write_text(f"{SHOP}maintenance: {{schedule: often}}\n")
    dags = load_folder(folder)
    assert dags["shop"].schedule is None
    assert dags["shop-maintenance"].schedule == "@daily"
    (folder / "shop.yaml").write_text(f"{SHOP}maintenance: {{}}\n")
    (folder / "z.yaml").write_text(SHOP.replace("name: shop,", "name: shop-maintenance,"))
    with pytest.raises(PipelineError, match="'shop-maintenance' is the pipeline of"):
        load_folder(folder, strict=True)
