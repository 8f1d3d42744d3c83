"""Records and checks that end the process in which they meet; the memory of such processes.

A few of both, and the product of 60 records and 30 checks: on the shared audit and on landings of each kind in the
worker by tests/unit/checks/test_hostile_checks.py, on real engines by their own tests.

    python -m tests.support.hostile_checks PROGRAM ...

runs a driver's program whose checks have little time, as `python PROGRAM ...` runs it with all.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psutil

from airflow_lakestream.checks import audit
from tests.support.broker import Producing

DEEP = "[" * 200_000 + "]" * 200_000
_NAMES: list[str | None] = [
    *("1", DEEP, "[" * 5000, '{"a":' * 100_000 + "1" + "}" * 100_000, "\x00" * 5, "\u202e", None, "", "9" * 400),
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

# The product: texts of records, and conditions of checks.
TEXTS: list[str | None] = [
    *(mark * size for mark in ("[", "{", '{"a":', "]", '"', "9", "\x00", "%", "(", "\\", "'") for size in (1, 5000)),
    *(f"{left * size}1{right * size}" for left, right in ("[]", "()") for size in (500, 50_000, 200_000)),
    *('{"a":' * size + "1" + "}" * size for size in (500, 100_000)),
    *("1", "1500000000", "2147483647", "-1", "1e400", "NaN", "Infinity", "0x7f", "9" * 400, "1." + "0" * 5000),
    *(None, "", " ", "null", "true", "\u202e", "\ud7ff", "\U0010ffff", "a\nb", "\x1b]0;x\x07", "'; DROP TABLE x; --"),
    *("2026-01-01", "99999-12-31 00:00:00", "-infinity", "P1Y", "$.a", "$**", "(a+)+$", "%_%", "a" * 1_000_000),
]
CONDITIONS = [
    *("json_contains(s, '1')", "json_valid(s)", "json_array_length(s) > 3", "json_extract(s, '$[0]') IS NULL"),
    *("json_transform(s, '[\"JSON\"]') IS NULL", "json_structure(s) IS NULL", "variant_typeof(s::JSON::VARIANT) = 'x'"),
    *("json_pretty(s) = ''", "json_merge_patch(s, s) IS NULL", "json_keys(s) IS NULL", "s::JSON::VARCHAR = s"),
    *("length(lpad(s, n::INT, '0')) > 0", "length(rpad(s, n::INT, '0')) > 0", "length(repeat(s, n)) > 0"),
    *("length(format('{:>{}}', s, n)) > 0", "len(range(n)) > 0", "list_sum(range(n)) > 0", "s::INT > 0"),
    *("regexp_matches(s, s)", "regexp_replace(s, '.', repeat('y', 1000), 'g') = ''", "levenshtein(s, s) > 0"),
    *("s::DATE > DATE '2020-01-01'", "s::INTERVAL IS NULL", "s::DOUBLE > 1", "s::DECIMAL(38,9) > 1", "s::UUID IS NULL"),
    *("md5(repeat(s, 1000)) = ''", "list_aggregate(string_split(s, ''), 'count') > 5", "strptime(s, '%Y') IS NULL"),
    "bar(n, 0, 1, n::INT) = ''",
]
SCHEMA = "s string, n bigint"
PRODUCT: dict[str, Any] = {"sql": [f"SELECT * FROM landing WHERE {one}" for one in CONDITIONS], "not_null": "n"}
MOST_SECONDS = 900.0
_MOST_BYTES, _SHOWN = 512 * 2**20, 45


def number_of(text: str | None) -> int:
    """Return how long a text is to be made, by the text."""
    return int(text) if text is not None and text.isdecimal() and len(text) < 12 else 1


def records_of_texts() -> list[bytes]:
    """Return the records of the product."""
    return [json.dumps({"s": one, "n": number_of(one)}).encode() for one in TEXTS]


def patient_producer(kafka: Mapping[str, str]) -> Producing:
    """Return a writer that takes the longest of the records; compressed they keep the broker's bound."""
    return Producing({**kafka, "message.max.bytes": str(2**21)})


