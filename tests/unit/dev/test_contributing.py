"""The guide for those who change the code: its tours lead to files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dev.suites.table import SUITES

CHECKOUT = Path(__file__).parents[3]
GUIDE = (CHECKOUT / "dev" / "CONTRIBUTING.md").read_text()
ROWS = re.findall(r"^\| ([a-z].*?) \| (.*) \|$", GUIDE, re.MULTILINE)
_TOURS = GUIDE.partition("## Tours")[2].partition("## Where")[0]
TOURS = re.findall(r"^\| ([a-z].*?) \| (.*) \|$", _TOURS, re.MULTILINE)
MOST_FILES = 5


def files_of(text: str) -> list[str]:
    return [name for name in re.findall(r"`([\w./]+)`", text) if re.search(r"/|\.(py|md|toml)$", name)]


def is_there(name: str) -> bool:
    return any((root / name).exists() for root in (CHECKOUT, CHECKOUT / "airflow_lakestream"))


@pytest.mark.parametrize(("task", "text"), ROWS)
def test_the_files_that_a_row_names_are_there(task: str, text: str) -> None:
    assert [name for name in files_of(text) if not is_there(name)] == []


def test_a_tour_opens_five_files_at_most() -> None:
    assert len(TOURS) == 7
    assert {task: len(files_of(text)) for task, text in TOURS if len(files_of(text)) > MOST_FILES} == {}


def test_each_suite_has_a_row() -> None:
    rows = " ".join(re.findall(r"^\| (`.*?) \|", GUIDE, re.MULTILINE))
    assert {suite.name for suite in SUITES if suite.follows} == set(re.findall(r"`([a-z]+)`", rows))


def test_a_file_with_a_stack_of_its_own_says_so() -> None:
    files = [
        path for path in (CHECKOUT / "tests").rglob("test_*.py") if path.parent.name not in ("dev", "start", "backfill")
    ]
    owning = [path for path in files if re.search(r"Stack\.owned\(|\bown_stack\b", path.read_text())]
    assert [str(path) for path in owning if "mark.own_parts" not in path.read_text()] == []
