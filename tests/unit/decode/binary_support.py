"""What the tests of binary formats share: damage to payloads, and values to compare."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.unit.decode.support import batch, shown

__all__ = ["batch", "damaged", "normal", "shown"]


@st.composite
def damaged(draw: st.DrawFn, payload: bytes) -> bytes:
    """Change a few bytes: values change, lengths and counts lie, the end comes early or late."""
    data = bytearray(payload)
    for _ in range(draw(st.integers(0, 3))):
        how = draw(st.sampled_from(["set", "cut", "insert", "remove"]))
        place = draw(st.integers(0, max(len(data) - 1, 0)))
        if how == "set" and data:
            data[place] = draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
        elif how == "cut":
            del data[place:]
        elif how == "insert":
            data[place:place] = draw(st.binary(min_size=1, max_size=3))
        elif data:
            del data[place]
    return bytes(data)


def normal(value: Any) -> str:
    """Return a value as text that tells all but the order of a map's keys."""

    def ordered(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: ordered(part[key]) for key in sorted(part)}
        return [ordered(item) for item in part] if isinstance(part, list) else part

    return shown(ordered(value))
