"""What others do to the table's history: expiry, rollback, foreign snapshots, and other groups on the same table."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataUtil

from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.plan import LandedByAnotherGroup
from airflow_lakestream.core.lineage import UndecidedLedger
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.faults import InterposedSink, SmallChunks
from tests.support.lake import TABLE, Lake, assert_landed_once, events, rows_of_events

pytestmark = pytest.mark.integration


def expire_in_pythons_manner(lake: Lake) -> None:
    """Expire all snapshots but the head: those that stay lose their parents."""
    table = lake.table()
    head = table.metadata.current_snapshot_id
    table.maintenance.expire_snapshots().by_ids([s for s in lake.snapshots() if s != head]).commit()


def expire_in_javas_manner(lake: Lake) -> None:
    """Expire all snapshots but the head: those that stay keep the id of a parent that is gone."""
    table = lake.table()
    head = table.current_snapshot()
    assert head is not None
    rewrite_metadata(lake, table, {"snapshots": [head.model_dump(by_alias=True)], "snapshot-log": []})


def forget_older_metadata(lake: Lake) -> None:
    """Let the table have no older metadata files, as after write.metadata.delete-after-commit.enabled."""
    table = lake.table()
    rewrite_metadata(lake, table, {"metadata-log": []})


def rewrite_metadata(lake: Lake, table: Table, changes: dict[str, object]) -> None:
    """Let the catalog have another metadata file for the table, as another engine's commit would."""
    log = [
        *(entry.model_dump(by_alias=True) for entry in table.metadata.metadata_log),
        {"metadata-file": table.metadata_location, "timestamp-ms": table.metadata.last_updated_ms},
    ]
    data = {**table.metadata.model_dump(by_alias=True, mode="json"), "metadata-log": log, **changes}
    number = len(list(lake.folder.glob("warehouse/lake/events/metadata/*.metadata.json")))
    location = f"{table.location()}/metadata/{number:05d}-edited.metadata.json"
    ToOutputFile.table_metadata(TableMetadataUtil.parse_obj(data), table.io.new_output(location))
    catalog: Catalog = lake.catalog()
    catalog.drop_table(TABLE)
    catalog.register_table(TABLE, location)


Expiry = Callable[[Lake], None]
EXPIRIES = pytest.mark.parametrize(
    "expire", [expire_in_pythons_manner, expire_in_javas_manner], ids=["parents erased", "parents dangling"]
)


@pytest.fixture
def three_landings(lake: Lake, topic: Topics, produce: Producing) -> str:
    """Give a topic of which 30 records of each of two partitions were landed in three runs."""
    name = topic(2)
    for first in (0, 10, 20):
        for partition in (0, 1):
            produce(name, partition, events(partition, first, 10))
        lake.land(name)
    return name


def assert_goes_on(lake: Lake, name: str, produce: Producing) -> None:
    """Assert that a run lands nothing, and the next one exactly what has come."""
    assert lake.land(name).to_dict()["ranges"] == []
    for partition in (0, 1):
        produce(name, partition, events(partition, 30, 5))
    assert lake.land(name).to_dict()["ranges"] == [[0, 30, 35], [1, 30, 35]]
    assert_landed_once(lake, name, {0: 35, 1: 35})


@EXPIRIES
@pytest.mark.parametrize("forget", [False, True], ids=["metadata log", "no metadata log"])
def test_all_snapshots_expired_but_the_last(
    lake: Lake, three_landings: str, produce: Producing, expire: Expiry, forget: bool
) -> None:
    expire(lake)
    if forget:
        forget_older_metadata(lake)
    assert len(lake.snapshots()) == 1
    assert_goes_on(lake, three_landings, produce)


@EXPIRIES
@pytest.mark.parametrize("change", [Lake.append_foreign, Lake.compact])
def test_all_snapshots_expired_but_a_foreign_one(
    lake: Lake, three_landings: str, produce: Producing, expire: Expiry, change: Callable[[Lake], None]
) -> None:
    change(lake)
    expire(lake)
    assert len(lake.snapshots()) == 1
    assert_goes_on(lake, three_landings, produce)


def test_a_dangling_parent_is_enough_below_a_foreign_snapshot(
    lake: Lake, three_landings: str, produce: Producing
) -> None:
    lake.append_foreign()
    expire_in_javas_manner(lake)
    forget_older_metadata(lake)
    assert_goes_on(lake, three_landings, produce)


def test_a_history_that_no_longer_tells_is_an_error_and_not_a_fresh_start(lake: Lake, three_landings: str) -> None:
    lake.append_foreign()
    lake.append_foreign()
    expire_in_javas_manner(lake)
    forget_older_metadata(lake)
    before = lake.snapshots()
    with pytest.raises(UndecidedLedger, match="Roll the table back"):
        lake.land(three_landings)
    assert lake.snapshots() == before


