"""Tables whose snapshots a landing lets expire: few snapshots, no file too many or too few, the ledger as before."""

import pytest
from pyiceberg.table import Table

from airflow_lakestream.core import lineage
from airflow_lakestream.core.ledger import Ledger
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.commit import retention
from airflow_lakestream.iceberg.ledger_store import read_ledger
from airflow_lakestream.iceberg.upkeep.ledger_edit import restate_ledgers
from tests.support.broker import Producing
from tests.support.lake import GROUP, QUICK_RETRIES, TABLE, Lake, assert_files_are_whole, assert_landed_once, events
from tests.support.landings import Landings

pytestmark = pytest.mark.integration

KEEP = 3
# Beside few snapshots, few manifests: so that merging and expiry both happen within a test.
BOUNDED = {**QUICK_RETRIES, retention.KEEP: str(KEEP), "commit.manifest.min-count-to-merge": "3"}
EACH = 3


@pytest.fixture
def name(landings: Landings) -> str:
    """Give its topic."""
    return landings.topic


@pytest.fixture
def land_some(landings: Landings) -> Landings:
    """Give a function that lands so many snapshots more, few of which stay."""
    landings.each, landings.config = EACH, {"table_properties": BOUNDED}
    return landings


def ids(table: Table) -> set[int]:
    return {snapshot.snapshot_id for snapshot in table.snapshots()}


def test_many_landings_leave_few_snapshots_and_every_record_once(lake: Lake, name: str, land_some: Landings) -> None:
    landed = land_some(3 * KEEP)
    table = lake.table()
    assert len(table.snapshots()) <= KEEP + 1
    assert len(table.current_snapshot().manifests(table.io)) <= 3
    assert_landed_once(lake, name, {0: landed})
    assert_files_are_whole(table)
    assert lake.land(name).counts.read == 0


def test_a_new_table_is_bounded_unless_its_properties_say_otherwise(lake: Lake, name: str, land_some: Landings) -> None:
    land_some(1, table_properties=QUICK_RETRIES)
    properties = lake.table().properties
    assert retention.limit(properties) == 1000
    assert properties["commit.manifest-merge.enabled"] == "true"
    land_some(1, table="lake.all", table_properties={retention.KEEP: "all"})
    assert retention.limit(lake.table("lake.all").properties) is None


def test_a_table_without_the_property_keeps_all_until_its_owner_sets_it(
    lake: Lake, name: str, land_some: Landings
) -> None:
    land_some(1)
    with lake.table().transaction() as transaction:
        transaction.remove_properties(retention.KEEP)
    land_some(2 * KEEP)
    assert len(lake.snapshots()) == 1 + 2 * KEEP
    with lake.table().transaction() as transaction:
        transaction.set_properties({retention.KEEP: str(KEEP)})
    landed = land_some(1)
    assert len(lake.snapshots()) == KEEP
    assert_landed_once(lake, name, {0: landed})


