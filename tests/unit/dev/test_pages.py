"""The documentation's pages: nothing of a command is out of sight, and each page is in the site."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[3]
DOCS = CHECKOUT / "docs"
PAGES = [CHECKOUT / "README.md", *sorted(DOCS.rglob("*.md"))]
# What a code block of the site shows in a window of 1,400 pixels, and a terminal without wrapping.
WIDEST = 92
COMMAND = re.compile(r"\s*(\$ |(lakestream|export|airflow|pip|python[\d.]*|spark-submit|source|make) |\w+=\$\()")


def commands(text: str) -> list[str]:
    """Return the lines of code blocks that are commands, or go on with one."""
    found: list[str] = []
    fence, goes_on = "", False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fence = "" if fence else line.strip()
            continue
        is_code = fence == "```bash" or (not fence and line.startswith("    "))
        if is_code and (goes_on or COMMAND.match(line)):
            found.append(line if fence else line.removeprefix("    "))
        goes_on = is_code and line.endswith("\\")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_commands_are_not_longer_than_a_code_block_is_wide(page: Path) -> None:
    assert [line for line in commands(page.read_text()) if len(line) > WIDEST] == []


def test_the_site_wraps_what_else_is_long() -> None:
    assert "pre-wrap" in (DOCS / "site.css").read_text()
    assert "- site.css" in (CHECKOUT / "dev" / "mkdocs.yml").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_nobody_waits_for_an_installation_without_a_line(page: Path) -> None:
    assert re.findall(r"pip install .*(?:--quiet|-q) .*", page.read_text()) == []


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_that_names_a_bundled_dag_leads_to_its_file(page: Path) -> None:
    text = page.read_text()
    names = {file.stem for file in (CHECKOUT / "dags").glob("*.py")}
    named = names & set(re.findall(r"`(?:dags/)?(\w+)(?:\.py)?`", text))
    # The demo has all of them, and the walks write files of their own by these names.
    if page.name not in ("deploy.md", "demo.md"):
        assert not named or "deploy.md#the-bundled-dags" in text, named
    # An installation has no such folder.
    assert re.findall(r"`dags/[\w/.-]+`", text) == []


def test_each_page_is_in_the_navigation() -> None:
    navigation = (CHECKOUT / "dev" / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"[\w/-]+\.md", navigation)
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
