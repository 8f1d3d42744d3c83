"""The contract of tables in a REST catalog: Iceberg's own reference of one."""

from __future__ import annotations

import json

import pytest

from airflow_lakestream.hooks.iceberg import CatalogUnavailable, IcebergHook
from dev.stack import Stack
from tests.matrix.every_catalog import *  # noqa: F403  # pytest collects the tests here, for this catalog

CATALOG = "REST"


def test_a_rest_catalog_is_asked_with_the_connections_login(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = stack.up_rest_catalog()
    client, _, secret = rest.properties["credential"].partition(":")
    connection = {"conn_type": "iceberg", "host": rest.url, "password": secret}
    extra = {"oauth2-server-uri": rest.tokens}
    for name, login in (("RIGHT", client), ("WRONG", "somebody")):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps({**connection, "login": login, "extra": extra}))

    IcebergHook("right").open_catalog().list_namespaces()

    with pytest.raises(CatalogUnavailable, match=r"'wrong'.*Check host, login") as caught:
        IcebergHook("wrong").open_catalog()
    assert secret not in str(caught.value)
