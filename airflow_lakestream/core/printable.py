"""Foreign texts, like a record's values, as a single line of a screen or a log."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return a text with invisible characters escaped, including line feeds and marks of direction."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
