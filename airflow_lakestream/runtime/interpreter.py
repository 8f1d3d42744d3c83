"""Settings of the interpreter for landings: iteration ahead in a thread, short turns of threads, rare collections."""

from __future__ import annotations

import gc
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Generic, TypeVar

Item = TypeVar("Item")
# Seconds between two checks of `stop`.
STOP_INTERVAL = 0.5


class ReadAhead(Generic[Item]):
    """Iteration over `make_items(cancelled)` in another thread, at most `depth` items ahead.

    An error of the iterator is raised to the consumer after the items before the error. Leaving the context sets
    `cancelled`, which the iterator must check while it waits, and then waits for the thread.

    :param stop: an event that ends the iteration early, set by the caller.
    :param weigh: returns the number of items that an item counts for, so that fewer large items are held.
    """

    def __init__(
        self,
        make_items: Callable[[threading.Event], Iterator[Item]],
        depth: int,
        stop: threading.Event,
        weigh: Callable[[Item], float] = lambda _: 1,
    ) -> None:
        self._cancelled = threading.Event()
        self._items = make_items(self._cancelled)
        self._depth = depth
        self._stop = stop
        self._weigh = weigh
        self._ready: deque[Item] = deque()
        self._changed = threading.Condition()
        self._done = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="lakestream-read-ahead", daemon=True)

    def __enter__(self) -> Iterator[Item]:
        self._thread.start()
        return self._consume()

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._cancelled.set()
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        try:
            with closing(self._items) as items:  # type: ignore[type-var]  # generators have close()
                for item in items:
                    if not self._put(item):
                        return
        except BaseException as e:  # noqa: BLE001  # handed to the consumer, who raises it
            self._error = e
        finally:
            with self._changed:
                self._done = True
                self._changed.notify_all()

    def _put(self, item: Item) -> bool:
        with self._changed:
            self._ready.append(item)
            self._changed.notify_all()
            # Wait after the item was added: then the thread makes the next item only if there is room.
            self._changed.wait_for(lambda: self._cancelled.is_set() or sum(map(self._weigh, self._ready)) < self._depth)
            return not self._cancelled.is_set()

    def _consume(self) -> Iterator[Item]:
        while True:
            with self._changed:
                while not self._ready and not self._done and not self._stop.is_set():
                    # A signal handler sets `stop` without notifying: check it now and then.
                    self._changed.wait(STOP_INTERVAL)
                if not self._ready or self._stop.is_set():
                    break
                item = self._ready.popleft()
                self._changed.notify_all()
            yield item
        if self._error is not None:
            raise self._error


# Seconds that a thread back from a call of Arrow or numpy waits for the thread that holds the interpreter. With
# Python's own 5 ms, a thread that decodes in some hundred such calls waits most of its time for the thread that reads
# Kafka.
SHORT = 0.0002

_lock = threading.Lock()
# The number of entered contexts, and the interval before the first, in seconds.
_depth = 0
_before = sys.getswitchinterval()


@contextmanager
def shorten_turns() -> Iterator[None]:
    """Let threads hold the interpreter for 0.2 ms at a time; may be entered repeatedly and from any thread."""
    global _depth, _before  # one interpreter per process, so one counter
    with _lock:
        if _depth == 0:
            _before = sys.getswitchinterval()
            sys.setswitchinterval(min(SHORT, _before))
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                sys.setswitchinterval(_before)


# The collector's thresholds during a landing. By default it runs after each 700 new containers, such as Kafka's
# messages, but a landing leaves only a few objects in cycles per commit.
CALM = (50_000, 20, 20)

_calm_lock = threading.Lock()
# The number of entered contexts, and the thresholds before the first.
_calm_depth = 0
_threshold = gc.get_threshold()


@contextmanager
def frozen() -> Iterator[None]:
    """Hide existing objects from the collector; afterwards they are in the oldest generation, without a collection."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def pause_collection() -> Iterator[None]:
    """Switch the collector off, for code with many objects and no garbage, and prevent a collection right after it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # `frozen` moves the new objects to the oldest generation, so that no collection of young objects follows.
        with frozen():
            if was_enabled:
                gc.enable()


@contextmanager
def calm_collector() -> Iterator[None]:
    """Let the collector run rarely, and only over new objects; may be entered repeatedly and from any thread.

    Measured in an Airflow task: landing 2,000,000 raw records took 5.4 s of CPU time with the collector's defaults,
    and 4.4 to 4.7 s with a calm collector.
    """
    global _calm_depth, _threshold  # one collector per process, so one counter
    with _calm_lock:
        if _calm_depth == 0:
            _threshold = gc.get_threshold()
            gc.freeze()
            gc.set_threshold(*CALM)
        _calm_depth += 1
    try:
        yield
    finally:
        with _calm_lock:
            _calm_depth -= 1
            if _calm_depth == 0:
                gc.set_threshold(*_threshold)
                gc.unfreeze()