@dataclass
class Peak:
    """The most that watched processes have held at a time, in bytes, and how many processes of checks there were."""

    bytes: int = 0
    processes: int = 0


_OF_CHECKS = "airflow_lakestream.checks.worker"


@contextmanager
def watched(root: int, only: str = "", *, with_root: bool = True) -> Iterator[Peak]:
    """Watch the memory of a process and of all below it; pages that several share count once.

    :param only: of those below, processes with this text in their command.
    """
    peak, seen, done = Peak(), set[int](), threading.Event()

    def look() -> None:
        while not done.wait(0.1):
            held = 0
            with suppress(psutil.Error):
                top = psutil.Process(root)
                for one in (*[top] * with_root, *top.children(recursive=True)):
                    with suppress(psutil.Error):
                        command = " ".join(one.cmdline())
                        seen.update([one.pid] if _OF_CHECKS in command else [])
                        held += one.memory_full_info().pss if one is top or only in command else 0
            peak.bytes, peak.processes = max(peak.bytes, held), len(seen)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield peak
    finally:
        done.set()
        looking.join()


@contextmanager
def watched_checks() -> Iterator[Peak]:
    """Watch the processes of checks below this one: on leaving, there were some, and they have kept their bound."""
    with watched(os.getpid(), _OF_CHECKS, with_root=False) as peak:
        yield peak
    assert peak.processes > 1
    assert peak.bytes <= _MOST_BYTES


def assert_all_failed(said: str) -> None:
    """Check that an error names each check that failed, and none besides; long statements are cut."""
    assert [one for one in FAILING if one[:_SHOWN] not in said] == []
    assert re.search(re.escape(_KILLED[:_SHOWN]) + r".*: it ends the process that it runs in: killed by signal", said)
    assert "of memory" in said
    assert "score < 0" not in said
    assert "not_null" not in said


# Python's arguments for a driver whose checks have little time: see `main`.
THROUGH = ("-m", "tests.support.hostile_checks")


def hurry() -> None:
    """Give each check enough time to take all memory, and none to look for the rows."""
    audit.SECONDS, audit.SEARCH = 1.0, 0.0


Land = Callable[[Mapping[str, Any]], tuple[str, Peak]]


def play_product(land: Land, produce: Callable[[], object], place: str) -> None:
    """Land the product without checks, land it again with all checks, and once more without those that failed.

    :param land: lands with these checks; returns the log of a failure or an empty text, and the memory.
    :param produce: writes the records.
    :param place: the topic's offsets whose rows the checks have seen, as errors name them.
    """
    produce()
    said, without = land({})
    assert said == ""
    produce()
    began = time.monotonic()
    said, checked = land(PRODUCT)
    seconds, more = time.monotonic() - began, checked.bytes - without.bytes
    found = re.search(r"the rows of (.+) did not pass (\d+) of the checks", said)
    assert found is not None, said[-2000:]
    print(f"{len(TEXTS)} records, {len(CONDITIONS)} checks: {found[2]} failed, {seconds:.0f} s, {more >> 20} MiB more")
    assert place in found[1]
    failed = [one for one in CONDITIONS if f"sql: SELECT * FROM landing WHERE {one}"[:78] in said]
    assert len(failed) == int(found[2]) >= 25
    assert "not_null" not in said
    assert checked.processes > 1
    assert more <= _MOST_BYTES
    assert seconds <= MOST_SECONDS
    assert land({"not_null": "n"})[0] == ""


def main() -> None:
    """Run a program, or a module behind -m."""
    hurry()
    is_module = sys.argv[1] == "-m"
    sys.argv = sys.argv[2 if is_module else 1 :]
    run = runpy.run_module if is_module else runpy.run_path
    run(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
