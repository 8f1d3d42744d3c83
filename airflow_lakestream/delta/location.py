"""How the place of a Delta table is written: an absolute path, or a URI."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from airflow_lakestream.exceptions import InvalidArgument


def location(table: str) -> str:
    """Return a local path as a plain one, and a URI as it is, without a slash at its end."""
    parts = urlsplit(table)
    if parts.scheme == "file":
        return unquote(parts.path).rstrip("/")
    return table.rstrip("/")


def check_location(table: str, argument: str = "table") -> str:
    """Return where a Delta table lies, if it is an absolute path or a URI. Raises InvalidArgument."""
    parts = urlsplit(table or "")
    if "{" in (table or "") or "}" in (table or ""):
        raise InvalidArgument(
            argument, f"{table!r}: a Delta table's place has no placeholders.", "Give each topic a task of its own."
        )
    if (parts.scheme and not parts.path.strip("/")) or (not parts.scheme and not (table or "").startswith("/")):
        raise InvalidArgument(
            argument,
            f'{table!r} is no place of a Delta table (table_format="delta").',
            'Write a URI or an absolute path: "s3://bucket/lake/clicks", "/lake/clicks".',
        )
    if parts.query or parts.fragment or parts.password:
        raise InvalidArgument(
            argument, "has a query, a fragment or a password in it.", "Keys belong in the connection."
        )
    return table
