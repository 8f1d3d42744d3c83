"""Why a value does not fit its column, told with its place in the document and without dumping the document."""

from __future__ import annotations

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


def shorten(text: str, limit: int = _EXCERPT) -> str:
    """Return `text` cut to `limit` characters, fit for a log line."""
    cut = text[:limit] + ("..." if len(text) > limit else "")
    # Lone surrogates can't be written to any log or table.
    return cut.encode("utf-8", "backslashreplace").decode()


def quoted(text: str) -> str:
    """Return a short excerpt of a string value, quoted."""
    return repr(shorten(text))
