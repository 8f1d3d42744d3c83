from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.config.maintenance import CompactionConfig, MaintenanceSection
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.spark.maintenance.config import MaintenanceConfig
from airflow_lakestream.tables.retention import RowRetention

WORK: dict[str, Any] = {"tables": ["lake.clicks"], "compact": True}
GIVEN: dict[str, Any] = {
    "app": "maintain_iceberg",
    "catalog": {"name": "lake", "properties": {"type": "sql", "uri": "postgresql://me:hidden@db/catalog"}},
    "maintenance": WORK,
}


def test_what_is_written_is_read_and_only_its_owner_can(tmp_path: Path) -> None:
    config = MaintenanceConfig.parse(GIVEN | {"spark": {"spark.a": "1"}})
    path = config.write(tmp_path / "app.json")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert MaintenanceConfig.read(path) == config


def test_two_submits_are_the_same_whoever_logs_in_and_submits() -> None:
    def of(login: str, work: dict[str, Any] = WORK, **more: str) -> MaintenanceConfig:
        properties = {"type": "sql", "uri": f"postgresql://{login}@db/catalog"}
        catalog = {"name": "lake", "properties": properties}
        return MaintenanceConfig.parse({**GIVEN, "catalog": catalog, "maintenance": work, **more})

    one = of("me:hidden")
    assert one.fingerprint == of("you:other", owner="you", lease_location="/there").fingerprint
    assert one.fingerprint != of("me:hidden", WORK | {"tables": ["lake.orders"]}).fingerprint
    assert one.inputs == {"app": "maintain_iceberg", "catalog": "lake"}


def test_what_is_not_said_is_not_done_and_what_is_has_its_defaults() -> None:
    work = MaintenanceSection.parse(WORK)
    assert (work.tables, work.expire, work.remove_orphans, work.rewrite_manifests) == (
        ("lake.clicks",),
        None,
        None,
        False,
    )
    assert work.retention is None
    given = MaintenanceSection.parse(
        WORK | {"retention": {"column": "at", "keep": "2 weeks", "exact": "true"}}
    ).retention
    assert given is not None
    assert given.rule == RowRetention("at", 14 * 86_400, exact=True)
    assert work.compact is not None
    assert (work.compact.strategy, work.compact.partial_progress, work.compact.tries) == (None, None, 3)
    all_of_it = MaintenanceSection.parse(WORK | {"expire": True, "remove_orphans": {}, "rewrite_manifests": "true"})
    assert all_of_it.expire is not None
    assert all_of_it.remove_orphans is not None
    assert (all_of_it.expire.older_than, all_of_it.expire.retain_last) == (5 * 86_400, 1)
    assert all_of_it.remove_orphans == 3 * 86_400
    assert all_of_it.rewrite_manifests


def test_a_mirror_is_compacted_by_its_key_and_in_parts_unless_the_user_says_how() -> None:
    of_mirror = CompactionConfig(options={"rewrite-all": True}).of_mirror("`id`", is_sorted=True)
    assert (of_mirror.strategy, of_mirror.sort_order, of_mirror.partial_progress) == ("sort", "`id`", True)
    defaults = {"max-file-group-size-bytes": 2**31, "delete-file-threshold": 1}
    assert of_mirror.options == defaults | {"rewrite-all": True}
    unsorted = CompactionConfig().of_mirror(None, is_sorted=False)
    assert (unsorted.strategy, unsorted.sort_order) == ("binpack", None)
    own = CompactionConfig(strategy="binpack", partial_progress="false", options=dict.fromkeys(defaults, 5))
    assert own.of_mirror("`id`", is_sorted=True) == own
    other = CompactionConfig(strategy="sort", sort_order="at").of_mirror("`id`", is_sorted=True)
    assert (other.strategy, other.sort_order) == ("sort", "at")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"maintenace": {}}, "Did you mean 'maintenance'?"),
        ({"app": "kafka_to_iceberg"}, "has another program"),
        ({"catalog": {"nam": "x"}}, "catalog.nam: is not a setting of the app. Did you mean 'name'?"),
        (
            {"maintenance": WORK | {"compct": True}},
            "maintenance.compct: is not a setting of the app. Did you mean 'compact'?",
        ),
        ({"maintenance": WORK | {"compact": {"stategy": "sort"}}}, "Did you mean 'strategy'?"),
        ({"maintenance": WORK | {"compact": {"strategy": "zorder"}}}, "is not one of 'binpack', 'sort'"),
        ({"maintenance": WORK | {"compact": {"sort_order": "a"}}}, 'sort_order: goes with strategy "sort"'),
        ({"maintenance": {"compact": True}}, "maintenance.tables: is missing"),
        ({"maintenance": {"tables": ["lake.clicks"]}}, "maintenance: contains nothing to do"),
        (
            {"maintenance": WORK | {"tables": ["s3://lake/clicks"]}},
            "bundled apps of maintenance are for Iceberg tables. `lakestream maintain`",
        ),
        ({"maintenance": WORK | {"tables": "clicks"}}, "is not the name of a table"),
        ({"maintenance": WORK | {"retention": True}}, "maintenance.retention: Spark's app removes no old rows"),
        ({"maintenance": WORK | {"retention": {"column": "at"}}}, "maintenance.retention.keep: 'None' is not a number"),
        ({"maintenance": WORK | {"retention": {"keep": "3d"}}}, "retention.column: None is not the name of a column"),
        ({"maintenance": WORK | {"retention": {"columns": "at"}}}, "Did you mean 'column'?"),
        ({"maintenance": WORK | {"expire": {"older_than": "long"}}}, "maintenance.expire.older_than: 'long'"),
        ({"maintenance": WORK | {"expire": {"retain_last": 0}}}, "maintenance.expire.retain_last"),
        ({"maintenance": WORK | {"remove_orphans": {"older_than": "1d"}}}, "1d is not beyond longest_run, 1d"),
        ({"maintenance": WORK | {"remove_orphans": {"longest_run": "4d"}}}, "3d is not beyond longest_run, 4d"),
        (
            {"maintenance": WORK | {"remove_orphans": {"older_than": "2h", "longest_run": "1h"}}},
            "less than a day, which Iceberg refuses",
        ),
        ({"maintenance": WORK | {"rewrite_manifests": "maybe"}}, "maintenance.rewrite_manifests: 'maybe'"),
    ],
)
def test_what_can_not_be_is_refused_by_its_name(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        MaintenanceConfig.parse(GIVEN | change)
    assert words in str(caught.value)
    assert "hidden" not in str(caught.value)
