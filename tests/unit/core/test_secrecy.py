"""Secrets are found in arguments wherever they are, and told of by their places only."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.core.secrecy import is_secret_name, refuse_shown, secrets_in, url_holds_secret
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
