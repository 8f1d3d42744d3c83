"""What commands print of records and names that others chose, and the files that they write."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import airflow_lakestream.cli.app
from airflow_lakestream.audit.keyed import RowFault, WrongRow
from airflow_lakestream.cli.app import FAILED, run
from airflow_lakestream.cli.connections import report_text
from airflow_lakestream.cli.preview import columns_of, topic_lines
from airflow_lakestream.cli.status import _PageFile, render
from airflow_lakestream.iceberg.upkeep.reject_summary import RejectExample
from airflow_lakestream.onramp.preview import TopicPreview
from airflow_lakestream.watching.causes import StreamCause, StreamReason
from tests.unit.cli.test_status_page import stream

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


@given(st.text(st.characters(exclude_categories=[])), st.text(max_size=5))
def test_a_wrong_row_is_one_line_whatever_its_key(value: str, column: str) -> None:
    row = WrongRow(0, 7, RowFault.DIFFERENT, key=((column, value),), columns=(column,))
    assert row.text.isprintable()


def test_an_error_of_a_driver_stays_below_its_stream() -> None:
    failed = stream(reasons=(StreamReason(StreamCause.FAILED_QUERY, HOSTILE),))
    lines = render([failed]).split("\n")
    assert all(line.isprintable() for line in lines)
    assert "    lake.orders: 0 rejected records" in lines
    assert [line for line in lines if line.startswith("lake.orders")] == []


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_text_of_commands_has_no_invisible_characters(text: str) -> None:
    with redirect_stdout(io.StringIO()) as said:
        report_text(text)
    assert all(line.isprintable() for line in said.getvalue().split("\n"))


def test_each_text_of_a_command_goes_that_way() -> None:
    """JSON has ASCII alone; the status paints its words behind the escapes; a version is ours."""
    raw = {
        (path.stem, line.strip())
        for path in Path(airflow_lakestream.cli.app.__file__).parent.glob("*.py")
        for line in path.read_text().splitlines()
        if re.search(r"\b(typer\.echo|print|secho)\(", line)
    }
    assert {name for name, _ in raw} == {"app", "connections", "status"}
    assert sorted(line for name, line in raw if name != "status") == [
        'typer.echo(f"lakestream {__version__}")',
        "typer.echo(printable_lines(text), err=err)",
    ]
    assert len(raw) == 6


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
