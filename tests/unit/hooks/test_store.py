"""The connection that opens a checkpoint's object store: of a catalog, or of Delta tables."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.hooks.store import store_properties


def connect(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_PLACE", json.dumps(fields))


def test_a_catalogs_properties_and_the_storage_options_of_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    assert store_properties(None) is None
    extra = {"type": "rest", "s3.access-key-id": "k"}
    connect(monkeypatch, conn_type="iceberg", host="http://rest", extra=extra)
    assert store_properties("place") == {**extra, "uri": "http://rest"}
    connect(monkeypatch, conn_type="aws", login="k", password="s", extra={"region_name": "eu"})
    assert store_properties("place") == {
        "aws_region": "eu",
        "aws_access_key_id": "k",
        "aws_secret_access_key": "s",
    }
    connect(monkeypatch, conn_type="generic", extra={"aws_region": "eu"})
    assert store_properties("place") == {"aws_region": "eu"}


def test_one_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidArgument, match="there is no connection 'nowhere'"):
        store_properties("nowhere")
