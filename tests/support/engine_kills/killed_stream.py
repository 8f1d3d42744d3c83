"""What a play does with a stream, whatever engine it is of; and moments that are waited for to kill in."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

from airflow_lakestream.iceberg.ledger_store import landing_of, live_ancestors
from tests.support.engine_kills.stream_task import StreamTask
from tests.support.lake import GROUP, Lake

# How long a process may work before it is killed, in seconds.
UP_TO = 8.0
# A commit takes some tens of milliseconds: only a close look meets it.
_CLOSE = 0.002

Blow = Callable[[Random], bool]


class KilledStream(ABC):
    """One stream of an engine over one topic of two partitions, looked after by one task.

    :param counts: how many records each partition has.
    """

    def __init__(self, lake: Lake, topic: str, counts: dict[int, int], task: StreamTask) -> None:
        self.lake = lake
        self.topic = topic
        self.counts = counts
        self.task = task

    @property
    @abstractmethod
    def blows(self) -> Mapping[str, Blow]:
        """By name, what kills: each waits for its moment, kills, and tells whether it met the moment."""

    @abstractmethod
    def mend(self) -> None:
        """Start the engine's processes that were killed."""

    @abstractmethod
    def ask_to_stop(self) -> None:
        """Ask the stream to end in order."""

    def assert_quiet(self) -> None:  # noqa: B027  # most engines promise no more
        """Assert what else holds in a quiet moment, on this engine."""

    def assert_ended(self) -> None:  # noqa: B027  # likewise
        """Assert what else holds after its end, on this engine."""

    def stop(self) -> None:
        """Stop it in order, and wait until the task has told of its end."""

        def stopped() -> bool:
            if self.task.state == "success":
                return True
            self.ask_to_stop()
            return False

        self.task.until(stopped, "the stream to end")

    def is_on_main(self) -> bool:
        """Tell whether the ledger reaches the topic's end without a hole."""
        wanted = {p: [(0, count)] for p, count in self.counts.items()}
        return bool(self.lake.snapshots()) and self.lake.landed(self.topic) == wanted

    def landings(self) -> int:
        """Return how many commits of main landed something."""
        if not self.lake.snapshots():
            return 0
        return sum(landing_of(one, GROUP) is not None for one in live_ancestors(self.lake.table().metadata))

    def kill_task(self, chance: Random) -> bool:
        """Kill the process of the task, at any moment of its life."""
        while True:
            self.task.until(lambda: self.task.process is not None, "the task's process")
            end = time.monotonic() + chance.uniform(0, UP_TO)
            self.task.until(lambda: time.monotonic() > end or self.task.process is None, "a moment", every=0.05)  # noqa: B023  # asked in this turn only
            if self.task.kill():
                return True

    def kill_triggerer(self, chance: Random) -> bool:
        """Kill the triggerer while the task waits there, or while it comes up."""
        self.task.into_triggerer()
        self.task.go_on(chance.uniform(0, UP_TO))
        self.task.triggerer.kill()
        return True

    def kill_in_publication(self, chance: Random, kill: Callable[[], bool]) -> bool:
        """Kill who publishes, once it has written the list of a commit's manifests: before the commit, or just after.

        PyIceberg numbers these lists 0, and the engines' own Java from 1 on.

        :param kill: tells whether it killed somebody.
        """
        while True:
            written = self.await_new("warehouse/*/*/metadata/snap-*-0-*.avro", "a publication")
            time.sleep(chance.uniform(0, 0.03))  # somewhere in the commit
            if kill():
                break
        snapshot = re.match(r"snap-(\d+)-", written.name)
        assert snapshot is not None
        return self.lake.table().metadata.snapshot_by_id(int(snapshot[1])) is None

    def await_new(self, pattern: str, what: str) -> Path:
        """Wait for a new file below the lake's folder, and return it at once."""
        known, found = set(self.lake.folder.glob(pattern)), list[Path]()

        def is_there() -> bool:
            found.extend(set(self.lake.folder.glob(pattern)) - known)
            return bool(found)

        self.task.until(is_there, what, every=_CLOSE)
        return found[0]
