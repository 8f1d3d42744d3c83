"""What is killed, and when: the seed says it, and a file what of it was played."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random


def dealt(names: Sequence[str], seed: int, number: int) -> str:
    """Return what the kill of this number is: each name comes once in as many kills as there are names."""
    turn, place = divmod(number, len(names))
    cards = sorted(names)
    Random(f"{seed}/turn {turn}").shuffle(cards)
    return cards[place]


@dataclass(frozen=True)
class Kill:
    """A kill that was lived through.

    :param at_moment: it came where it was meant to, such as between a checkpoint and its commit.
    :param deferred: the task waited in the triggerer.
    :param records: how many the topic got since the kill before.
    :param landings: how many commits of the ledger main got since then.
    :param seconds: from the end of the flow until main had all of it.
    :param tries: how often a worker began or went on with the task since the kill before.
    :param failed: how many of these ended with an error, which Airflow tries again.
    """

    number: int
    what: str
    at_moment: bool
    deferred: bool
    records: int
    landings: int
    seconds: float
    tries: int
    failed: int


class Played:
    """The kills of one play, in a file: a play that was broken off goes on behind them.

    :param file: None for a play that is not gone on with.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        lines = file.read_text().splitlines() if file is not None and file.exists() else []
        self.kills = [Kill(**json.loads(line)) for line in lines]

    def add(self, kill: Kill) -> None:
        """Note a kill, once the quiet moment after it was as it has to be."""
        self.kills.append(kill)
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a") as file:
                file.write(json.dumps(asdict(kill)) + "\n")

    def figures(self) -> str:
        """Return what dev/FAULTS.md has of a play."""
        kinds = Counter(kill.what for kill in self.kills)
        met = Counter(kill.what for kill in self.kills if kill.at_moment)
        killed = ", ".join(
            f"{what} {count}" + (f" ({met[what]} of them at that moment)" if "," in what else "")
            for what, count in sorted(kinds.items())
        )
        waits = [kill.seconds for kill in self.kills] or [0.0]
        sums = {name: sum(getattr(k, name) for k in self.kills) for name in ("records", "landings", "tries", "failed")}
        return (
            f"{len(self.kills)} kills: {killed}. {sum(k.deferred for k in self.kills)} of them while the task was "
            f"deferred. {sums['records']:,} records in {sums['landings']:,} landings; {sums['tries']} tries of the "
            f"task, {sums['failed']} of them ended with an error. All was on main {statistics.median(waits):.0f} s "
            f"(at most {max(waits):.0f} s) after the flow."
        )
