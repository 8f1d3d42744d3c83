"""The contract of stores in S3, with keys that end by themselves, and the bucket in the path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from obstore.exceptions import BaseError

from airflow_lakestream.core.names import REJECTED
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.stores.folders import open_folder
from dev.services.kafka import Kafka
from tests.matrix.every_store import *  # noqa: F403  # pytest collects the tests here, for this store
from tests.matrix.every_store import SCHEMA
from tests.support.broker import TopicOf
from tests.support.lake import events
from tests.support.stores import STORE_LAKES, StorePlace

STORE = "S3"


def test_temporary_keys_are_good_only_with_their_token(store: StorePlace) -> None:
    known = dict(store.properties)
    open_folder(store.checkpoint, known).write("a", b"one")
    for key in ("s3.session-token", "s3.secret-access-key"):
        with pytest.raises(BaseError) as caught:
            open_folder(store.checkpoint, known | {key: "canary-4711"}).read("a")
        assert "canary" not in str(caught.value)


# Of a place: parts of its name that are odd, and what has to hold for either format.
ODD = ["50%", "100%x", "a b+c&d=e", "ü漢😀'\"~$!", "[x]*(a)@:"]
ENCODED = ["50%25", "a%2Fb", "%20"]
CUT = ["a#b", "a?b"]


@pytest.mark.parametrize("kind", STORE_LAKES)
@pytest.mark.parametrize("odd", [*ODD, *ENCODED, *CUT])
def test_tables_lie_where_an_odd_place_says_or_are_refused(
    kind: str, odd: str, store: StorePlace, kafka: Kafka, topic_of: TopicOf, tmp_path: Path
) -> None:
    name, place = topic_of([*events(0, 0, 5), b"{"]), replace(store, location=f"{store.location}/{odd}")
    lake = STORE_LAKES[kind](place, tmp_path, kafka.client_config())
    lake.catalog()
    told = {"schema": SCHEMA, "partition_by": ["name"], "max_rejected": 1.0}
    if odd in CUT or (kind == "delta" and odd in ENCODED):
        with pytest.raises(InvalidArgument, match=r"^table: "):
            lake.land(name, **told)
        assert store.files() == []
        return
    assert lake.land(name, **told).counts.rejected == 1
    assert lake.land(name, **told, mode="ranges", ranges=[[0, 0, 5]], replace=True).rows == 5
    assert lake.offsets() == [(0, n) for n in range(5)]
    assert lake.scan(REJECTED).num_rows == 1
    # By the store's own names, which nobody decodes.
    assert {file.split("/")[0] for file in store.files()} == {odd}
