"""Tags of a mirror's snapshots: the one with exactly some offsets, and names that are taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.tags import set_tag, snapshot_at
from tests.support.mirroring import IDENTITY, TABLE, Event, HandMirror


def event(offset: int, partition: int = 0) -> Event:
    return Event("c", 100 * partition + offset, ("a", "b"), offset, offset, partition, offset)


def test_the_snapshot_of_a_cut_has_exactly_its_offsets(tmp_path: Path) -> None:
    mirror = HandMirror(tmp_path)
    first = mirror.land([event(n) for n in range(5)])
    # What lies beyond the cut in one partition makes the snapshot another one.
    mirror.land([*(event(n) for n in range(5, 8)), event(0, 1)])
    last = mirror.land([event(8), event(1, 1)])
    found = {
        (one, other): snapshot_at(mirror.table(), "g", IDENTITY, {0: one, 1: other})
        for one, other in ((5, 0), (8, 0), (9, 2), (9, 1), (10, 2))
    }
    assert found == {(5, 0): first, (8, 0): None, (9, 2): last, (9, 1): None, (10, 2): None}


def test_a_tag_is_set_once_and_removed(tmp_path: Path) -> None:
    mirror = HandMirror(tmp_path)
    first, last = mirror.land([event(0)]), mirror.land([event(1)])
    set_tag(mirror.catalog, TABLE, "day", first)
    with pytest.raises(InvalidArgument, match=f"{TABLE} has a tag 'day' already"):
        set_tag(mirror.catalog, TABLE, "day", last)
    assert mirror.table().metadata.refs["day"].snapshot_id == first
    for _ in range(2):
        set_tag(mirror.catalog, TABLE, "day", None)
    assert mirror.table().metadata.refs.keys() == {"main"}
