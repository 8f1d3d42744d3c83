from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.commit.retention import KEEP, expiring, limit

NOW = 1_000_000_000
MINUTE = 60_000


@pytest.fixture
def empty(tmp_path: Path) -> TableMetadata:
    catalog = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("db")
    return catalog.create_table("db.t", pa.schema([("id", pa.int64())])).metadata


def with_snapshots(empty: TableMetadata, count: int, refs: dict[str, int] | None = None, **properties: str):
    """Return a table of snapshots 1, 2, ..., a minute between each two; main is at the last one, made now."""
    snapshots = [snapshot(n, n - 1 or None, NOW - (count - n) * MINUTE) for n in range(1, count + 1)]
    tags = {name: SnapshotRef(snapshot_id=n, snapshot_ref_type=SnapshotRefType.TAG) for name, n in (refs or {}).items()}
    main = SnapshotRef(snapshot_id=count, snapshot_ref_type=SnapshotRefType.BRANCH)
    return empty.model_copy(
        update={
            "snapshots": snapshots,
            "current_snapshot_id": count,
            "refs": {"main": main, **tags},
            "properties": {name.replace("__", "-").replace("_", "."): value for name, value in properties.items()},
        }
    )


def snapshot(number: int, parent: int | None, at: int) -> Snapshot:
    return Snapshot(
        snapshot_id=number,
        parent_snapshot_id=parent,
        sequence_number=number,
        timestamp_ms=at,
        manifest_list=f"{number}.avro",
        summary=Summary(Operation.APPEND),
    )


def test_the_oldest_go_when_the_next_landing_would_make_a_tenth_too_many(empty: TableMetadata) -> None:
    assert expiring(with_snapshots(empty, 109, lakestream_snapshots_keep="100"), NOW) == []
    assert expiring(with_snapshots(empty, 110, lakestream_snapshots_keep="100"), NOW) == list(range(1, 12))


def test_without_the_property_or_with_all_none_go(empty: TableMetadata) -> None:
    assert expiring(with_snapshots(empty, 500), NOW) == []
    assert expiring(with_snapshots(empty, 500, lakestream_snapshots_keep="all"), NOW) == []


def test_the_head_stays_however_few_are_to_be_kept(empty: TableMetadata) -> None:
    # The landing's snapshot would stand there without a parent, like the first one of a table.
    assert expiring(with_snapshots(empty, 5, lakestream_snapshots_keep="1"), NOW) == [1, 2, 3, 4]
    assert expiring(with_snapshots(empty, 1, lakestream_snapshots_keep="1"), NOW) == []


def test_a_tagged_one_stays_and_does_not_count(empty: TableMetadata) -> None:
    table = with_snapshots(empty, 12, {"a": 2, "b": 4}, lakestream_snapshots_keep="5")
    assert expiring(table, NOW) == [1, 3, 5, 6, 7, 8]


def test_what_a_branch_has_of_its_own_stays(empty: TableMetadata) -> None:
    table = with_snapshots(empty, 12, lakestream_snapshots_keep="5")
    own = [snapshot(100, 3, NOW), snapshot(101, 100, NOW), snapshot(102, 101, NOW)]
    branch = SnapshotRef(snapshot_id=102, snapshot_ref_type=SnapshotRefType.BRANCH)
    table = table.model_copy(update={"snapshots": [*table.snapshots, *own], "refs": {**table.refs, "work": branch}})
    assert expiring(table, NOW) == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("owner_says", "gone"),
    [
        ({"history_expire_max__snapshot__age__ms": str(10 * MINUTE)}, [1, 2]),
        ({"history_expire_max__snapshot__age__ms": str(100 * MINUTE)}, []),
        ({"history_expire_min__snapshots__to__keep": "10"}, [1, 2, 3]),
        ({"gc_enabled": "false"}, []),
    ],
    ids=["age", "all young", "count", "no collection of garbage"],
)
def test_icebergs_own_settings_keep_more(empty: TableMetadata, owner_says: dict[str, str], gone: list[int]) -> None:
    assert expiring(with_snapshots(empty, 12, lakestream_snapshots_keep="5", **owner_says), NOW) == gone


@pytest.mark.parametrize("text", ["0", "-1", "ten", "1.5"])
def test_a_limit_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"Give the number of snapshots to keep, 1 or more, or \"all\""):
        limit({KEEP: text})
