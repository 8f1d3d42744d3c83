"""What may not go to Arrow's reader as it is: bytes at which it would cut or end its input, wherever they stand."""

from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_lakestream.decode.json.bulk import _LOOK, _as_lines

FRAME = len(b'{"a":""}')


def document(size: int, at: int, byte: bytes = b"x") -> bytes:
    """Return a document of so many bytes, with such a byte in one place of its text."""
    text = b"x" * at + byte + b"x" * (size - FRAME - at - 1)
    return b'{"a":"' + text + b'"}'


@pytest.mark.parametrize("byte", [b"\n", b"\0"])
@pytest.mark.parametrize("at", [0, _LOOK - 8, _LOOK - 7, _LOOK - 6, _LOOK - 5, 2 * _LOOK + 99 - FRAME])
def test_a_byte_that_ends_a_line_is_seen_wherever_it_stands(at: int, byte: bytes) -> None:
    size = 2 * _LOOK + 100
    assert _as_lines(pa.array([document(size, at)])) is not None
    assert _as_lines(pa.array([document(size, at, byte)])) is None
    assert _as_lines(pa.array([b"{}", document(size, at, byte), b"{}"])) is None


def test_what_stands_outside_of_a_slice_is_not_looked_at() -> None:
    values = pa.array([document(100, 5, b"\n"), document(100, 5), document(_LOOK, 5), document(100, 5, b"\0")])
    lines = _as_lines(values[1:3])
    assert lines is not None
    assert lines.to_pybytes() == document(100, 5) + b"\n" + document(_LOOK, 5)