@pytest.mark.parametrize("back", [1, KEEP - 1])
def test_rolled_back_to_a_snapshot_that_is_kept_the_ledger_is_rewound(
    lake: Lake, name: str, land_some: Landings, back: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nor in the journal, which reaches back further than the snapshots of this test.
    monkeypatch.setattr(lineage, "JOURNAL_LENGTH", 1)
    landed = land_some(2 * KEEP + 1)
    table = lake.table()
    target = lake.snapshots()[-1 - back]
    # The ledger has to be found without any older metadata file.
    with table.transaction() as transaction:
        transaction.set_properties({"write.metadata.previous-versions-max": "1"})
    lake.roll_back(target)
    assert lake.landed(name) == {0: [(0, landed - back * EACH)]}
    lake.land(name)
    assert_landed_once(lake, name, {0: landed})


def test_tags_and_branches_outlive_expiry_with_all_their_files(lake: Lake, name: str, land_some: Landings) -> None:
    tagged = land_some(2)
    table = lake.table()
    table.manage_snapshots().create_tag(lake.snapshots()[-1], "audited").commit()
    branched = land_some(2)
    lake.table().manage_snapshots().create_branch(lake.snapshots()[-1], "work").commit()
    lake.table().append(lake.table().scan(limit=1).to_arrow(), branch="work")
    own = lake.table().refs()["work"].snapshot_id
    landed = land_some(2 * KEEP + 1)
    table = lake.table()
    assert {table.refs()["audited"].snapshot_id, own} <= ids(table)
    assert table.scan(snapshot_id=table.refs()["audited"].snapshot_id).to_arrow().num_rows == tagged
    assert table.scan(snapshot_id=own).to_arrow().num_rows == branched + 1
    assert len(ids(table)) <= KEEP + 1 + 2
    assert_landed_once(lake, name, {0: landed})
    table.manage_snapshots().set_current_snapshot(ref_name="audited").commit()
    assert lake.landed(name) == {0: [(0, tagged)]}
    lake.land(name)
    assert_landed_once(lake, name, {0: landed})


def test_an_expired_compaction_takes_no_file_that_is_in_use(lake: Lake, name: str, land_some: Landings) -> None:
    land_some(3)
    lake.compact()
    landed = land_some(3 * KEEP)
    table = lake.table()
    assert table.inspect.snapshots()["operation"].to_pylist() == ["append"] * len(table.snapshots())
    assert_landed_once(lake, name, {0: landed})


def test_another_try_finds_what_its_run_landed_though_the_snapshot_expired(
    lake: Lake, name: str, produce: Producing, land_some: Landings
) -> None:
    produce(name, 0, events(0, 0, EACH))
    earlier = lake.land(name, "earlier", table_properties=BOUNDED)
    land_some(2 * KEEP)
    assert not set(earlier.snapshot_ids) & ids(lake.table())
    again = lake.land(name, "earlier")
    assert (again.snapshot_ids, again.counts) == (earlier.snapshot_ids, earlier.counts)


def test_two_groups_keep_their_ledgers(lake: Lake, name: str, land_some: Landings) -> None:
    landed = land_some(2)
    lake.land(name, consumer_group="other", allow_group_overlap=True)
    landed_by_one = land_some(2 * KEEP + 1, allow_group_overlap=True)
    assert lake.landed(name) == {0: [(0, landed_by_one)]}
    assert lake.landed(name, "other") == {0: [(0, landed)]}


def test_a_limit_that_is_no_number_is_refused_with_nothing_made(lake: Lake, name: str, produce: Producing) -> None:
    produce(name, 0, events(0, 0, EACH))
    with pytest.raises(InvalidArgument, match=r"lakestream\.snapshots\.keep is 'ten'"):
        lake.land(name, table_properties={retention.KEEP: "ten"})
    assert lake.has_nothing()


def test_a_limit_that_became_no_number_is_refused_before_anything_is_read(
    lake: Lake, name: str, land_some: Landings, produce: Producing
) -> None:
    land_some(1)
    with lake.table().transaction() as transaction:
        transaction.set_properties({retention.KEEP: "ten"})
    produce(name, 0, ["not what the table takes"])
    # A read would have failed on the record.
    with pytest.raises(InvalidArgument, match=r"lakestream\.snapshots\.keep is 'ten'"):
        lake.land(name)
    assert len(lake.snapshots()) == 1


@pytest.mark.parametrize("later", [0, 1])
def test_a_renamed_ledger_is_found_whichever_snapshots_are_gone(
    lake: Lake, name: str, land_some: Landings, later: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage, "JOURNAL_LENGTH", 1)
    before = land_some(2 * KEEP + 1)
    renamed = rename(lake, GROUP, "new")
    after = land_some(later, consumer_group="new")
    # The ledgers have to be found without any older metadata file.
    with lake.table().transaction() as transaction:
        transaction.set_properties({"write.metadata.previous-versions-max": "1"})
    back = [*reversed(lake.snapshots())]
    assert renamed in back

    for target in back:
        lake.table().manage_snapshots().set_current_snapshot(snapshot_id=target).commit()
        below = back.index(target) - back.index(renamed)
        old = {(0, before - (below - 1) * EACH)} if below > 0 else set()
        new = {(0, after if below < 0 else before)} if below <= 0 else set()
        for group, expected in ((GROUP, old), ("new", new)):
            assert set(lake.landed(name, group).get(0, [])) == expected, (below, group)

    lake.land(name)
    assert_landed_once(lake, name, {0: after})


def test_a_renamed_ledger_outlives_the_snapshot_of_its_renaming(lake: Lake, name: str, land_some: Landings) -> None:
    land_some(KEEP)
    renamed = rename(lake, GROUP, "new")
    landed = land_some(3 * KEEP, consumer_group="new")
    assert renamed not in lake.snapshots()
    assert_landed_once(lake, name, {0: landed}, "new")
    assert not lake.landed(name)
    assert lake.land(name, consumer_group="new").counts.read == 0


def rename(lake: Lake, group: str, to: str) -> int:
    """Do what `lakestream ledger rename` does."""
    return restate_ledgers(
        lake.catalog(), TABLE, lambda table: {group: Ledger(group), to: Ledger(to, read_ledger(table, group).topics)}
    )
