"""Real records, damaged at random, in every format: each is the oracle's row, or rejected with a reason by both.

`make fuzz` does it with as many as one likes.
"""

from __future__ import annotations

import random

import pytest

from tests.unit.decode.real_payloads import FORMATS, FRAME, attack, compare


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_records_are_what_the_oracle_reads_or_bad(name: str) -> None:
    counts = list(attack(name, random.Random(5), 1_500))
    assert sum(good for good, _ in counts) > 100
    assert sum(bad for _, bad in counts) > 100


@pytest.mark.parametrize(
    "numbers",
    [
        *(b"\0", b"\x80\0", b"\2\0", b"\x82\0\0", b"\2\x80\0", b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\0"),
        # Messages within the first one, which have none of its columns.
        *(b"\4\0\0", b"\4\0\2"),
        *(b"\4\0\4", b"\6\0\0\0", b"\2\2", b"\2\1", b"\1", b"\xff\xff", b"\x80", b"\2", b"\6\0", b""),
    ],
    ids=lambda numbers: numbers.hex() or "none",
)
def test_the_numbers_of_a_protobuf_message_are_what_the_oracle_reads(numbers: bytes) -> None:
    fuzzed = FORMATS["protobuf"]()
    body = fuzzed.payloads[0][len(FRAME) + 1 :]
    for payload in (body, b"\x08\x05", b""):
        compare(fuzzed, [FRAME + numbers + payload])
