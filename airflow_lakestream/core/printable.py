"""Texts for a screen or a log: single lines, numbers with their nouns, the nearest of names, and addresses."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def printable(text: str) -> str:
    """Return a text with invisible characters escaped, including line feeds and marks of direction."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def printable_lines(text: str) -> str:
    """Return a text of several lines with all other invisible characters escaped."""
    return "\n".join(map(printable, text.split("\n")))


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 commit`, `2 commits`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the nearest of the known words, or None if no word is near."""
    by_lower = {name.lower(): name for name in known}
    close = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.5)
    return by_lower[close[0]] if close else None


def with_port(host: str, port: int | None) -> str:
    """Return host and port; a port already behind the host stays, and without any the host is alone."""
    # An IPv6 address needs brackets before a port.
    if host.count(":") > 1 and "[" not in host and "@" not in host:
        host = f"[{host}]"
    return f"{host}:{port}" if port and ":" not in host.rpartition("]")[2] else host


def url_of(host: str, scheme: str | None, port: int | None) -> str:
    """Return the URL of a connection's fields, by default of http; the host may have scheme, port and path itself."""
    given_scheme, _, address = host.rpartition("://")
    name, slash, path = address.partition("/")
    return f"{given_scheme or scheme or 'http'}://{with_port(name, port)}{slash}{path}"
