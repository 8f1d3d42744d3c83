"""Records and checks that end the process in which they meet, for real engines; and the memory of such processes.

The product of 60 records and 30 checks is played on the shared audit, and on landings of each kind in the worker:
tests/unit/checks/test_hostile_checks.py.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

_DEEP = "[" * 200_000 + "]" * 200_000
_NAMES: list[str | None] = [
    *("1", _DEEP, "[" * 5000, '{"a":' * 100_000 + "1" + "}" * 100_000, "\x00" * 5, "\u202e", None, "", "9" * 400),
    *("NaN", "1e400", "'; DROP TABLE landing; --", "99999-12-31", "a\nb", "x" * 200_000, "2026-01-01"),
]
RECORDS = [
    json.dumps({"id": 1_500_000_000 if at == 3 else 7, "name": name, "score": 0.5}) for at, name in enumerate(_NAMES)
]
# Of the deep text alone: other texts fail before DuckDB descends into it.
_KILLED = "variant_typeof((CASE WHEN name LIKE '[[%]]' THEN name END)::JSON::VARIANT) = ''"
FAILING = [
    *("json_contains(name, '1')", _KILLED, "length(lpad(name, id::INT, '0')) > 0"),
    *("list_sum(range(id)) > 0", "name::INT > 0", "strptime(name, '%Y') IS NULL", "name::DATE > DATE '2020-01-01'"),
]
CHECKS = {"sql": [f"SELECT * FROM landing WHERE {one}" for one in (*FAILING, "score < 0")], "not_null": "id"}
_MOST_BYTES, _SHOWN = 512 * 2**20, 45


@dataclass
class Peak:
    """The most that processes of checks have held at a time, in bytes, and how many there were."""

    bytes: int = 0
    processes: int = 0


@contextmanager
def watched_checks() -> Iterator[Peak]:
    """Watch the processes of checks below this one: on leaving, there were some, and they have kept their bound."""
    peak, seen, done = Peak(), set[int](), threading.Event()

    def look() -> None:
        while not done.wait(0.05):
            held = 0
            with suppress(psutil.Error):
                for one in psutil.Process().children(recursive=True):
                    with suppress(psutil.Error):
                        if any("airflow_lakestream.checks.worker" in part for part in one.cmdline()):
                            seen.add(one.pid)
                            held += one.memory_info().rss
            peak.bytes, peak.processes = max(peak.bytes, held), len(seen)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield peak
    finally:
        done.set()
        looking.join()
    assert peak.processes > 1
    assert peak.bytes <= _MOST_BYTES


def assert_all_failed(said: str) -> None:
    """Check that an error names each check that failed, and none besides; long statements are cut."""
    assert [one for one in FAILING if one[:_SHOWN] not in said] == []
    assert re.search(re.escape(_KILLED[:_SHOWN]) + r".*: it ends the process that it runs in: killed by signal", said)
    assert "of memory" in said
    assert "score < 0" not in said
    assert "not_null" not in said
