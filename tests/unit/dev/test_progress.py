"""Lines of progress: whole, though several threads say some, and not silent while something takes long."""

from __future__ import annotations

import sys

import pytest

from dev import progress
from dev.progress import Clock, Reminder


class Terminal:
    """What is written to it, write by write."""

    def __init__(self) -> None:
        self.writes: list[str] = []

    def write(self, text: str) -> int:
        self.writes.append(text)
        return len(text)

    def flush(self) -> None:
        """Do nothing: it is written already."""


def test_a_line_is_one_write_so_that_another_threads_does_not_come_between(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    Clock().say("kafka: starting")
    Clock().say("jars: fetching")
    assert [one.split("] ")[1] for one in terminal.writes] == ["kafka: starting\n", "jars: fetching\n"]


def test_what_takes_long_says_so_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, said = [0.0], list[str]()
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds[0])
    remind = Reminder(said.append, "airflow: still starting")
    times = []
    for now in range(0, 300, 10):
        seconds[0] = now
        remind()
        times += [now] * (len(said) - len(times))
    # In four minutes three lines.
    assert times == [30, 90, 210]
    assert set(said) == {"airflow: still starting"}
