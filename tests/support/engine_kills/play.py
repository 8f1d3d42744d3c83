"""A play: one stream after the other over topics that flow, and in each quiet moment main has each record once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from airflow_lakestream.audit.result import AuditVerdict
from tests.support.broker import Producing
from tests.support.engine_kills.deal import Kill, Played, dealt
from tests.support.engine_kills.killed_stream import KilledStream
from tests.support.flowing import flowing
from tests.support.lake import assert_landed_once

# A table with thousands of snapshots takes ever longer to commit to: then there is a new stream.
KILLS_OF_A_STREAM = 5
_PAUSE = 0.5
_BEFORE = 8.0
_AFTER = 4.0


@dataclass
class Play:
    """The play of one seed.

    :param begin: begins a stream over a new topic; it is gone with the context.
    :param command: plays it with other numbers.
    """

    engine: str
    seed: int
    kills: int
    produce: Producing
    begin: Callable[[int], AbstractContextManager[KilledStream]]
    command: str = ""

    def __post_init__(self) -> None:
        folder = os.environ.get("LAKESTREAM_SOAK")
        # With another number of kills it is the same play, played further or less far.
        self.played = Played(Path(folder) / f"{self.engine}-{self.seed}.jsonl" if folder else None)

    @property
    def again(self) -> str:
        """How to go on with it."""
        command = self.command or f"make soak-engines ONLY={self.engine}"
        return f"{command} SEED={self.seed} KILLS={self.kills}"

    def run(self) -> None:
        """Play what is left of it."""
        print(f"\n{self.again}: {len(self.played.kills)} kills are played")
        while (first := len(self.played.kills)) < self.kills:
            last = min(self.kills, first - first % KILLS_OF_A_STREAM + KILLS_OF_A_STREAM)
            with self.begin(first) as stream:
                for number in range(first, last):
                    self.played.add(self._kill(stream, number))
                    print(f"{self.engine}: {self.played.kills[-1]}", flush=True)
                stream.stop()
                self._assert_whole(stream)
                stream.assert_ended()
        print(f"{self.again}: {self.played.figures()}")

    def _kill(self, stream: KilledStream, number: int) -> Kill:
        chance = Random(f"{self.seed}/{self.engine}/{number}")
        blows = stream.blows
        what = dealt([*blows], self.seed, number)
        task, records, landings = stream.task, sum(stream.counts.values()), stream.landings()
        tries, failed = task.tries, task.failed
        task.defer_next(chance.random() < 0.5)
        print(f"{self.engine}: kill {number}, {what}", flush=True)
        with flowing(self.produce, stream.topic, stream.counts, _PAUSE):
            task.go_on(chance.uniform(0, _BEFORE))
            at_moment = blows[what](chance)
            deferred = task.state == "deferred"
            stream.mend()
            task.go_on(chance.uniform(0, _AFTER))
        quiet_from = time.monotonic()
        task.until(stream.is_on_main, "all to be on main")
        seconds = time.monotonic() - quiet_from
        self._assert_whole(stream)
        return Kill(
            number,
            what,
            at_moment,
            deferred,
            sum(stream.counts.values()) - records,
            stream.landings() - landings,
            round(seconds, 1),
            task.tries - tries,
            task.failed - failed,
        )

    def _assert_whole(self, stream: KilledStream) -> None:
        assert_landed_once(stream.lake, stream.topic, stream.counts)
        audit = stream.lake.audit(topic=stream.topic)
        assert audit.verdict is AuditVerdict.CLEAN, str(audit)
        stream.assert_quiet()
