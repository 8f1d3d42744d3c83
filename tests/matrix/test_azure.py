"""The contract of stores in Azure's Blob Storage, by Azurite and PyArrow's client."""

from __future__ import annotations

from pathlib import Path

import pytest
from obstore.exceptions import BaseError

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.stores.folders import open_folder
from dev.services.kafka import Kafka
from tests.matrix.every_store import *  # noqa: F403  # pytest collects the tests here, for this store
from tests.support.broker import TopicOf
from tests.support.lake import events
from tests.support.stores import StoreLake, StorePlace, land_in_one_process

STORE = "Azure"


def test_a_process_that_has_used_the_client_forks_no_more(
    store: StorePlace, kafka: Kafka, tmp_path: Path, topic_of: TopicOf
) -> None:
    lake = StoreLake(store, tmp_path, kafka.client_config())
    name = topic_of(events(0, 0, 60))
    # The first creates the table, the second finds it.
    told = land_in_one_process(lake, name, [(0, 20), (20, 40), (40, 60)])
    assert told == [(True, 20), (False, 20), (False, 20)]


def test_a_wrong_key_is_refused_and_told_nowhere(store: StorePlace) -> None:
    wrong = {**store.properties, "adls.account-key": "Y2FuYXJ5LTQ3MTE="}
    with pytest.raises(BaseError) as caught:
        open_folder(store.checkpoint, wrong).read("a")
    assert "Y2FuYXJ5" not in str(caught.value)


def test_a_warehouse_that_names_its_account_is_refused_before_anything_is_made(
    store: StorePlace, kafka: Kafka, tmp_path: Path, topic_of: TopicOf
) -> None:
    named = store.location.replace("abfss://lake", "abfss://lake@lakestream.dfs.core.windows.net")
    lake = StoreLake(StorePlace(named, store.properties, {}), tmp_path, kafka.client_config())
    with pytest.raises(InvalidArgument, match=r"names its account.*abfss://container/path"):
        lake.land(topic_of(events(0, 0, 5)))
    assert not lake.catalog().list_namespaces()
