from pathlib import Path

import pytest

from dev import browser
from dev.errors import NoBrowser


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the only folder of PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(browser.VARIABLE, raising=False)
    return tmp_path


def program(folder: Path, name: str, script: str = "") -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_the_browser_of_the_machine_is_found(programs: Path) -> None:
    chrome = program(programs, "google-chrome")
    assert browser.have_chromium() == chrome


def test_one_that_is_named_comes_first(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(programs, "chromium")
    own = program(programs, "own")
    monkeypatch.setenv(browser.VARIABLE, own)
    assert browser.have_chromium() == own


def test_without_one_it_is_said_how_to_get_one(programs: Path) -> None:
    with pytest.raises(NoBrowser, match=r"apt install chromium.*LAKESTREAM_CHROMIUM"):
        browser.have_chromium()


def test_root_installs_the_one_of_debian(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    installed = programs / "chromium"
    program(
        programs, "apt-get", f'case "$*" in *install*chromium*) echo > {installed}; /bin/chmod +x {installed};; esac'
    )
    assert browser.have_chromium() == str(installed)


def test_an_installation_that_fails_says_why(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    program(programs, "apt-get", "echo no network >&2; exit 100")
    with pytest.raises(NoBrowser, match="no Chromium here, and apt-get update fails: no network"):
        browser.have_chromium()
