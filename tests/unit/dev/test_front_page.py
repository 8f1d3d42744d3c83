"""The README says what is true of the package, names all of it, and leads to pages that are there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[3]
README = (CHECKOUT / "README.md").read_text()
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
LINK = re.compile(r"\]\(([^)#:]+)(?:#([\w-]+))?\)")


def section(title: str) -> str:
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_demo_comes_first() -> None:
    assert re.findall(r"^```bash\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)[0] == "make demo\n"
    said = section("See it work")
    assert re.search(r"\d+ minutes", said)
    assert re.search(r"\d GB", said)


def test_python_versions_are_stated_once_and_are_those_of_the_package() -> None:
    versions = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if one.startswith("Programming Language")]
    assert re.findall(r"Python (3[\d. or]+?) and Airflow", README) == [" or ".join(v for v in versions if "3." in v)]
    assert len(re.findall(r"Python 3\.", README)) == 1


def test_each_extra_is_named() -> None:
    named = set(re.findall(r"^\| `(\w+)` \|", section("Install"), re.MULTILINE))
    assert named == set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize(("title", "count"), [("What is there", 10), ("What is not there yet", 3)])
def test_what_is_there_and_what_is_not_are_whole_sentences(title: str, count: int) -> None:
    bullets = re.split(r"^- ", section(title), flags=re.MULTILINE)[1:]
    sentences = [" ".join(bullet.split()) for bullet in bullets]
    assert len(sentences) == count
    assert [one for one in sentences if not one.endswith(".") or ". " in one] == []
    if title == "What is there":
        assert [one for one in sentences if not LINK.search(one)] == []


def test_a_user_is_told_how_to_report_and_what_a_version_means() -> None:
    said = " ".join(section("Bugs, versions, security").split())
    for name in ("lakestream --version", "lakestream doctor --json", "docs/upgrade.md", "SECURITY.md"):
        assert name in said


def test_exactly_once_is_a_picture_and_two_bullets() -> None:
    said = section("How exactly-once works")
    assert len(re.findall(r"^!\[", said, re.MULTILINE)) == 1
    assert len(re.findall(r"^- ", said, re.MULTILINE)) == 2


@pytest.mark.parametrize("name", ["README.md", "SECURITY.md", "dev/CONTRIBUTING.md"])
def test_links_lead_to_files_and_headings(name: str) -> None:
    page = CHECKOUT / name
    for path, anchor in LINK.findall(page.read_text()):
        target = (page.parent / path).resolve()
        assert target.exists(), path
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", one).strip().lower().replace(" ", "-") for one in headings}
