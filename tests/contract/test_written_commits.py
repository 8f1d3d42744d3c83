"""A kind of commit that nobody had, as dev/COMMITS.md writes it for each format: a function and a check."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from airflow_lakestream.core.ports import HeadMoved
from dev.service import CHECKOUT
from tests.contract.conftest import FAULTS
from tests.support.faults import Fault, before
from tests.support.replacing import ORDERS, ranges
from tests.support.table_formats import FormatTable, IcebergTable

WRITTEN = re.findall(r"^```python\n(.*?)^```$", (CHECKOUT / "dev" / "COMMITS.md").read_text(), re.MULTILINE | re.DOTALL)
FIRST = (0, 0, 10)

# Sets the note by a sink that is loaded, if the landing is the newest one; returns the commit.
WriteNote = Callable[[Any, str, str], int]


@pytest.fixture
def made(empty: FormatTable) -> FormatTable:
    """Give a table of one landing."""
    empty.land(ranges(FIRST))
    return empty


@pytest.fixture
def write_note(made: FormatTable) -> WriteNote:
    """Give the page's function for the table's format."""
    names = dict[str, Any]()
    exec(WRITTEN[0 if isinstance(made, IcebergTable) else 1], names)  # a page of the repository
    written: WriteNote = names["write_note"]
    return written


def newest(table: FormatTable) -> str:
    """Return the id of the newest landing of the group."""
    [(_, landing)] = table.run().state.landed_by_run
    return landing.landing_id


def look(table: FormatTable) -> Any:
    """Return a sink that has looked at the table, and adds no column."""
    return table.run(schema=None, metadata=()).sink


def note_on(table: FormatTable) -> str | None:
    found: str | None = look(table).properties.get("lakestream.note")
    return found


def test_a_note_applies_while_its_landing_is_the_newest(made: FormatTable, write_note: WriteNote) -> None:
    rows, commits, entry = made.rows(), made.commits(), made.ledger().entry(ORDERS)
    done = write_note(look(made), "half of May", newest(made))
    assert note_on(made) == "half of May"
    assert made.commits() == [*commits, done]
    assert made.rows() == rows
    assert made.ledger().entry(ORDERS) == entry
    made.assert_whole()


def test_a_note_is_refused_behind_another_landing(made: FormatTable, write_note: WriteNote) -> None:
    noted = newest(made)
    made.land(ranges((0, 10, 20)))
    with pytest.raises(HeadMoved):
        write_note(look(made), "half of May", noted)
    assert note_on(made) is None


def test_the_check_sees_the_head_at_which_the_note_would_be_applied(made: FormatTable, write_note: WriteNote) -> None:
    noted = newest(made)
    made.meet(before(lambda: made.run().land(ranges((0, 10, 20)))))
    with pytest.raises(HeadMoved):
        write_note(look(made), "half of May", noted)
    assert note_on(made) is None
    assert made.ledger().entry(ORDERS).landed == ranges(FIRST, (0, 10, 20))
    made.assert_whole()


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_note_is_there_once_whatever_becomes_of_the_answer(
    made: FormatTable, write_note: WriteNote, fault: Fault
) -> None:
    noted, commits = newest(made), made.commits()
    made.meet(fault)
    done = write_note(look(made), "half of May", noted)
    assert made.commits() == [*commits, done]
    assert note_on(made) == "half of May"


def test_each_is_written_in_40_lines() -> None:
    assert [len(text.splitlines()) <= 40 for text in WRITTEN] == [True, True]
