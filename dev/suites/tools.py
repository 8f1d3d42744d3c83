"""Programs of the machine that suites need: checked before anything is installed, by any Python 3.11.

`python3 -m dev.suites.tools units spark` names what is missing, and the command that gets it.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence

from dev.apt import has_apt
from dev.browser import find_chromium
from dev.errors import DevError, UnknownSuite
from dev.java import find_jdk
from dev.suites.table import SUITES, Suite

# Stands for each suite, of which those run that a change reaches.
REACHED = "reached"


def known(names: Sequence[str]) -> list[Suite]:
    """Return the suites of these names, in the table's order; "all" and "reached" name each that is not run by hand.

    :raises UnknownSuite: a name is not in the table.
    """
    by_name = {suite.name: suite for suite in SUITES}
    every = {"all", REACHED}
    if unknown := set(names) - every - by_name.keys():
        raise UnknownSuite(f"No suite {', '.join(sorted(unknown))}: there are {', '.join(by_name)}, all and {REACHED}.")
    return [suite for suite in SUITES if suite.name in names or (every & {*names} and not suite.by_hand)]


def missing(suites: Sequence[Suite]) -> Iterator[str]:
    """Yield a line for each program that the machine lacks: the suites that need it, and how to get it."""
    for tool, problem in _TOOLS.items():
        needing = [suite.name for suite in suites if tool in suite.tools]
        if needing and (found := problem()):
            yield f"{found} (for {', '.join(needing)})"


def _on_path(program: str, how: str) -> Callable[[], str]:
    return lambda: "" if shutil.which(program) else f"No {program} on PATH: {how}"


def _found(find: Callable[[], object]) -> Callable[[], str]:
    def problem() -> str:
        try:
            find()
        except DevError as error:
            return str(error)
        return ""

    return problem


def _chromium() -> None:
    # The tests of the page install Debian's where they can.
    if not has_apt(as_root=True):
        find_chromium()


_GO = "apt install golang-go (Debian; from 1.21 on Go fetches the version that it needs), or brew install go"
_TOOLS: dict[str, Callable[[], str]] = {
    "java": _found(find_jdk),
    "go": _on_path("go", _GO),
    "node": _on_path("npm", "apt install nodejs npm (Debian and Ubuntu), or brew install node"),
    "git": _on_path("git", "apt install git (Debian and Ubuntu), or brew install git"),
    "chromium": _found(_chromium),
}


def main() -> int:
    """Print what is missing for the suites that the arguments name."""
    try:
        lines = list(missing(known(sys.argv[1:])))
    except DevError as error:
        lines = [str(error)]
    print(*lines, sep="\n", end="\n" if lines else "", file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
