"""Real records, damaged at random, in every format: each is the oracle's row, or rejected with a reason by both.

`make fuzz` does it with as many as one likes.
"""

from __future__ import annotations

import random

import pytest

from tests.unit.decode.real_payloads import FORMATS, attack


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_records_are_what_the_oracle_reads_or_bad(name: str) -> None:
    counts = list(attack(name, random.Random(5), 1_500))
    assert sum(good for good, _ in counts) > 100
    assert sum(bad for _, bad in counts) > 100
