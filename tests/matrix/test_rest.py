"""The contract of tables in a REST catalog: Iceberg's own reference of one."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from airflow_lakestream.hooks.iceberg import CatalogUnavailable, IcebergHook
from dev.services.kafka import Kafka
from dev.stack import Stack
from tests.matrix.every_catalog import *  # noqa: F403  # pytest collects the tests here, for this catalog
from tests.support.broker import TopicOf
from tests.support.catalogs import CatalogLake, empty_catalog
from tests.support.lake import assert_landed_once, events
from tests.support.parallel_run import ParallelRun
from tests.support.table_formats import Place
from tests.support.vending import vending

CATALOG = "REST"


def test_a_rest_catalog_is_asked_with_the_connections_login(
    worker_stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = worker_stack.up_rest_catalog()
    client, _, secret = rest.properties["credential"].partition(":")
    connection = {"conn_type": "iceberg", "host": rest.url, "password": secret}
    extra = {"oauth2-server-uri": rest.tokens}
    for name, login in (("RIGHT", client), ("WRONG", "somebody")):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps({**connection, "login": login, "extra": extra}))

    IcebergHook("right").open_catalog().list_namespaces()

    with pytest.raises(CatalogUnavailable, match=r"'wrong'.*Check host, login") as caught:
        IcebergHook("wrong").open_catalog()
    assert secret not in str(caught.value)


def test_keys_that_the_catalog_gives_with_a_table_open_its_files(
    worker_stack: Stack, kafka: Kafka, tmp_path: Path, topic_of: TopicOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    s3, rest = worker_stack.up_s3(), worker_stack.up_rest_catalog()
    place = f"s3://{s3.bucket('vended')}/{uuid.uuid4().hex}"
    name = topic_of(events(0, 0, 60), events(1, 0, 40))
    config = {"schema": "id bigint, name string, score double", "table_properties": {"write.data.path": place}}
    with vending(rest, s3.temporary) as catalog:
        lake = CatalogLake(Place(tmp_path, {"catalog": catalog.properties}), kafka.client_config())
        try:
            assert lake.land(name, mode="ranges", ranges=[[0, 0, 30]], **config).rows == 30
            # The run's own readers are forked: they get the keys from it.
            rest_of_it = ParallelRun(lake, name, config, fault="the parent reads nothing").land()
            assert (rest_of_it["processes"], rest_of_it["rows"]) == (2, 70)

            assert_landed_once(lake, name, {0: 60, 1: 40})
            assert all(task.file.file_path.startswith(place) for task in lake.table().scan().plan_files())
        finally:
            empty_catalog(load_catalog("iceberg_default", **rest.properties), Path(rest.warehouse[len("file://") :]))
    assert len({keys["s3.session-token"] for keys in catalog.given}) > 1
