"""What holds in each catalog: the contract of tables, and landings by racing processes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from airflow_lakestream.core.checks import ChecksFailed
from airflow_lakestream.iceberg.upkeep import expiry
from dev.services.kafka import Kafka
from tests.contract.test_landings import *  # noqa: F403  # pytest collects the tests here, for this catalog
from tests.contract.test_races import *  # noqa: F403  # pytest collects these here, too
from tests.contract.test_rejects import *  # noqa: F403  # pytest collects these here, too
from tests.contract.test_sharing import *  # noqa: F403  # pytest collects these here, too
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.catalogs import CatalogLake, land_side_by_side
from tests.support.lake import TABLE, assert_files_are_whole, assert_landed_once, events
from tests.support.table_formats import Place

pytestmark = pytest.mark.integration

LANDINGS, EACH = 5, 5


@pytest.fixture
def lake(place: Place, kafka: Kafka) -> CatalogLake:
    """Give an empty lake in the catalog."""
    return CatalogLake(place, kafka.client_config())


@pytest.mark.parametrize("same", [False, True], ids=["other ranges", "the same ranges"])
def test_two_processes_that_land_at_once_each_keep_what_they_land(
    lake: CatalogLake, topic: Topics, produce: Producing, same: bool
) -> None:
    name, count = topic(1), (LANDINGS if same else 2 * LANDINGS) * EACH
    produce(name, 0, events(0, 0, count))
    pieces = [(first, first + EACH) for first in range(0, count, EACH)]
    shares: Sequence[Sequence[tuple[int, int]]] = [pieces, pieces] if same else [pieces[::2], pieces[1::2]]
    # The first landing of either creates the table and its namespace, if the other's has not.
    said = land_side_by_side(lake, name, shares)

    assert said == ["landed"] * len(said)
    assert_landed_once(lake, name, {0: count})
    assert_files_are_whole(lake.table())


def test_a_table_that_is_renamed_goes_on_where_it_was(lake: CatalogLake, topic_of: TopicOf, produce: Producing) -> None:
    name = topic_of(events(0, 0, 10))
    lake.land(name, table="lake.before")
    lake.catalog().rename_table("lake.before", TABLE)
    produce(name, 0, events(0, 10, 10))

    assert lake.land(name).rows == 10

    assert_landed_once(lake, name, {0: 20})


def test_history_that_expires_takes_nothing_of_the_ledger(
    lake: CatalogLake, topic_of: TopicOf, produce: Producing
) -> None:
    name = topic_of(events(0, 0, 30))
    for first in (0, 10):
        lake.land(name, mode="ranges", ranges=[[0, first, first + 10]])
    assert expiry.prepare(lake.catalog(), TABLE, expiry.ExpiryRule(older_than=0))
    table = lake.table()
    gone = [one.snapshot_id for one in table.snapshots() if one != table.current_snapshot()]
    table.maintenance.expire_snapshots().by_ids(gone).commit()

    assert lake.land(name).rows == 10

    assert_landed_once(lake, name, {0: 30})


def test_rows_that_do_not_pass_their_checks_never_show(lake: CatalogLake, topic_of: TopicOf) -> None:
    name = topic_of(events(0, 0, 10))
    with pytest.raises(ChecksFailed, match=r"row_count.*10"):
        lake.land(name, checks={"row_count": {"max": 9}})
    assert not lake.records()

    assert lake.land(name, checks={"row_count": {"max": 10}, "unique": ["id"]}).rows == 10

    assert_landed_once(lake, name, {0: 10})
    assert list(lake.table().refs()) == ["main"]
