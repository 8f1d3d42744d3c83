"""The collector is calm, or off, while anybody wants it so, and afterwards as it was."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_lakestream.runtime.interpreter import CALM, calm_collector, pause_collection


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
        seen = [one for one in gc.get_objects() if type(one) is Node]
    assert len(seen) <= 2 * CALM[0]


def test_an_error_leaves_it_as_it_was() -> None:
    with pytest.raises(ValueError, match="x"), calm_collector():
        raise ValueError("x")
    assert gc.get_threshold() == (700, 10, 10)


class _Collections:
    """How many objects the collector was to look at, at most, in each of its rounds."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self.sizes.append(sum(len(gc.get_objects(g)) for g in range(info["generation"] + 1)))


@pytest.fixture
def collections() -> Iterator[_Collections]:
    seen = _Collections()
    gc.collect()
    gc.callbacks.append(seen)
    yield seen
    gc.callbacks.remove(seen)


def test_what_was_made_without_collection_is_not_looked_at_afterwards_either(collections: _Collections) -> None:
    with pause_collection():
        kept: list[list[int]] = [[] for _ in range(100_000)]
        assert not collections.sizes
    more: list[list[int]] = [[] for _ in range(2_000)]
    assert gc.isenabled()
    assert 0 < max(collections.sizes) < len(kept)
    assert len(more) == 2_000


def test_what_was_made_without_collection_is_collected_in_the_end() -> None:
    class Node:
        me: object

    with pause_collection():
        node = Node()
        node.me = node
        del node
    gc.collect()
    assert not [one for one in gc.get_objects() if type(one) is Node]


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with pause_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
