"""What commands print of records and names that others chose, and the files that they write."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_lakestream.cli.app import FAILED, run
from airflow_lakestream.cli.preview import columns_of, topic_lines
from airflow_lakestream.cli.status import _PageFile
from airflow_lakestream.iceberg.upkeep.reject_summary import RejectExample
from airflow_lakestream.onramp.preview import TopicPreview

HOSTILE = "a\x1b[2J\x1b]0;owned\x07\u202eb\nlake.orders: 0 rejected records"


def test_a_rejected_record_is_one_line_in_which_all_is_seen() -> None:
    text = RejectExample("orders", 0, 7, f"n: {HOSTILE} is no bigint", HOSTILE.encode(), "r").text
    assert text.isprintable()
    assert "\\x1b[2J" in text
    assert "\\u202eb\\nlake.orders" in text


def test_names_of_fields_are_shown_as_they_are_made_of() -> None:
    found = TopicPreview(
        "orders", 1, 2, None, {"format": HOSTILE}, "", "`amount\u202etnuoma` bigint", 1, notes=[HOSTILE]
    )
    lines = [*topic_lines(found), *columns_of(found)]
    assert all(line.isprintable() for line in lines)
    assert any("amount\\u202etnuoma" in line for line in lines)


def test_an_error_is_one_line_in_which_all_is_seen(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text('{"metadata": {"name": "a\x1b[2J\u202e"}}'.replace("\x1b", "\\u001b"))
    for command in ("run", "validate"):
        assert run(["pipeline", command, str(file)]) == FAILED
        assert all(line.isprintable() for line in capsys.readouterr().err.splitlines())


def test_a_page_is_written_through_no_link(tmp_path: Path) -> None:
    other, file = tmp_path / "other", tmp_path / "page.html"
    other.write_text("mine")
    (tmp_path / "page.html.part").symlink_to(other)
    for _ in range(2):
        _PageFile(file).add([])
    assert other.read_text() == "mine"
    assert "Streams" in file.read_text()
    assert not file.is_symlink()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["other", "page.html"]
