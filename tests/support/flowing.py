"""Drivers that are killed at random over a topic that goes on flowing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.broker import Producing, poll_until
from tests.support.lake import events

KILLS = int(os.environ.get("LAKESTREAM_KILLS", "2"))
# `make test` has a like case already; this one takes minutes more.
IN_A_SOAK = pytest.mark.skipif("LAKESTREAM_KILLS" not in os.environ, reason="is a part of make soak")


@contextmanager
def flowing(
    produce: Producing, topic: str, counts: dict[int, int] | None = None, pause: float = 0.1, partitions: int = 2
) -> Iterator[dict[int, int]]:
    """Produce to each partition of a topic; yield how many records each has, which stays so afterwards.

    :param counts: how many they have already; the same mapping is yielded.
    """
    counts = dict.fromkeys(range(partitions), 0) if counts is None else counts
    ends = threading.Event()

    def flow() -> None:
        while not ends.wait(pause):
            for partition in counts:
                produce(topic, partition, events(partition, counts[partition], 50))
                counts[partition] += 50

    thread = threading.Thread(target=flow)
    thread.start()
    try:
        yield counts
    finally:
        ends.set()
        thread.join()


def kill_at_random(start: Callable[[], subprocess.Popen[str]], commits: Callable[[], int], log: Path) -> None:
    """Start a driver, and kill it after its first commit; so many times.

    :param start: starts one, in a group of its own.
    :param commits: how many commits the table has.
    """
    dice = random.Random(os.environ.get("LAKESTREAM_SEED", "7"))
    for _ in range(KILLS):
        driver = start()
        try:
            before = commits()
            poll_until(lambda: commits() > before or driver.poll() is not None, "a landing", 240, every=0.3)  # noqa: B023  # asked in this turn only
            assert driver.poll() is None, log.read_text()[-3000:]
            # Anywhere in a batch: while it reads, writes, commits, or between the commit and Spark's own log.
            time.sleep(dice.uniform(0, 2))  # the kill comes at any moment
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
