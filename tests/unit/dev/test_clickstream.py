import json
import random
import re
from datetime import UTC, datetime, timedelta, timezone

from dev.sources import clickstream


def test_an_event_has_the_promised_fields_and_types():
    event = clickstream.make_event(random.Random(1), datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC))
    assert {name: type(value) for name, value in event.items()} == {
        "timestamp": str,
        "event": str,
        "user_id": str,
        "site_id": str,
        "url": str,
        "on_site_seconds": int,
        "viewed_percent": float,
    }
    assert event["timestamp"] == "2026-01-02T03:04:05.678Z"
    assert 0 <= event["viewed_percent"] <= 100


def test_times_are_written_in_utc():
    summer = timezone(timedelta(hours=2))
    assert clickstream.iso_milliseconds(datetime(2026, 7, 1, 1, 0, tzinfo=summer)) == "2026-06-30T23:00:00.000Z"


def test_the_pool_is_whole_events_without_their_times_and_the_same_for_the_same_seed():
    pool = clickstream.render_pool(seed=3, size=500)
    # The times differ, and they are not part of the pool.
    assert pool == clickstream.render_pool(seed=3, size=500)
    assert pool != clickstream.render_pool(seed=4, size=500)
    for key, tail in pool:
        event = json.loads(clickstream._head(datetime.now(UTC)) + tail)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", event["timestamp"])
        assert event["user_id"].encode() == key


def test_an_event_is_about_200_bytes():
    pool = clickstream.render_pool(seed=3, size=500)
    head = len(clickstream._head(datetime.now(UTC)))
    assert 180 <= sum(head + len(tail) for _, tail in pool) / len(pool) <= 230


def test_the_rate_holds_on_average_and_the_count_is_never_passed():
    assert clickstream._due(rate=500, elapsed=2.0, sent=900, count=None) == 100
    assert clickstream._due(rate=500, elapsed=2.0, sent=1200, count=None) == 0
    assert clickstream._due(rate=500, elapsed=2.0, sent=900, count=950) == 50
    assert clickstream._due(rate=0, elapsed=2.0, sent=900, count=950) == 50
