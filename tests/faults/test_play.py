"""Playing by hand: the commands of dev/FAULTS.md, and what a failing seed looks like."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from random import Random

import pytest

from tests.faults import play
from tests.support.fault_oracle import Violation
from tests.support.fault_play import Playground

CHECKOUT = Path(__file__).parents[2]
COMMANDS = re.findall(r"^    make (\S+)((?: [A-Z]+=\w+)*)", (CHECKOUT / "dev" / "FAULTS.md").read_text(), re.MULTILINE)


SOAKS = {(target, arguments) for target, arguments in COMMANDS if target.startswith("soak")}


def _dry(target: str, arguments: str) -> str:
    """What ``make`` would run."""
    return subprocess.run(
        ["make", "--dry-run", target, *arguments.split()], cwd=CHECKOUT, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize(("target", "arguments"), sorted(SOAKS))
def test_every_documented_soak_takes_what_it_is_told(target: str, arguments: str) -> None:
    shown = _dry(target, arguments)
    for name, value in (word.split("=") for word in arguments.split()):
        assert re.search(rf"-k .*\b{value}\b" if name == "ONLY" else rf"LAKESTREAM_{name}={value}\b", shown)


@pytest.mark.parametrize(("target", "arguments"), sorted({*COMMANDS} - SOAKS))
def test_every_documented_command_plays_what_it_says(target: str, arguments: str) -> None:
    told = dict(word.split("=") for word in arguments.split())
    words = re.search(r"-m tests\.faults\.play (.*)", _dry(target, arguments))
    assert words is not None
    parsed = play._parser().parse_args(words[1].split())
    assert parsed.n == int(told["N"])
    assert parsed.seed == int(told.get("SEED", 0))
    assert parsed.broker == (target == "faults-broker")


def test_a_failing_seed_is_told_with_its_story(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def violate(ground: Playground, random: Random) -> list[str]:
        raise Violation("a record is missing", ["run #0", "retention"])

    monkeypatch.setattr(Playground, "play", violate)
    assert play.main(["-n", "1", "--seed", "7"]) == 1
    assert capsys.readouterr().out.splitlines()[1:4] == ["  run #0", "  retention", "a record is missing"]


def test_a_seed_that_holds_tells_its_story_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert play.main(["-n", "1", "--seed", "7"]) == 0
    out = capsys.readouterr().out
    assert "run #0" in out
    assert "1 sequences on the model, seeds 7 to 7: 0 failed" in out
