"""Made-up clickstream events: what visitors of some sites look at, and for how long."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import cycle, islice

from dev.progress import Say, quiet
from dev.sources.sending import Sender

_EVENTS = ("page_view", "page_view", "page_view", "scroll", "click", "add_to_cart", "purchase")
_SECTIONS = ("news", "sports", "culture", "travel", "science", "markets", "recipes")
_WORDS = ("river", "harbour", "summer", "market", "winter", "garden", "station", "bridge", "mountain", "island")

# Rendering costs more than sending: records are drawn from this many pre-rendered ones, each with the time put in.
_POOL = 20_000
_TICK_S = 0.02
_BLOCK = 1_000
_SAY_EVERY_S = 5.0


def render_event(event: Mapping[str, object]) -> bytes:
    """Render an event as compact JSON."""
    return json.dumps(event, separators=(",", ":")).encode()


def make_event(rng: random.Random, at: datetime) -> dict[str, object]:
    """Make up one event."""
    path = "-".join(rng.choice(_WORDS) for _ in range(3))
    site = rng.randrange(1, 13)
    return {
        "timestamp": iso_milliseconds(at),
        "event": rng.choice(_EVENTS),
        "user_id": f"u{rng.randrange(50_000):06d}",
        "site_id": f"s{site:02d}",
        "url": f"https://s{site:02d}.example.com/{rng.choice(_SECTIONS)}/{path}?page={rng.randrange(1, 400)}",
        "on_site_seconds": int(rng.expovariate(1 / 90)),
        "viewed_percent": round(rng.uniform(0, 100), 1),
    }


def iso_milliseconds(at: datetime) -> str:
    """Write a time as ISO 8601 in UTC with milliseconds and Z: always 24 characters."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"


def render_pool(seed: int, size: int = _POOL) -> list[tuple[bytes, bytes]]:
    """Render (key, all of the event behind its timestamp), the same ones for the same seed."""
    rng = random.Random(seed)
    head = len(_head(datetime.now(UTC)))
    events = (make_event(rng, datetime.now(UTC)) for _ in range(size))
    return [(str(event["user_id"]).encode(), render_event(event)[head:]) for event in events]


def _head(at: datetime) -> bytes:
    return f'{{"timestamp":"{iso_milliseconds(at)}'.encode()


def produce_clickstream(
    client_config: Mapping[str, str],
    topic: str,
    *,
    rate: float = 500,
    count: int | None = None,
    partitions: int = 4,
    seed: int = 7,
    stop: threading.Event | None = None,
    say: Say = quiet,
) -> int:
    """Produce events keyed by user until `count` are sent or `stop` is set; return how many.

    :param rate: events a second; 0 for as fast as possible.
    :param partitions: of the topic, when it is made here.
    """
    stop = stop or threading.Event()
    sender = Sender(client_config, topic, partitions)
    sent, began, told = 0, time.monotonic(), time.monotonic()
    pool: Iterator[tuple[bytes, bytes]] = cycle(render_pool(seed))
    try:
        while not stop.is_set() and (count is None or sent < count):
            due = _due(rate, time.monotonic() - began, sent, count)
            head = _head(datetime.now(UTC))
            for key, tail in islice(pool, due):
                sender.send(head + tail, key)
            sent += due
            sender.poll()
            if time.monotonic() - told > _SAY_EVERY_S:
                told = time.monotonic()
                say(f"{topic}: {sent:,} events sent")
            if rate:
                stop.wait(_TICK_S)
    finally:
        sender.close()
    return sent


def _due(rate: float, elapsed: float, sent: int, count: int | None) -> int:
    """How many events to send now, so that the rate holds on average."""
    due = max(0, int(rate * elapsed) - sent) if rate else _BLOCK
    return due if count is None else min(due, count - sent)
