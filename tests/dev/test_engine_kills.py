"""The play of `make soak-engines`: its seed deals each kill once a turn, and what was played is not played again."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tests.support.engine_kills.deal import Kill, Played, dealt

NAMES = ["worker", "task", "task, in a publication"]
KILL = Kill(0, "task, in a publication", True, True, 1200, 7, 4.5, 3, 1)


def test_each_kill_comes_once_a_turn_and_the_seed_says_when() -> None:
    turns = [[dealt(NAMES, 7, 3 * turn + place) for place in range(3)] for turn in range(20)]
    assert all(sorted(turn) == sorted(NAMES) for turn in turns)
    assert turns == [[dealt(NAMES[::-1], 7, 3 * turn + place) for place in range(3)] for turn in range(20)]
    assert len({*map(tuple, turns)}) > 1


def test_a_play_goes_on_behind_what_was_played(tmp_path: Path) -> None:
    file = tmp_path / "soak" / "connect-0.jsonl"
    first = Played(file)
    assert first.kills == []
    first.add(KILL)
    first.add(dataclasses.replace(KILL, number=1, what="worker", at_moment=False, seconds=10.5))
    again = Played(file)
    assert again.kills == first.kills
    assert again.figures() == (
        "2 kills: task, in a publication 1 (1 of them at that moment), worker 1. "
        "2 of them while the task was deferred. 2,400 records in 14 landings; "
        "6 tries of the task, 2 of them ended with an error. All was on main 8 s (at most 10 s) after the flow."
    )
