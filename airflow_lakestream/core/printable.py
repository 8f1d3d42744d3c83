"""Texts of others, such as a record's values, as one line of a screen or a log."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return a text whose every character shows: others are escaped, line feeds and marks of direction among them."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
