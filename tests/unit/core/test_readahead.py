"""Reading ahead: order, errors in their place, and threads that end when nobody wants more."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from airflow_lakestream.core.readahead import ReadAhead, map_ahead

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


def test_mapped_results_come_in_the_order_of_the_items() -> None:
    second_done = threading.Event()

    def slow_first(number: int) -> int:
        if number == 0:
            assert second_done.wait(SOON)
        if number == 1:
            second_done.set()
        return number * 10

    assert list(map_ahead(slow_first, range(5), 2)) == [0, 10, 20, 30, 40]


def test_mapping_reaches_no_further_ahead_than_one_more_than_its_threads() -> None:
    numbers = Numbers(100)
    results = map_ahead(str, numbers(threading.Event()), 2)
    for taken in range(1, 20):
        next(results)
        assert numbers.made == taken + 2
    results.close()


def test_an_error_of_the_mapped_function_comes_in_its_place() -> None:
    def fails_at_three(number: int) -> int:
        if number == 3:
            raise Broken
        return number

    results = map_ahead(fails_at_three, range(100), 2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(Broken):
        next(results)


def test_an_error_of_the_mapped_items_comes_after_the_results_before_it() -> None:
    results = map_ahead(str, Numbers(4, Broken())(threading.Event()), 2)
    assert [next(results) for _ in range(4)] == ["0", "1", "2", "3"]
    with pytest.raises(Broken):
        next(results)


def test_closing_waits_for_what_is_being_worked_on_and_begins_nothing_more() -> None:
    begun: list[int] = []
    ended: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        ended.append(number)
        return number

    results = map_ahead(work, range(100), 1)
    next(results)
    results.close()
    assert begun == ended
    assert max(begun) <= 2
