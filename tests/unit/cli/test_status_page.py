"""The page of `lakestream status --html`: what it shows, and that nothing in a name becomes a part of it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.cli.status import DAY_MS, StatusLook, page, render
from airflow_lakestream.core.ledger import LandingEngine
from airflow_lakestream.iceberg.upkeep.file_use import FileUse
from airflow_lakestream.watching.causes import StreamCause, StreamReason
from airflow_lakestream.watching.streams.landings import SnapshotRecord
from airflow_lakestream.watching.streams.status import StreamState, StreamStatus

NOW = 1_800_000_000_000


def stream(topic: str = "orders", table: str = "lake.orders", **more: object) -> StreamStatus:
    given_ = {"lag": 5, "overdue": 2, "age": 60.0, "partitions": {0: {"end": 9, "lag": 5, "overdue": 2}}, **more}
    return StreamStatus(table, "g", topic, LandingEngine.EXTRACT, StreamState.BEHIND, **given_)


def landing(at_ms: int, rows: int) -> SnapshotRecord:
    return SnapshotRecord(at_ms, at_ms, "append", rows)


class Tags(HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data

    @classmethod
    def of(cls, text: str) -> Tags:
        found = cls()
        found.feed(text)
        return found


def test_unknown_ages_are_no_numbers() -> None:
    unknown = stream(overdue=None, partitions={0: {"end": 9, "lag": 5, "overdue": None}})
    assert page([StatusLook(NOW, [unknown])]).count('<td class="number">?</td>') == 2
    assert render([unknown]).splitlines()[1].split()[6:8] == ["5", "?"]
    assert "?" not in page([StatusLook(NOW, [stream(lag=None, overdue=None, partitions={})])])


def test_a_stream_with_its_landings_of_the_last_day() -> None:
    landings = (landing(NOW - 1000, 10), landing(NOW - DAY_MS // 2, 40), landing(NOW - DAY_MS - 1, 99))
    shown = page([StatusLook(NOW, [stream(landings=landings)])])
    assert "Landings of the last 24 hours: 2, 50 rows." in shown
    heights = [float(one) for one in re.findall(r'class="rows" [^>]*height="([\d.]+)"', shown)]
    assert heights == [22.5, 90.0]
    assert 'class="state behind"' in shown
    assert "polyline" not in shown


def test_files_that_wait_for_a_compaction_are_shown() -> None:
    files = FileUse(files=1500, small=1440, delete_files=3, compacted_at=NOW - 3_600_000)
    shown = page([StatusLook(NOW, [stream(files=files)])])
    assert "Small files: 1,440. Delete files: 3. Last compaction: 60 min ago." in shown


def test_the_lag_of_several_looks_is_a_line() -> None:
    shown = page([StatusLook(NOW - 1000 * n, [stream(lag=lag)]) for n, lag in ((2, 0), (1, 10), (0, 5))])
    assert re.search(r'points="0.0,90.0 360.0,4.0 720.0,47.0"', shown)
    assert "10 offsets at most, now 5" in shown


def test_it_needs_nothing_but_itself() -> None:
    shown = page([StatusLook(NOW, [stream(landings=(landing(NOW, 1),))])])
    assert not re.search(r"https?:|src=|href=|@import|url\(|<script", shown)


@given(st.text(), st.text(), st.text())
def test_no_name_and_no_reason_becomes_a_tag(topic: str, table: str, text: str) -> None:
    reasons = (StreamReason(StreamCause.UNUSABLE, text),)
    plain, odd = (
        Tags.of(page([StatusLook(NOW, [stream(*names, reasons=reasons)])])) for names in (("a", "b"), (topic, table))
    )
    expected = Tags.of(page([StatusLook(NOW, [stream("a", "b", reasons=(StreamReason(StreamCause.UNUSABLE, "c"),))])]))
    assert plain.tags == odd.tags == expected.tags


def test_a_stream_that_could_not_be_looked_at_is_shown() -> None:
    failing = StreamStatus(
        "", "", "", None, StreamState.FAILING, (StreamReason(StreamCause.UNUSABLE, "no broker"),), checkpoint="/c/1"
    )
    shown = Tags.of(page([StatusLook(NOW, [failing])])).text
    assert "no broker" in shown
    assert "/c/1" in shown
