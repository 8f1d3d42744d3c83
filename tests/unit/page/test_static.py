"""The page's scripts, as far as no browser is needed: names that are imported, colours, and texts about paused DAGs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.airflow_home import CHECKOUT

STATIC = Path(CHECKOUT, "airflow_lakestream", "ui", "page", "static")
SCRIPTS = {file.name: file.read_text() for file in STATIC.glob("*.js")}
COMMON = SCRIPTS["common.js"]
IMPORT = re.compile(r'^import \{ ([^}]*) \} from "\./([\w.]+)";$', re.MULTILINE)
TEXTS = re.compile(r'"[^"\n]*"|/\*.*?\*/|//[^\n]*', re.DOTALL)


def exported(script: str) -> set[str]:
    lists = re.findall(r"^export const \{ ([^}]*) \}", SCRIPTS[script], re.MULTILINE)
    names = [name.split(":")[-1].strip() for one in lists for name in one.split(",")]
    return {*names, *re.findall(r"^export const (\w+)", SCRIPTS[script], re.MULTILINE)}


@pytest.mark.parametrize("script", sorted(SCRIPTS))
def test_each_name_is_imported_once_and_used(script: str) -> None:
    text = SCRIPTS[script]
    body = TEXTS.sub("", IMPORT.sub("", text))
    imported = [(name, source) for names, source in IMPORT.findall(text) for name in names.split(", ")]
    assert [one for one in imported if one[0] not in exported(one[1])] == []
    names = [name for name, _ in imported]
    assert len(names) == len(set(names))
    assert [name for name in names if not re.search(rf"\b{name}\b", body)] == []
    own = set(re.findall(r"\b(?:const|let) (\w+)", body))
    calls = set(re.findall(r"(?<![.\w])([A-Za-z]\w*)(?=\()|(?<=h\()([A-Z]\w*)", body))
    called = {name for pair in calls for name in pair if name}
    if script != "common.js":
        assert called & exported("common.js") - set(names) - own == set()


def test_ranges_that_differ_have_colours_that_differ() -> None:
    kinds = ("landed", "hole", "lost")
    fills = {kind: re.findall(rf'\.f-{kind}\{{fill:\$\{{color\("([\w-]+)"\)\}}', COMMON) for kind in kinds}
    keys = {kind: re.findall(rf'\.key\.{kind}\{{background:\$\{{color\("([\w-]+)"\)\}}', COMMON) for kind in kinds}
    assert fills == keys
    colours = [one for found in fills.values() for one in found]
    assert len(set(colours)) == len(kinds)
    # Airflow's warning is nearly as red as its error.
    assert not {"fg-warning", "fg-error"} <= set(colours)


def test_who_reads_that_a_run_waits_gets_to_the_paused_dag() -> None:
    saying = [name for name, text in SCRIPTS.items() if "It waits" in TEXTS.sub("", text)]
    assert saying == ["common.js"]
    assert "export const Waits = ({ dag }) => h(WithLink, { dag," in COMMON


def test_a_chart_says_which_landing_is_the_newest() -> None:
    assert "the newest on the right" in SCRIPTS["stream.js"]
