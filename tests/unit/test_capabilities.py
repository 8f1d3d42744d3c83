"""A format is refused by name wherever its row lacks a capability: a new row needs no other line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pyiceberg.catalog.memory import InMemoryCatalog

from airflow_lakestream.audit.run import load
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.config.maintenance import MaintenanceSection
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.flink.config import FlinkConfig
from airflow_lakestream.hooks.places import open_lake
from airflow_lakestream.lakes import LAKES, LakeCapability, lake_of
from airflow_lakestream.operators.asset_partitions import AssetPartitionsOperator
from airflow_lakestream.run.mirror_repair import check_repair
from airflow_lakestream.run.mirror_tag import MirrorTag
from airflow_lakestream.spark.maintenance.config import MaintenanceConfig
from airflow_lakestream.triggers import landing_event
from airflow_lakestream.triggers.landing_event import LandingEventTrigger
from airflow_lakestream.watching.asking import make_check

TABLE = "hudi.t"
LANDING: dict[str, Any] = {"topic": "t", "table": TABLE, "consumer_group": "g", "table_format": "hudi"}
CATALOG = {"name": "c", "properties": {"type": "rest", "uri": "http://c"}}
PLACES: dict[str, Any] = {"gateway": {"url": "http://g"}, "manager": {"url": "http://m"}, "checkpoint_location": "/c"}
# By capability, a use of the table that needs it; a format without a catalog is opened by its location.
USES: dict[LakeCapability, Callable[[], object]] = {
    LakeCapability.STORE: lambda: open_lake(ExtractConfig(**LANDING), "iceberg_default", "store"),
    LakeCapability.FAN_OUT: lambda: ExtractConfig(**{**LANDING, "table": "hudi.{key}"}),
    LakeCapability.MERGE_ON_READ: lambda: MirrorConfig(**LANDING, key=["id"], merge_mode="merge-on-read"),
    LakeCapability.REPAIR: lambda: check_repair(InMemoryCatalog("unused"), TABLE, "--repair"),
    LakeCapability.EDITS: lambda: load(InMemoryCatalog("unused"), TABLE),
    LakeCapability.MAINTAIN: lambda: MaintenanceConfig(
        catalog=CATALOG, maintenance={"tables": [TABLE], "compact": True}
    ),
    LakeCapability.COMPACT: lambda: ExtractConfig(**LANDING, maintain="auto"),
    LakeCapability.ZORDER: lambda: MaintenanceSection.parse({"tables": [TABLE], "compact": {"zorder_by": ["a"]}}),
    LakeCapability.PARTITIONS: lambda: AssetPartitionsOperator(
        task_id="emit", table=TABLE, since="2026-01-01T00:00:00Z"
    ),
    LakeCapability.COMPLETENESS: lambda: LandingEventTrigger(table=TABLE, kafka_conn_id="kafka_default"),
    LakeCapability.FRESHNESS: lambda: make_check("freshness", {"table": TABLE, "iceberg_conn_id": "c", "max_age": 9}),
    LakeCapability.TAGS: lambda: MirrorTag(name="day", tables=[TABLE], kafka={}, landing={}),
    LakeCapability.PUBLISH: lambda: FlinkConfig(**PLACES, topic="t", table=TABLE, consumer_group="g", catalog=CATALOG),
}


@pytest.mark.parametrize("capability", USES)
def test_a_new_format_is_refused_by_name_wherever_its_row_lacks_a_capability(
    capability: LakeCapability, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landing_event, "AIRFLOW_V_3_3_PLUS", True)
    other = LakeCapability.FAN_OUT if capability is not LakeCapability.FAN_OUT else LakeCapability.REPAIR
    row = replace(
        LAKES["iceberg"],
        format="hudi",
        pattern=r"^hudi\.",
        named="the name of a Hudi table",
        can=frozenset({LakeCapability.CATALOG, other}),
        instead={capability: "Wait for the next version."},
    )
    monkeypatch.setitem(LAKES, "hudi", row)
    assert lake_of(TABLE) is row
    assert lake_of("lake.t") is LAKES["iceberg"]
    with pytest.raises(InvalidArgument) as caught:
        USES[capability]()
    said = str(caught.value)
    able = "Delta" if capability in (LakeCapability.STORE, LakeCapability.ZORDER) else "Iceberg"
    assert f"{capability} are for {able} tables" in said
    assert "Hudi" in said
    assert "Wait for the next version." in said


def test_each_capability_has_a_use() -> None:
    assert USES.keys() == set(LakeCapability) - {LakeCapability.CATALOG}


def test_an_unknown_format_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(InvalidArgument, match="table_format: 'hudi' is not one of 'iceberg', 'delta'"):
        ExtractConfig(**LANDING)
