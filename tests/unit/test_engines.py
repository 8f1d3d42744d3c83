"""The table of engines is true: pipelines, settings and pages refuse exactly the capabilities that a row lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_lakestream.config.engines import ENGINES, EngineCapability, lack_of
from airflow_lakestream.config.setting import SettingTaker
from airflow_lakestream.config.settings import SETTINGS
from airflow_lakestream.core.routing import MIRROR, IsMirror, refuse_mirror
from airflow_lakestream.pipelines.model import EngineName
from airflow_lakestream.pipelines.reading import looked_up, read_file
from airflow_lakestream.pipelines.yaml_file import PipelineError
from dev.docs_hooks import with_tables

DOCS = Path(__file__).parents[2] / "docs"
PIPELINE = """\
metadata: {{name: plain}}
sources: {{orders: {{type: kafka, topic: orders}}}}
{steps}sinks: {{lake: {{type: iceberg, table: lake.orders{sink}}}}}
orchestration: {{engine: {engine}, schedule: "@hourly", {own}}}
"""
SQL = "transformations: [{name: s, type: sql_transform, input: orders, sql: 'SELECT key AS k FROM {{ input }}'}]\n"
SINKS = {
    EngineCapability.REPLACE: ", mode: replace",
    EngineCapability.DELTA: ", type: delta, table: /lake/orders",
    EngineCapability.TIMES: ', schema: "id bigint, at timestamp from epoch_ms"',
    EngineCapability.SQL: "",
}
OWN = {
    "spark": "spark: {checkpoint_location: /c}",
    "flink": "flink: {checkpoint_location: /c}",
    "connect": "connect: {connector: c}",
}
TAKERS = {"group": SettingTaker.GROUP, "flink": SettingTaker.FLINK, "connect": SettingTaker.CONNECT}


def problems(folder: Path, engine: str, capability: EngineCapability) -> list[str]:
    text = PIPELINE.format(
        engine=engine,
        own=OWN.get(engine, ""),
        sink=SINKS[capability],
        steps=SQL if capability is EngineCapability.SQL else "",
    ).replace("type: iceberg, table: lake.orders, type: delta", "type: delta")
    file = folder / "p.yaml"
    file.write_text(text)
    try:
        read_file(file, looked_up({}.get, lambda name: None))
    except PipelineError as e:
        return [one.text for one in e.problems]
    return []


@pytest.mark.parametrize("capability", SINKS, ids=[one.name for one in SINKS])
@pytest.mark.parametrize("engine", EngineName.__args__)
def test_a_pipeline_is_refused_by_what_its_engine_lacks(
    engine: str, capability: EngineCapability, tmp_path: Path
) -> None:
    said = problems(tmp_path, engine, capability)
    if (lack := lack_of(engine, capability)) is None:
        assert said == []
    else:
        assert any(" ".join(lack) in one for one in said), said


@pytest.mark.parametrize(
    ("capability", "setting"),
    [
        (EngineCapability.REPLACE, "replace"),
        (EngineCapability.FAN_OUT, "topic"),
        (EngineCapability.REJECTS, "on_error"),
        (EngineCapability.CHECKS, "checks"),
    ],
)
def test_a_setting_is_refused_for_an_engine_that_lacks_it(capability: EngineCapability, setting: str) -> None:
    for engine, taker in TAKERS.items():
        if SETTINGS[setting].refusal(taker) is not None:
            assert lack_of(engine, capability) is not None


def test_an_audit_by_positions_refuses_mirrors() -> None:
    with pytest.raises(IsMirror, match="audited"):
        refuse_mirror("lake.t", {MIRROR: "{}"}, "audited")


def test_the_page_has_a_column_for_each_engine_and_a_row_for_each_capability() -> None:
    page = with_tables((DOCS / "choose.md").read_text(), 0)
    assert "<!--" not in page
    for capability in EngineCapability:
        [row] = [line for line in page.splitlines() if line.startswith(f"| {capability} |")]
        assert len(row.split(" | ")) == 1 + len(ENGINES)
    for operator in ENGINES.values():
        assert operator in page
