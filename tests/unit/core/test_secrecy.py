"""Secrets are found in arguments wherever they are, and told of by their places only."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.core.secrecy import (
    is_secret_name,
    refuse_shown,
    secrets_in,
    url_holds_secret,
    without_secrets,
)
from airflow_lakestream.exceptions import InvalidArgument

CANARY = "word-4711"
SECRET = (
    *("password", "sasl.password", "sslKeyStorePassword", "STORE_PASSWORD", "passphrase", "PROXY_PASSWD"),
    *("secret", "s3.secret-access-key", "aws_secret_access_key", "client_secret", "fs.s3a.secret.key"),
    *("token", "s3.session-token", "bearer.auth.token", "GITHUB_TOKEN", "apikey", "api_key", "x-api-key"),
    *("credential", "Authorization", "header.authorization", "basic.auth.user.info", "sasl.jaas.config"),
    *("fs.azure.account.key.name.dfs.core.windows.net", "azure_storage_account_key", "ssl.private.key"),
)
NO_SECRET = (
    *("url", "table", "topic", "key", "key_file", "token_column", "s3.access-key-id", "partition_by", "tokens"),
    *("write.metadata.metrics.column.password", "spark.kubernetes.driver.secrets.name", "credentials.provider"),
    *("write.format.default", "authenticate", "secretary", "password.validator"),
)
PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.sampled_from(["", "lake.t", "http://h:8081/p?x=1", "a@b"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(NO_SECRET), inner, max_size=3)
    ),
)
HIDDEN = st.one_of(
    st.sampled_from(SECRET).map(lambda name: {name: CANARY}),
    st.sampled_from([f"https://me:{CANARY}@h/p", f"s3a://k:{CANARY}@b", f"http://h/?token={CANARY}"]),
)


@given(value=PLAIN)
def test_what_is_no_secret_is_let_be(value: Any) -> None:
    assert not list(secrets_in(value))
    refuse_shown("a", value)


@given(data=st.data(), hidden=HIDDEN)
def test_a_secret_is_found_at_any_depth_and_not_told(data: st.DataObject, hidden: Any) -> None:
    value = hidden
    for _ in range(data.draw(st.integers(0, 4))):
        beside = data.draw(PLAIN)
        value = data.draw(st.sampled_from([[beside, value], {"url": beside, "table": value}]))
    assert len(list(secrets_in(value))) == 1
    with pytest.raises(InvalidArgument, match=r"^a: .*shown.*connection") as caught:
        refuse_shown("a", value)
    assert CANARY not in str(caught.value)


def test_names() -> None:
    assert [name for name in SECRET if not is_secret_name(name)] == []
    assert [name for name in NO_SECRET if is_secret_name(name)] == []


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("http://me@h/p", True),
        ("https://me:x@h", True),
        ("https://h/p?X-Api-Key=x", True),
        ("https://a.blob.core.windows.net/c?sv=1&sig=x", True),
        ("jdbc:sqlserver://h;user=me;password=x", True),
        ("sc://h:1/;token=x", True),
        ("see https://h/, or https://me:x@h", True),
        ("https://h/p#access_token=x", True),
        ("https://h/p?token=", False),
        ("https://h:8081/a@b", False),
        ("https://[x:y@h", True),
        ("http://[::1]:8081/p", False),
        ("abfss://container@account.dfs.core.windows.net/p", False),
        ("s3://bucket/token=x/p", False),
        ("me:x@h", False),
    ],
)
def test_urls(text: str, holds: bool) -> None:
    assert url_holds_secret(text) is holds


def test_what_a_template_renders_is_shown_unless_it_is_masked() -> None:
    value = {"password": "{{ conn.a.password }}", "at": "https://{{ conn.a.login }}:{{ conn.a.password }}@h"}
    assert list(secrets_in(value)) == ["password", "at"]
    assert list(secrets_in({"password": value["password"]}, rendered="")) == []
    assert list(secrets_in({"a": "-Xmx1g -Dx.password=y"}, assigned=True)) == ["a"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"id": 1, "password": "word-3", "n": 3}', '{"id": 1, "password":***'),
        ('{"id": 1, "password" : "wor', '{"id": 1, "password" :***'),
        ('{"api_key": 12345}', '{"api_key":***'),
        # JSON within JSON: its quotes are escaped.
        ('{"payload": "{\\"password\\": \\"word-3\\"}"}', '{"payload": "{\\"password\\":***'),
        ('{"a": {"b": 1, "token": "word-3"}}', '{"a": {"b": 1, "token":***'),
        ("{'secret': 'word-3'}", "{'secret':***"),
        ("user=me;password=word-3", "user=me;password=***"),
        ("db.password = 'word-3'", "db.password =***"),
        ("Host: h\nAuthorization: Bearer word-3", "Host: h\nAuthorization:***"),
        ("from https://me:word-3@host/x on", "from *** on"),
        ("http://h/x?sig=word-3", "***"),
        # Nothing of it is secret.
        ('{"id": 1, "user": "me", "tokens": 3}', '{"id": 1, "user": "me", "tokens": 3}'),
        ("<b>12:30 a=b</b>", "<b>12:30 a=b</b>"),
        ("", ""),
    ],
)
def test_what_looks_secret_in_a_text_is_hidden(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
    assert "word-3" not in without_secrets(text)


@given(st.sampled_from(SECRET), st.text(), st.text(), st.booleans())
def test_a_secret_in_json_is_hidden_whatever_stands_before_it(name: str, before: str, text: str, plain: bool) -> None:
    record = json.dumps({"a": before, name: f"{CANARY}{text}{CANARY}", "b": 1}, ensure_ascii=plain)
    assert CANARY not in without_secrets(record)
    assert CANARY not in without_secrets(json.dumps({"payload": record}))


@pytest.mark.parametrize(
    "text", ['"' * 1000, "\\" * 1000, "a" * 1000, '"password":' * 90, "password=" * 100, "x:" * 500]
)
def test_no_text_takes_long(text: str) -> None:
    began = time.process_time()
    without_secrets(text)
    assert time.process_time() - began < 1
