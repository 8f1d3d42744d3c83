"""Values that events leave out, while events come again that the mirror has had: the last value counts all the same."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from airflow_lakestream.cdc.columns import UNAVAILABLE
from airflow_lakestream.cdc.merge.values import ValueMissing
from airflow_lakestream.cdc.stops import MirrorStopped
from airflow_lakestream.core.policies import MergeMode
from tests.support.mirroring import Event, HandDeltaMirror, HandMirror, come_to, deleted_by
from tests.unit.cdc.strategies import cut, histories, with_copies

FORMATS = {"iceberg": HandMirror, "delta": HandDeltaMirror}


FEW = settings.get_profile(settings.get_current_profile_name()).max_examples // 2


@pytest.mark.long
@settings(max_examples=FEW, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data(), st.booleans(), st.sampled_from(sorted(FORMATS)), st.sampled_from([0, 1, 3]))
def test_whichever_events_come_again_a_value_left_out_is_the_last_one(
    data: st.DataObject, soft_delete: bool, lake: str, executors: int
) -> None:
    events = data.draw(histories(leaves_out=True))
    with tempfile.TemporaryDirectory() as folder:
        mirror = FORMATS[lake](Path(folder), soft_delete=soft_delete, executors=executors)
        # Executors tell transactions, of which a copy in another partition can't be told from a row of its own.
        for part in cut(data.draw, with_copies(data.draw, events, 1 if executors else 2)):
            try:
                mirror.land(part)
            except (MirrorStopped, ValueMissing):
                # Copies in another partition, or behind a truncation, may have no order: the mirror stops, and says so.
                assert not executors or any(event.op == "t" for event in events)
                return
        assert mirror.rows() == come_to(events)
        if soft_delete:
            assert mirror.deleted() == deleted_by(events)


CREATED, CHANGED = Event("c", 1, ("a", "b1"), 10, 10, offset=0), Event("u", 1, ("b", "b2"), 20, 20, offset=1)
KEPT = Event("u", 1, ("c", UNAVAILABLE), 30, 30, offset=3)
MOVED = [Event("d", 1, None, 30, 30, offset=3), Event("c", 2, ("c", UNAVAILABLE), 30, 30, offset=4)]
LATER = Event("u", 2, ("d", UNAVAILABLE), 40, 40, offset=5)


@pytest.mark.parametrize(("lake", "executors"), [("iceberg", 0), ("delta", 2)])
@pytest.mark.parametrize(("soft_delete", "partition"), [(False, 0), (True, 1)])
@pytest.mark.parametrize(
    "batches",
    [
        [[CREATED, CHANGED], ["again", KEPT]],
        [[CREATED, CHANGED], [KEPT, "again"]],
        [[CREATED, CHANGED], ["again", *MOVED]],
        [[CREATED, CHANGED], ["again", *MOVED, LATER]],
        [[CREATED, CHANGED], ["again", *MOVED], [LATER]],
        [[CREATED, CHANGED], ["again", MOVED[0]], [MOVED[1]]],
        [[CREATED, CHANGED], ["again", MOVED[0]], [MOVED[1], LATER]],
        [[CREATED, CHANGED, MOVED[0]], ["again", MOVED[1], LATER]],
        [[CREATED, CHANGED, *MOVED], ["again", LATER]],
        [[CREATED, CHANGED, *MOVED], ["again", *(replace(one, offset=one.offset + 20) for one in MOVED), LATER]],
    ],
)
def test_a_value_left_out_is_not_taken_from_an_event_that_the_table_has_overtaken(
    tmp_path: Path, lake: str, soft_delete: bool, executors: int, partition: int, batches: list[list[Event | str]]
) -> None:
    mirror = FORMATS[lake](tmp_path, soft_delete=soft_delete, modes=[MergeMode.AUTO], executors=executors)
    again = replace(CREATED, partition=partition, offset=2)
    for batch in batches:
        mirror.land([again if isinstance(one, str) else one for one in batch])
    assert [big for _, big in mirror.rows().values()] == ["b2"]
