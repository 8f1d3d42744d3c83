"""Checks of values in Airflow's database before the page shows them.

Any task may write XComs and events. A value of another kind than expected raises `Odd`: the page then names the value,
and does not show its report. A shape is a function: it gets the name and the value of a field, and returns the checked
value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Shape = Callable[[str, Any], Any]

# Most levels of a value: more than this provider writes, and far fewer than JSON's writers can take.
_MOST_NESTED = 20
_MOST_SHOWN = 60  # most characters of a value in an error


class Odd(ValueError):
    """A value of another kind than expected."""

    def __init__(self, name: str, value: object, kind: str) -> None:
        shown = ascii(value)
        shown = shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}..."
        super().__init__(f"{name} is {shown}, not a {kind}")


def integer(name: str, value: Any) -> int | None:
    """Return a whole number of 64 bits, or None. Raises Odd."""
    result = number(name, value)
    if result is not None and result != int(result):
        raise Odd(name, value, "whole number")
    return None if result is None else int(result)


def count(name: str, value: Any) -> int:
    """Return a whole number; None is 0. Raises Odd."""
    return integer(name, value) or 0


def number(name: str, value: Any) -> int | float | None:
    """Return a number, or None. Raises Odd."""
    # NaN is refused, too: its comparison is false.
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63):
        return value
    raise Odd(name, value, "number of 64 bits")


def text(name: str, value: Any) -> str | None:
    """Return a text, or None. Raises Odd."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise Odd(name, value, "text")
    # Half of a surrogate pair can't be sent to a browser: it is escaped.
    return value.encode("utf-8", "backslashreplace").decode()


def identifier(name: str, value: Any) -> str | None:
    """Return an id (text or number) as text. Raises Odd."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else text(name, value)


def offsets(name: str, value: Any) -> tuple[int, int, int]:
    """Return a range of offsets: partition, first offset, offset after the last. Raises Odd."""
    if not isinstance(value, list | tuple) or len(value) != 3 or any(part is None for part in value):
        raise Odd(name, value, "range of offsets")
    partition, start, until = (count(name, part) for part in value)
    return partition, start, until


def listed(shape: Shape) -> Shape:
    """Return the shape of a list of values with a shape; None becomes an empty list."""

    def check(name: str, value: Any) -> list[Any]:
        if value is not None and not isinstance(value, list | tuple):
            raise Odd(name, value, "list")
        return [shape(name, item) for item in value or ()]

    return check


def keyed(shape: Shape) -> Shape:
    """Return the shape of a mapping with any keys, whose values have a shape; None becomes an empty mapping."""

    def check(name: str, value: Any) -> dict[str, Any]:
        if value is not None and not isinstance(value, Mapping):
            raise Odd(name, value, "mapping")
        return {str(text(name, key)): shape(f"{name}.{key}", item) for key, item in (value or {}).items()}

    return check


def mapped(**shapes: Shape) -> Shape:
    """Return the shape of a mapping with these keys, each with its shape; other keys are left out."""

    def check(name: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise Odd(name or "the report", value, "mapping")
        before = f"{name}." if name else ""
        return {key: shape(before + key, value.get(key)) for key, shape in shapes.items()}

    return check


def plain(name: str, value: Any, depth: int = 0) -> Any:
    """Return a value of any JSON kind. Raises Odd for a value that the page can't send.

    :param depth: the number of mappings and lists around the value.
    """
    if depth > _MOST_NESTED:
        raise Odd(name, "...", f"value of at most {_MOST_NESTED} levels")
    if isinstance(value, Mapping):
        before = f"{name}." if name else ""
        return {str(text(name, str(key))): plain(f"{before}{key}", item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(name, item, depth + 1) for item in value]
    if isinstance(value, str):
        return text(name, value)
    return value if isinstance(value, bool) else number(name, value)
