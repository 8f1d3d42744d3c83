"""What a ledger keeps of the source's columns: through any batches, and in the order of the source."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.core.source_types import (
    EventColumnType,
    LedgerTypes,
    SourceType,
    combined_types,
    in_new_rows,
    read_types,
)

HAS = st.booleans()


def seen(place: int, has: bool) -> dict[str, EventColumnType]:
    """Return what an event at a place says of the column `v`."""
    span = (place, place)
    return {
        "v": EventColumnType({"number": ("int64", "t[0] offset 1")}, there=span)
        if has
        else EventColumnType(lacking=span)
    }


def landed(kept: LedgerTypes, events: list[tuple[int, bool]]) -> LedgerTypes:
    """Land a batch of events, by way of JSON."""
    all_of_them: dict[str, EventColumnType] = {}
    for one in events:
        all_of_them = combined_types(all_of_them, seen(*one))
    again = {
        path: EventColumnType.from_dict(json.loads(json.dumps(one.to_dict()))) for path, one in all_of_them.items()
    }
    assert again == all_of_them
    changes = kept.changes(again)
    return kept.add(read_types({path: one.to_list() for path, one in changes.items()}))


def came_again(events: list[tuple[int, bool]]) -> bool:
    """Tell whether a column was there, then was not, then was there again."""
    has = [one for _, one in sorted(events)]
    first = has.index(True) if True in has else len(has)
    gone = has.index(False, first) if False in has[first:] else len(has)
    return True in has[gone:]


@given(st.lists(HAS, max_size=12), st.lists(st.integers(1, 4)))
def test_a_column_that_was_dropped_and_added_again_is_stale(has: list[bool], sizes: list[int]) -> None:
    events, kept, at = list(enumerate(has)), LedgerTypes(), 0
    for size in [*sizes, len(events)]:
        kept = landed(kept, events[at : at + size])
        at += size
    expected = ["v"] if came_again(events) else []
    if has and has[-1]:
        assert kept.stale == expected
    else:
        # It may be known only once the column is there again.
        assert kept.stale in ([], expected)


@given(st.data(), st.lists(HAS, max_size=10))
def test_partitions_that_are_behind_raise_no_false_alarm(data: st.DataObject, has: list[bool]) -> None:
    events = data.draw(st.permutations(list(enumerate(has))))
    kept = LedgerTypes()
    for one in events:
        kept = landed(kept, [one])
    assert not kept.stale or came_again(events)


def test_a_column_that_was_added_and_events_from_before_that_come_late() -> None:
    kept = landed(LedgerTypes(), [(10, True)])
    kept = landed(kept, [(4, False), (5, False)])
    kept = landed(kept, [(11, True)])
    assert not kept.stale
    # Events that a connector sends again.
    kept = landed(landed(kept, [(12, False)]), [(11, True)])
    assert not kept.stale
    assert landed(kept, [(13, True)]).stale == ["v"]


def test_only_what_is_new_is_written_down() -> None:
    kept = landed(LedgerTypes(), [(1, True)])
    assert kept.changes(seen(2, True)) == {}
    assert kept.changes(seen(2, False))["v"].dropped == 2
    assert LedgerTypes().changes(seen(2, False)) == {}


def test_all_new_rows_are_stale_nowhere_and_have_new_types() -> None:
    before = {"v": SourceType("date", "d", 1, 5, True), "w": SourceType("number", "n", 1, 5, True)}
    after = LedgerTypes(in_new_rows({"v": SourceType("number", "n", 9)}, before))
    assert after.columns == {"v": SourceType("number", "n", 9), "w": SourceType("number", "n")}
    # The other one comes again: no row has a value of it.
    again = {"w": EventColumnType({"number": ("n", "t[0] offset 1")}, there=(20, 20))}
    assert after.add(after.changes(again)).columns["w"] == SourceType("number", "n", 20)
