"""The page advises in the runbook's own words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_lakestream.ui.page import states
from airflow_lakestream.ui.page.states import StateReason
from airflow_lakestream.watching.causes import StreamCause
from tests.support.airflow_home import CHECKOUT

ALL = [one for one in vars(states).values() if isinstance(one, states.RunbookAdvice)]


def plain(text: str) -> str:
    """Return a page's text without its marks."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    return " ".join(re.sub(r"[`*]", "", text).split())


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.title)
def test_each_step_stands_in_the_runbook(one: states.RunbookAdvice) -> None:
    page = Path(CHECKOUT, "docs", "runbook.md").read_text()
    section = page.partition(f"\n## {one.title}\n")[2].partition("\n## ")[0]
    for step in one.steps:
        assert plain(step).rstrip(".") in plain(section), step
    # As other pages of the documentation link to it.
    assert f"(#{one.anchor})" in page


STATIC = Path(CHECKOUT, "airflow_lakestream", "ui", "page", "static")
LINKS = [link for script in STATIC.glob("*.js") for link in re.findall(r'docs\("([^"]+)"\)', script.read_text())]


@pytest.mark.parametrize("link", LINKS)
def test_links_of_the_page_lead_to_headings(link: str) -> None:
    page, _, anchor = link.partition("#")
    headings = re.findall(r"^#+ (.*)$", Path(CHECKOUT, "docs", page).with_suffix(".md").read_text(), re.MULTILINE)
    assert anchor in {one.lower().replace(" ", "-") for one in headings}


def test_a_section_is_told_once() -> None:
    told = states.with_advice(
        [
            StateReason("a", "slow consumer"),
            StateReason("b", "late partition"),
            StateReason("c", "failed run"),
            StateReason("d"),
        ]
    )
    assert [one["advice"] and one["advice"]["title"] for one in told] == [
        "It lands, but too slowly",
        None,
        "Nothing lands",
        None,
    ]


def test_causes_are_those_of_the_sensors() -> None:
    assert set(states._OF_CAUSE) - {"failed run"} <= {cause.value for cause in StreamCause}


def test_after_a_failed_run_the_log_comes_first() -> None:
    [reason] = states.with_advice([StateReason("a", "failed run")])
    assert "log" in reason["advice"]["steps"][0]
