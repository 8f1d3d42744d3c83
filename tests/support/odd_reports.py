"""Any JSON under the names that the page reads, and which of it is no report: said again here, apart from the page."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any

NAMES = ("read", "rows_in", "rows", "rows_out", "tables", "rejected", "skipped", "remaining_lag", "lag", "snapshot_ids")
NAMES += ("schema_changes", "ranges", "lost", "topic", "table", "consumer_group", "topics", "reasons", "time_left")
NAMES += ("seconds", "files", "snapshots", "rejects", "fresh")
TEXTS = ("", "many", "0", "-1", "1e400", "\u202e", "\ud800", "<b>", "12", "9" * 30, "null", "2026-01-01")
NUMBERS = (0, 1, -1, 3, 2**63, 10**400, -(10**30), 0.5, 1e300, math.nan, -math.inf, True, False, None)
STATES = ("failed", "success", "running", "queued", "removed", "upstream_failed", "nobody knows it", "")
# Deeper than any report is.
_DEEP = 20

Fits = Callable[[Any], bool]


def anything(random: Random, depth: int = 0) -> Any:
    """Return some JSON."""
    kind = random.random()
    if depth < 4 and kind < 0.3:
        return {random.choice((*NAMES, *TEXTS[:3])): anything(random, depth + 1) for _ in range(random.randrange(4))}
    if depth < 4 and kind < 0.5:
        return [anything(random, depth + 1) for _ in range(random.randrange(5))]
    if kind < 0.52:
        deep: Any = 1
        for _ in range(200):
            deep = [deep]
        return deep
    return random.choice(TEXTS if kind < 0.75 else NUMBERS)


def altered(random: Random, document: Any) -> Any:
    """Return a document of which one value, at any depth, is some JSON."""
    made = copy.deepcopy(document)
    places = [(one, key) for one in _parts(made) for key in (one if isinstance(one, dict) else range(len(one)))]
    here, key = random.choice(places)
    here[key] = anything(random)
    return made


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for one in value.values() if isinstance(value, dict) else value:
            yield from _parts(one)


def _number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63)


def _whole(value: Any) -> bool:
    return _number(value) and (value is None or value == int(value))


def _text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _id(value: Any) -> bool:
    return _text(value) or (isinstance(value, int) and not isinstance(value, bool))


def _offsets(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(one is not None and _whole(one) for one in value)


def _list(of: Fits) -> Fits:
    return lambda value: value is None or (isinstance(value, list) and all(map(of, value)))


def _by_key(of: Fits) -> Fits:
    return lambda value: value is None or (isinstance(value, dict) and all(map(of, value.values())))


def _fields(**of: Fits) -> Fits:
    return lambda value: isinstance(value, dict) and all(fits(value.get(name)) for name, fits in of.items())


def _shown(value: Any, depth: int = 0) -> bool:
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return depth <= _DEEP and all(_shown(one, depth + 1) for one in inner)
    return depth <= _DEEP and (isinstance(value, str | bool) or _number(value))


_RANGES = {"ranges": _list(_offsets), "lost": _list(_offsets)}
_REPORT = _fields(
    **_RANGES,
    topics=_by_key(_fields(**_RANGES)),
    tables=_by_key(_whole),
    **dict.fromkeys(("topic", "table", "consumer_group"), _text),
    **dict.fromkeys(("read", "rows_in", "rows", "rows_out", "remaining_lag", "lag", "rejected", "skipped"), _whole),
    snapshot_ids=_list(_id),
    schema_changes=_list(_text),
)
_LOOK = _fields(lag=_whole, lost=_whole, time_left=_number, reasons=_list(_fields(cause=_text, text=_text)))
_SAMPLE = _fields(
    **dict.fromkeys(("topic", "error", "value", "run_id"), _text),
    **dict.fromkeys(("partition", "offset", "bytes"), _whole),
)
_REASON = _fields(stage=_text, reason=_text, records=_whole, samples=_list(_SAMPLE))
_SNAPSHOT = _fields(
    **dict.fromkeys(("snapshot_id", "at", "operation", "kind", "consumer_group"), _text),
    rows=_whole,
)
_CONTENTS = _fields(
    table=_text,
    consumer_group=_text,
    files=_fields(
        **dict.fromkeys(("data_files", "delete_files", "bytes", "rows", "small_files"), _whole), compacted_at=_text
    ),
    snapshots=_fields(count=_whole, newest=_list(_SNAPSHOT)),
    rejects=_fields(count=_whole, looked_at=_whole, kinds=_whole, reasons=_list(_REASON)),
)
_STREAMS = _list(_fields(table=_text, consumer_group=_text))


def is_odd_report(value: Any) -> bool:
    """Whether this is no report of a landing, nor of a run that landed nothing."""
    value = _decoded(value)
    if value is None:
        return False
    if not isinstance(value, dict):
        return True
    counts = [value.get(name) for name in ("read", "rows_in")]
    nothing = all(one is None or (one == 0 and not isinstance(one, bool)) for one in counts)
    return not (nothing and value.get("lost") in (None, [])) and not _REPORT(value)


def is_odd_look(value: Any) -> bool:
    """Whether a sensor has no such value."""
    value = _decoded(value)
    return value is not None and not (_LOOK(value) and _shown(value))


def are_odd_contents(value: Any) -> bool:
    """Whether this is no report on what a table holds."""
    return not _CONTENTS(_decoded(value))


def is_odd_list(value: Any) -> bool:
    """Whether this is no list of streams."""
    return not _STREAMS(_decoded(value))


def _decoded(value: Any) -> Any:
    """Return the value of an XCom, which may be JSON in a text."""
    if isinstance(value, str):
        with suppress(ValueError):
            return json.loads(value)
    return value
