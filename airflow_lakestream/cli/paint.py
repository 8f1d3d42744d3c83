"""Text on a terminal: colours, and pictures painted over the last picture."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping

import typer

# To the upper left corner; new text is painted over the old, so that nothing flickers.
_HOME, _END_OF_LINE, _END_OF_SCREEN = "\033[H", "\033[K", "\033[J"


def painted(text: str, colours: Mapping[str, str]) -> str:
    """Return a text with coloured words, if stdout is a terminal and NO_COLOR is not set."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    words = re.compile(r"\b(" + "|".join(map(re.escape, colours)) + r")\b")
    return words.sub(lambda match: typer.style(match[0], fg=colours[match[0]], bold=True), text)


def paint_over(text: str) -> None:
    """Print a text in the place of the last text, or below if stdout is not a terminal."""
    if not sys.stdout.isatty():
        typer.echo(f"{text}\n")
        return
    lines = "".join(f"{line}{_END_OF_LINE}\n" for line in text.splitlines())
    typer.echo(f"{_HOME}{lines}{_END_OF_SCREEN}", nl=False)