@pytest.mark.parametrize("back_to", [0, 1])
@pytest.mark.parametrize(
    ("lake", "expired"),
    [("iceberg", False), ("iceberg", True), ("delta", False)],
    ids=["iceberg-snapshots kept", "iceberg-then all others expired", "delta"],
    indirect=["lake"],
)
def test_a_table_rolled_back_lands_the_rolled_back_ranges_again(
    lake: Lake, three_landings: str, produce: Producing, back_to: int, expired: bool
) -> None:
    kept = 10 * (back_to + 1)
    lake.roll_back(lake.snapshots()[back_to])
    assert lake.rows(three_landings).num_rows == 2 * kept
    if expired:
        expire_in_pythons_manner(lake)

    report = lake.land(three_landings)

    assert report.to_dict()["ranges"] == [[0, kept, 30], [1, kept, 30]]
    assert_landed_once(lake, three_landings, {0: 30, 1: 30})
    assert_goes_on(lake, three_landings, produce)


def test_rolled_back_landed_again_and_set_forward_to_what_was_there_before(
    lake: Lake, three_landings: str, produce: Producing
) -> None:
    snapshots = lake.snapshots()
    lake.roll_back(snapshots[0])
    lake.land(three_landings)
    lake.table().manage_snapshots().set_current_snapshot(snapshots[1]).commit()

    assert lake.landed(three_landings) == {0: [(0, 20)], 1: [(0, 20)]}
    assert lake.land(three_landings).to_dict()["ranges"] == [[0, 20, 30], [1, 20, 30]]
    assert_goes_on(lake, three_landings, produce)


@pytest.mark.parametrize("change", [Lake.append_foreign, Lake.compact])
def test_a_rollback_past_a_foreign_snapshot(
    lake: Lake, three_landings: str, produce: Producing, change: Callable[[Lake], None]
) -> None:
    change(lake)
    lake.roll_back(lake.snapshots()[1])
    assert lake.land(three_landings).to_dict()["ranges"] == [[0, 20, 30], [1, 20, 30]]
    assert_goes_on(lake, three_landings, produce)


def test_the_retry_of_a_run_whose_landing_was_rolled_back_lands_it_again(
    lake: Lake, topic_of: TopicOf, produce: Producing
) -> None:
    name = topic_of(events(0, 0, 10))
    lake.land(name)
    produce(name, 0, events(0, 10, 10))
    first = lake.land(name, "r")
    lake.roll_back(lake.snapshots()[0])

    again = lake.land(name, "r")

    assert again.to_dict()["ranges"] == first.to_dict()["ranges"] == [[0, 10, 20]]
    assert again.snapshot_ids != first.snapshot_ids
    assert_landed_once(lake, name, {0: 20})


@EXPIRIES
@pytest.mark.parametrize("forget", [False, True], ids=["metadata log", "no metadata log"])
def test_each_landing_keeps_the_other_groups_ledger_within_reach(
    lake: Lake, topic: Topics, produce: Producing, expire: Expiry, forget: bool
) -> None:
    quiet, busy = topic(1), topic(1)
    produce(quiet, 0, events(0, 0, 10))
    lake.land(quiet, consumer_group="quiet")
    produce(busy, 0, events(0, 0, 40))
    job = lake.job(busy, consumer_group="busy", checkpoint_interval=0)
    # More landings than a ledger's journal holds.
    assert len(land(replace(job, reader=SmallChunks(job.reader, 2))).snapshot_ids) == 20
    expire(lake)
    if forget:
        forget_older_metadata(lake)

    assert lake.land(quiet, consumer_group="quiet").counts.read == 0
    produce(quiet, 0, events(0, 10, 10))
    assert lake.land(quiet, consumer_group="quiet").to_dict()["ranges"] == [[0, 10, 20]]
    assert lake.land(busy, consumer_group="busy").counts.read == 0
    assert_landed_once(lake, quiet, {0: 20}, "quiet")
    assert_landed_once(lake, busy, {0: 40}, "busy")


def test_a_second_group_on_the_same_topic_and_table_is_refused_unless_told(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of(events(0, 0, 10), events(1, 0, 10))
    lake.land(name, consumer_group="first")
    before = lake.snapshots()

    with pytest.raises(LandedByAnotherGroup, match="'first' has already landed") as caught:
        lake.land(name, consumer_group="second")
    assert caught.value.other == "first"
    assert caught.value.ranges.width == 20
    assert lake.snapshots() == before

    lake.land(name, consumer_group="second", allow_group_overlap=True)
    once = rows_of_events({0: 10, 1: 10})
    assert lake.rows(name).num_rows == 2 * once.num_rows
    assert lake.landed(name, "first") == lake.landed(name, "second") == {0: [(0, 10)], 1: [(0, 10)]}


@pytest.mark.parametrize("allowed", [False, True], ids=["refused", "allowed"])
def test_two_groups_at_once_on_the_same_topic(lake: Lake, topic: Topics, produce: Producing, allowed: bool) -> None:
    other, name = topic(1), topic(1)
    produce(other, 0, events(0, 0, 1))
    lake.land(other)
    produce(name, 0, events(0, 0, 10))
    barrier = threading.Barrier(2, timeout=30)

    def run(group: str) -> str:
        job = lake.job(name, consumer_group=group, allow_group_overlap=allowed)
        try:
            land(replace(job, sink=InterposedSink(job.sink, barrier.wait)))
        except LandedByAnotherGroup:
            return "refused"
        return "landed"

    with ThreadPoolExecutor(2) as pool:
        outcomes = sorted(pool.map(run, ["first", "second"]))

    assert outcomes == (["landed", "landed"] if allowed else ["landed", "refused"])
    assert lake.rows(name).num_rows == (20 if allowed else 10)
