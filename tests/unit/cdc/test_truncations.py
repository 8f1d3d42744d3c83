"""Truncations in another partition than the rows that they delete: they have no key, and land anywhere."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from airflow_lakestream.cdc.stops import MirrorStopped, StopReason
from tests.support.mirroring import Event, HandDeltaMirror, HandMirror, Values, come_to
from tests.unit.cdc.strategies import cut, histories

FEW = settings.get_profile(settings.get_current_profile_name()).max_examples // 2
FORMATS = {"iceberg": HandMirror, "delta": HandDeltaMirror}


def with_old_rows(events: list[Event]) -> list[Event]:
    """Return events whose deletions have the row's values, as of REPLICA IDENTITY FULL."""
    rows: dict[int | None, Values | None] = {}
    found = []
    for one in events:
        found.append(replace(one, values=rows.get(one.key)) if one.op == "d" else one)
        rows[one.key] = one.values
    return found


@pytest.mark.long
@settings(max_examples=FEW, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data(), st.booleans())
def test_a_mirror_stops_only_where_a_truncation_of_another_partition_may_follow(
    data: st.DataObject, soft_delete: bool
) -> None:
    events = with_old_rows(data.draw(histories(leaves_out=False)))
    # Each partition in its order; a truncation is in the first one.
    events = [replace(one, partition=0 if one.key is None else 1) for one in events]
    left = {number: [one for one in events if one.partition == number] for number in (0, 1)}
    delivered: list[Event] = []
    while left[0] or left[1]:
        some = [number for number in (0, 1) if left[number]]
        delivered.append(left[data.draw(st.sampled_from(some))].pop(0))
    with tempfile.TemporaryDirectory() as folder:
        mirror = HandMirror(Path(folder), soft_delete=soft_delete, executors=1)
        mirror.land([Event("c", 99, ("first", "f"), 1, 0, partition=2)])
        seen: list[Event] = []
        for part in cut(data.draw, delivered):
            seen += part
            try:
                mirror.land(part)
            except MirrorStopped as stop:
                if stop.reason is StopReason.ORDER_UNKNOWN and any(one.op == "t" for one in events if one not in seen):
                    return
                raise
            assert {key: row for key, row in mirror.rows().items() if key != 99} == come_to(seen)


@pytest.mark.parametrize("lake", sorted(FORMATS))
@pytest.mark.parametrize("soft_delete", [False, True])
def test_a_row_that_is_created_anew_after_a_truncation_stops_no_mirror(
    tmp_path: Path, lake: str, soft_delete: bool
) -> None:
    mirror = FORMATS[lake](tmp_path, soft_delete=soft_delete, executors=2)
    cuts = [Event("c", 5, ("e", "E"), 5, 5, 0, 0), Event("t", None, None, 50, 50, 0, 1)]
    rows = [
        Event("c", 1, ("a", "A"), 10, 10, 1, 0),
        Event("c", 2, ("b", "B"), 15, 15, 1, 1),
        Event("d", 2, ("b", "B"), 20, 20, 1, 2),
        Event("c", 1, ("new", "N"), 60, 60, 1, 3),
    ]
    mirror.land([Event("c", 9, ("first", "F"), 1, 1, 2, 0)])
    mirror.land(cuts)
    mirror.land(rows)
    assert mirror.rows() == {1: ("new", "N")}


def test_without_the_truncation_the_error_names_both_ways_to_such_events(tmp_path: Path) -> None:
    mirror = HandMirror(tmp_path, executors=2)
    mirror.land([Event("c", 9, ("first", "F"), 1, 1, 2, 0)])
    rows = [Event("c", 2, ("b", "B"), 15, 15, 1, 1), Event("d", 2, ("b", "B"), 20, 20, 1, 2)]
    created = [Event("c", 1, ("a", "A"), 10, 10, 1, 0), Event("c", 1, ("new", "N"), 60, 60, 1, 3)]
    with pytest.raises(MirrorStopped, match=r"DEFERRABLE, or the table was truncated .* partition that is behind"):
        mirror.land([created[0], *rows, created[1]])
    # Together with the truncation there is nothing to ask.
    mirror.land([created[0], *rows, created[1], Event("t", None, None, 50, 50, 0, 1)])
    assert mirror.rows() == {1: ("new", "N")}
