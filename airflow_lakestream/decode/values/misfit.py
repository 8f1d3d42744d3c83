"""Why a value does not fit its column, told with its place in the document and without dumping the document."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from airflow_lakestream.exceptions import LakestreamError, Terminal

_EXCERPT = 80
_PATH = 160


class Misfit(ValueError):
    """A value that a column can't hold without loss; `path` grows while the error passes up through the document."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path: list[str] = []

    def inside(self, step: str) -> Misfit:
        """Return this misfit as seen from one level further out."""
        self.path.append(step)
        return self

    @property
    def reason(self) -> str:
        """The field's path and what is wrong there, of bounded length."""
        if not self.path:
            return self.problem
        path = "".join(reversed(self.path)).removeprefix(".")
        return f"{shorten(path, _PATH)}: {self.problem}"


class SchemaRefused(LakestreamError, Terminal, ValueError):
    """A writer's schema that is not one, or that no table can be made for."""


def shorten(text: str, limit: int = _EXCERPT) -> str:
    """Return `text` cut to `limit` characters, fit for a log line."""
    cut = text[:limit] + ("..." if len(text) > limit else "")
    # Lone surrogates can't be written to any log or table.
    return cut.encode("utf-8", "backslashreplace").decode()


def near_name(name: str, others: Iterable[str]) -> str | None:
    """Return a name among others that differs in case only; None without any."""
    return next((other for other in others if other.lower() == name.lower()), None)


def no_such_field(name: str, written: Collection[str], whose: str) -> str:
    """Say that a required column is not among the fields that were written, and which name comes close."""
    near = near_name(name, written)
    has = "" if near is None else f"; it has {quoted(near)}, and names match exactly"
    return f"the column is required, and the writer's {whose} has no such field{has}"


def quoted(text: str) -> str:
    """Return a short excerpt of a string value, quoted."""
    return repr(shorten(text))
