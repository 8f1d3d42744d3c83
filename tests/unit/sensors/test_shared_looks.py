"""One answer for all who ask the same question, and none of it in the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from airflow_lakestream.exceptions import LakestreamError
from airflow_lakestream.triggers.shared_looks import SharedLooks, next_look, shared_looks
from airflow_lakestream.watching.asking import Looking, LookOutcome, LookQuestion, Verdict


class Counted:
    """A question that counts how often it is answered, and where."""

    def __init__(self, wait: threading.Event | None = None, error: Exception | None = None) -> None:
        self.threads: list[int] = []
        self._wait, self._error = wait, error

    def __call__(self) -> int:
        self.threads.append(threading.get_ident())
        if self._wait is not None:
            assert self._wait.wait(30)
        if self._error is not None:
            raise self._error
        return len(self.threads)


def looking(*asks: LookQuestion) -> Looking:
    answers = []
    for ask in asks:
        answers.append((yield ask))
    return Verdict(LookOutcome.DONE, value={"answers": answers})


def run(work: Callable[[SharedLooks], Coroutine[Any, Any, Any]]) -> Any:
    async def begun() -> Any:
        return await work(shared_looks())

    return asyncio.run(begun())


def test_a_thousand_sensors_ask_once() -> None:
    topic, table = Counted(), Counted()

    async def all_at_once(looks: SharedLooks) -> list[Verdict]:
        same = (LookQuestion(("topic",), topic), LookQuestion(("table",), table))
        return await asyncio.gather(*(looks.look(looking(*same), 60) for _ in range(1000)))

    verdicts = run(all_at_once)
    assert (len(topic.threads), len(table.threads)) == (1, 1)
    assert {str(one.value) for one in verdicts} == {"{'answers': [1, 1]}"}
    assert threading.get_ident() not in topic.threads


def test_a_later_poll_asks_anew_and_what_is_to_be_kept_is_kept() -> None:
    fresh, opened = Counted(), Counted()

    async def twice(looks: SharedLooks) -> None:
        for _ in range(2):
            await looks.look(
                looking(LookQuestion(("catalog",), opened, share_seconds=600), LookQuestion(("table",), fresh)), 0.02
            )
            await asyncio.sleep(0.05)  # longer than an answer of such a poll serves

    run(twice)
    assert (len(opened.threads), len(fresh.threads)) == (1, 2)


def test_an_error_is_everybodys_and_connections_are_opened_anew_after_it() -> None:
    opened, failing = Counted(), Counted(error=LakestreamError("no answer"))

    def caught() -> Looking:
        try:
            yield LookQuestion(("catalog",), opened, share_seconds=600)
            yield LookQuestion(("table",), failing)
        except LakestreamError as e:
            return Verdict(LookOutcome.WAITING, value={"error": str(e)})
        raise AssertionError("no error")

    async def both(looks: SharedLooks) -> list[Verdict]:
        first = await asyncio.gather(looks.look(caught(), 60), looks.look(caught(), 60))
        return [*first, await looks.look(caught(), 60)]

    assert [one.value for one in run(both)] == [{"error": "no answer"}] * 3
    assert (len(failing.threads), len(opened.threads)) == (1, 2)


def test_who_is_cancelled_leaves_the_answer_to_the_others() -> None:
    may_end = threading.Event()
    slow = Counted(wait=may_end)

    async def one_leaves(looks: SharedLooks) -> Verdict:
        ask = LookQuestion(("topic",), slow)
        leaving = asyncio.ensure_future(looks.look(looking(ask), 60))
        staying = asyncio.ensure_future(looks.look(looking(ask), 60))
        await asyncio.sleep(0)  # the other tasks get on
        leaving.cancel()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        return await staying

    assert run(one_leaves).value == {"answers": [1]}
    assert len(slow.threads) == 1


def test_a_broker_that_hangs_takes_one_thread_and_holds_up_nobody_else() -> None:
    may_end = threading.Event()
    hanging, other = Counted(wait=may_end), Counted()

    async def beside(looks: SharedLooks) -> Verdict:
        stuck = [asyncio.ensure_future(looks.look(looking(LookQuestion(("a",), hanging)), 60)) for _ in range(100)]
        await asyncio.sleep(0)  # the other tasks get on
        verdict = await asyncio.wait_for(looks.look(looking(LookQuestion(("b",), other)), 60), 30)
        may_end.set()
        await asyncio.gather(*stuck)
        return verdict

    assert run(beside).value == {"answers": [1]}
    assert len(hanging.threads) == 1


@pytest.mark.parametrize("now", [0.0, 17.3, 1_800_000_000.25])
def test_sensors_of_one_subject_look_at_the_same_moment_within_the_interval(now: float) -> None:
    at = next_look(now, 60, "orders")
    assert now < at <= now + 60
    assert next_look(at - 0.001, 60, "orders") == pytest.approx(at)
    assert next_look(at + 0.001, 60, "orders") == pytest.approx(at + 60)


def test_sensors_of_different_subjects_are_spread() -> None:
    moments = sorted(next_look(0.0, 60, f"topic {n}") for n in range(1000))
    assert all(5 < sum(start <= at < start + 6 for at in moments) < 200 for start in range(0, 60, 6))
