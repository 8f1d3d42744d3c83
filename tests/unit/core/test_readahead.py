"""Reading ahead: order, errors in their place, and threads that end when nobody wants more."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from airflow_lakestream.runtime.interpreter import ReadAhead

SOON = 10


class Broken(Exception):
    pass


class Numbers:
    """Yields numbers, then fails if asked to; remembers how far it came and whether it was closed."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.count, self.error = count, error
        self.made = 0
        self.closed = threading.Event()
        self.advanced = threading.Condition()

    def __call__(self, cancelled: threading.Event) -> Iterator[int]:
        try:
            for number in range(self.count):
                with self.advanced:
                    self.made += 1
                    self.advanced.notify_all()
                yield number
            if self.error is not None:
                raise self.error
        finally:
            self.closed.set()


def waits_until_cancelled(cancelled: threading.Event) -> Iterator[int]:
    yield 0
    assert cancelled.wait(SOON)


def test_items_come_in_order() -> None:
    with ReadAhead(Numbers(100), 3, threading.Event()) as items:
        assert list(items) == list(range(100))


def test_an_error_comes_after_the_items_before_it() -> None:
    with ReadAhead(Numbers(5, Broken()), 10, threading.Event()) as items:
        assert [next(items) for _ in range(5)] == [0, 1, 2, 3, 4]
        with pytest.raises(Broken):
            next(items)


def test_an_error_before_the_first_item_comes_at_once() -> None:
    with pytest.raises(Broken), ReadAhead(Numbers(0, Broken()), 3, threading.Event()) as items:
        next(items)


def test_no_more_than_depth_items_are_made_ahead() -> None:
    numbers = Numbers(100)
    with ReadAhead(numbers, 3, threading.Event()) as items:
        for taken in range(1, 20):
            next(items)
            # Waits for nothing: however far it may have come by now, it is not further than this.
            assert numbers.made <= taken + 3
        with numbers.advanced:
            assert numbers.advanced.wait_for(lambda: numbers.made > 19, SOON)


def test_of_heavy_items_fewer_are_made_ahead() -> None:
    numbers = Numbers(100)
    with ReadAhead(numbers, 4, threading.Event(), lambda number: 2.5 if number % 2 else 4) as items:
        for taken in range(1, 20):
            assert next(items) == taken - 1
            # One of either kind leaves no room, or room for one more.
            assert numbers.made <= taken + 2
        with numbers.advanced:
            assert numbers.advanced.wait_for(lambda: numbers.made > 19, SOON)


def test_leaving_early_cancels_closes_and_ends_the_thread() -> None:
    numbers = Numbers(10**9)
    ahead = ReadAhead(numbers, 3, threading.Event())
    with ahead as items:
        next(items)
    assert numbers.closed.is_set()
    assert not ahead._thread.is_alive()


def test_leaving_wakes_an_iterator_that_waits() -> None:
    ahead = ReadAhead(waits_until_cancelled, 3, threading.Event())
    with ahead as items:
        assert next(items) == 0
    assert not ahead._thread.is_alive()
    assert ahead._error is None


def _break_after_one(ahead: ReadAhead[int]) -> None:
    with ahead as items:
        next(items)
        raise Broken


def test_an_error_of_the_consumer_ends_the_thread_too() -> None:
    ahead = ReadAhead(Numbers(10**9), 3, threading.Event())
    with pytest.raises(Broken):
        _break_after_one(ahead)
    assert not ahead._thread.is_alive()


def test_stop_ends_the_iteration_though_items_are_ready() -> None:
    stop = threading.Event()
    with ReadAhead(Numbers(10**9), 3, stop) as items:
        assert next(items) == 0
        stop.set()
        assert list(items) == []


def test_stop_ends_a_wait_for_the_next_item() -> None:
    stop = threading.Event()
    with ReadAhead(waits_until_cancelled, 3, stop) as items:
        assert next(items) == 0
        threading.Timer(0.05, stop.set).start()
        assert list(items) == []
