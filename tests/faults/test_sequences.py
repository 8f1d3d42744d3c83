"""Sequences of what people, schedulers and other tools do, with faults at every boundary: see dev/FAULTS.md."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from tests.support.fault_outside import ODD_PROPERTIES
from tests.support.fault_play import Playground, playground

SEQUENCES = int(os.environ.get("LAKESTREAM_SEQUENCES", "25"))


@pytest.fixture(scope="module")
def ground() -> Iterator[Playground]:
    with playground() as made:
        yield made


@settings(
    max_examples=SEQUENCES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    # A failing sequence is told whole and replays from its seed; shrinking would take minutes.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(seed=st.integers(0, 2**32 - 1))
def test_whatever_happens_the_table_equals_the_log_once_each(ground: Playground, seed: int) -> None:
    note(f"make faults SEED={seed} N=1")
    ground.play(Random(seed))


def test_a_seed_says_all(ground: Playground) -> None:
    for seed in range(3):
        assert ground.play(Random(seed)) == ground.play(Random(seed))


def test_sequences_meet_damage_other_partition_specs_and_odd_properties(ground: Playground) -> None:
    missing = {"^damage: ", r"^receipts for damage of \w: [^N]", "^the table is partitioned by"}
    missing |= {f"^table properties .*{re.escape(str(one)[1:-1])}" for one in ODD_PROPERTIES}
    for seed in range(200):
        story = "\n".join(ground.play(Random(seed)))
        missing = {one for one in missing if not re.search(one, story, re.MULTILINE)}
        if not missing:
            return
    raise AssertionError(f"no sequence has {missing}")
