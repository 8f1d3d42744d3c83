"""Histories of a database's table, of transactions that are possible there."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter

from hypothesis import strategies as st

from airflow_lakestream.cdc.columns import UNAVAILABLE
from tests.support.mirroring import Event

KEYS = range(5)


@st.composite
def histories(draw: st.DrawFn, *, leaves_out: bool) -> list[Event]:
    """Return the events of a source, in its order: of transactions that are possible there."""
    rows: dict[int, tuple[str, str]] = {}
    events: list[Event] = []
    for commit in range(1, draw(st.integers(1, 14)) + 1):
        for _ in range(draw(st.integers(1, 3))):
            at = (commit * 100, len(events) + 1)
            key, name = draw(st.sampled_from(KEYS)), f"n{len(events)}"
            kind = draw(st.sampled_from(["write"] * 5 + ["delete", "move", "read"] + ["truncate"] * (commit % 5 == 0)))
            if kind == "truncate":
                rows = {}
                events.append(Event("t", None, None, *at))
            elif key not in rows:
                rows[key] = (name, f"big{len(events)}")
                events.append(Event("c", key, rows[key], *at))
            elif kind == "delete":
                del rows[key]
                events.append(Event("d", key, None, *at))
            elif kind == "move" and (free := [one for one in KEYS if one not in rows]):
                rows[free[0]] = (name, rows.pop(key)[1])
                big = UNAVAILABLE if leaves_out else rows[free[0]][1]
                # Both at one place of the source.
                events += [Event("d", key, None, *at), Event("c", free[0], (name, big), *at)]
            else:
                big = draw(st.sampled_from([rows[key][1], f"big{len(events)}"]))
                sent = UNAVAILABLE if leaves_out and big == rows[key][1] else big
                rows[key] = (name, big)
                events.append(Event("u", key, (name, sent), *at))
    return [replace(one, offset=number) for number, one in enumerate(events)]


def shuffled(draw: st.DrawFn, events: list[Event]) -> list[Event]:
    """Return events in another order; those of one transaction and row stay in theirs, as a partition has them.

    Otherwise a batch could show a row that is created while it exists, which a mirror has to refuse.
    """
    order = draw(st.permutations(events))
    # A truncation is of every row.
    truncated = {one.commit for one in events if one.op == "t"}
    own: dict[tuple[int, int | None], list[Event]] = {}
    groups = [(one.commit, None if one.commit in truncated else one.key) for one in order]
    for group, one in zip(groups, order, strict=True):
        own.setdefault(group, []).append(one)
    left = {group: iter(sorted(some, key=attrgetter("offset"))) for group, some in own.items()}
    return [next(left[group]) for group in groups]


def cut(draw: st.DrawFn, events: list[Event]) -> list[list[Event]]:
    ends = sorted(draw(st.sets(st.integers(1, max(1, len(events) - 1)), max_size=4)))
    return [part for a, b in zip([0, *ends], [*ends, len(events)], strict=True) if (part := events[a:b])]


def with_copies(draw: st.DrawFn, events: list[Event], partitions: int) -> list[Event]:
    """Return events in their order, between which earlier ones come again: any of them, in any partition.

    None comes between the two events of a changed key: a connector that begins again there sends both of them again.
    """
    found: list[Event] = []
    for number, one in enumerate(events):
        before = events[number - 1] if number else None
        whole = before is None or (before.op, before.commit, before.position) != ("d", one.commit, one.position)
        copies = draw(st.lists(st.sampled_from(events[:number]), max_size=3)) if number and whole else []
        found += [replace(copy, partition=draw(st.integers(0, partitions - 1))) for copy in copies]
        found.append(one)
    return [replace(one, offset=offset) for offset, one in enumerate(found)]
