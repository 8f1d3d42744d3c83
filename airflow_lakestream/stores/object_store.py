"""Object stores by obstore, the only client to create a file only if missing.

S3 and Azure are asked by `If-None-Match`, Google Cloud Storage by `x-goog-if-generation-match`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import quote

from airflow_lakestream.stores import azure, gcs

_S3 = ("s3", "s3a", "s3n")
SCHEMES = (*_S3, *gcs.SCHEMES, *azure.SCHEMES)
# Options of delta-rs for the HTTP client; the rest are for the store. Each may have its store's prefix.
_CLIENT = (
    *("allow_http", "allow_invalid_certificates", "connect_timeout", "timeout", "proxy_url", "user_agent"),
    *("pool_idle_timeout", "pool_max_idle_per_host", "http1_only", "http2_only", "proxy_ca_certificate"),
)
# PyIceberg's names. Of two with the same meaning the first wins, as in PyIceberg.
_OF_CATALOGS = {
    "s3.endpoint": "aws_endpoint_url",
    "s3.region": "aws_region",
    "client.region": "aws_region",
    "s3.access-key-id": "aws_access_key_id",
    "client.access-key-id": "aws_access_key_id",
    "s3.secret-access-key": "aws_secret_access_key",
    "client.secret-access-key": "aws_secret_access_key",
    "s3.session-token": "aws_session_token",
    "client.session-token": "aws_session_token",
    "s3.force-virtual-addressing": "aws_virtual_hosted_style_request",
}
# delta-rs' own other names for the same options.
_ALIASES = {
    "aws_endpoint": "aws_endpoint_url",
    "endpoint": "aws_endpoint_url",
    "endpoint_url": "aws_endpoint_url",
    "region": "aws_region",
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
}


def open_location(location: str, properties: Mapping[str, Any]) -> Any:
    """Return the store rooted at a location.

    :param location: of one of `SCHEMES`.
    :param properties: of a catalog, or storage options of delta-rs.

    Raises ModuleNotFoundError without obstore, ValueError for options that can't work.
    """
    from obstore.exceptions import BaseError

    scheme, _, rest = location.partition(":")
    try:
        if scheme in azure.SCHEMES:
            return open_store(azure.url_of(location), azure.options_of(location, properties))
        # Hadoop does not take a location as a URL, and decodes nothing in it.
        path = quote(rest.strip("/"))
        if scheme in gcs.SCHEMES:
            return open_store(f"gs://{path}", gcs.options_of(properties))
        return open_store(f"s3://{path}", options_of(properties))
    except BaseError as e:
        # Further lines are for debugging obstore.
        raise ValueError(str(e).partition("\n")[0].rstrip(".")) from e


def options_of(properties: Mapping[str, Any]) -> dict[str, str]:
    """Return the storage options of S3, named as in delta-rs, of a catalog's properties.

    Options of delta-rs with the prefix aws_, or with a known alias, stay unchanged, and win over properties.
    Further properties are left out.
    """
    options: dict[str, str] = {}
    for name, option in _OF_CATALOGS.items():
        if properties.get(name) not in (None, ""):
            options.setdefault(option, str(properties[name]))
    for key, value in properties.items():
        name = _ALIASES.get(key.lower(), key.lower())
        if name.startswith("aws_"):
            options[name] = str(value)
    if options.get("aws_endpoint_url", "").startswith("http://"):
        options["aws_allow_http"] = "true"
    return options


def open_store(url: str, options: Mapping[str, str]) -> Any:
    """Return the store rooted at a URL like s3://bucket/prefix. Raises ModuleNotFoundError without obstore.

    :param options: storage options of delta-rs, for the store and for the HTTP client. Where they lack a setting of
        the store, obstore takes it from the environment.
    """
    from obstore.store import from_url

    settings = {key.lower(): value for key, value in options.items()}
    client: dict[str, Any] = {name: settings.pop(key) for key in list(settings) if (name := _bare(key)) in _CLIENT}
    if "allow_http" in client:
        client["allow_http"] = str(client["allow_http"]).lower() == "true"
    return from_url(url, config=cast(Any, settings), client_options=cast(Any, client))


def _bare(option: str) -> str:
    for prefix in ("aws_", "azure_", "google_"):
        option = option.removeprefix(prefix)
    return option
