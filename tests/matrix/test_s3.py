"""The contract of stores in S3, with keys that end by themselves, and the bucket in the path."""

from __future__ import annotations

import pytest
from obstore.exceptions import BaseError

from airflow_lakestream.stores.folders import open_folder
from tests.matrix.every_store import *  # noqa: F403  # pytest collects the tests here, for this store
from tests.support.stores import StorePlace

STORE = "S3"


def test_temporary_keys_are_good_only_with_their_token(store: StorePlace) -> None:
    known = dict(store.properties)
    open_folder(store.checkpoint, known).write("a", b"one")
    for key in ("s3.session-token", "s3.secret-access-key"):
        with pytest.raises(BaseError) as caught:
            open_folder(store.checkpoint, known | {key: "canary-4711"}).read("a")
        assert "canary" not in str(caught.value)
