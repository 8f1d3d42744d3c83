"""The collector is calm while anybody wants it so, and afterwards as it was."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from airflow_lakestream.core.collector import CALM, calm_collector


@pytest.fixture(autouse=True)
def _as_it_comes() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_it_looks_seldom_and_not_at_what_was_there() -> None:
    with calm_collector():
        assert gc.get_threshold() == CALM
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == (700, 10, 10)
    assert gc.get_freeze_count() == 0


def test_it_is_calm_until_the_last_has_left() -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with calm_collector():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with calm_collector():
        thread.start()
        assert entered.wait(10)
    assert gc.get_threshold() == CALM
    leave.set()
    thread.join(10)
    assert gc.get_threshold() == (700, 10, 10)


def test_garbage_in_cycles_is_collected_all_the_same() -> None:
    class Node:
        me: object

    seen = []
    with calm_collector():
        for _ in range(3 * CALM[0]):
            node = Node()
            node.me = node
        seen = [one for one in gc.get_objects() if isinstance(one, Node)]
    assert len(seen) <= 2 * CALM[0]


def test_an_error_leaves_it_as_it_was() -> None:
    with pytest.raises(ValueError, match="x"), calm_collector():
        raise ValueError("x")
    assert gc.get_threshold() == (700, 10, 10)
