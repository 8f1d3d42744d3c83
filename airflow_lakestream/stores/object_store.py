"""A folder of an object store, opened by obstore: only obstore can create a file on condition that it is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

# Of delta-rs' options these belong to the HTTP client, the others to the store.
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


def options_of(properties: Mapping[str, Any]) -> dict[str, str]:
    """Return the storage options, named as in delta-rs, of a catalog's properties.

    Storage options are returned as they are; properties of the catalog alone are left out.
    """
    found: dict[str, str] = {}
    for name, option in _OF_CATALOGS.items():
        if properties.get(name) not in (None, ""):
            found.setdefault(option, str(properties[name]))
    for key, value in properties.items():
        name = _ALIASES.get(key.lower(), key.lower())
        if name.startswith("aws_"):
            found[name] = str(value)
    if found.get("aws_endpoint_url", "").startswith("http://"):
        found["aws_allow_http"] = "true"
    return found


def open_store(url: str, options: Mapping[str, str]) -> Any:
    """Return the store rooted at a URL such as s3://bucket/prefix; the environment gives what the options leave out.

    :param options: storage options of delta-rs. Raises ModuleNotFoundError without obstore.
    """
    from obstore.store import from_url

    told = {key.lower(): value for key, value in options.items()}
    client: dict[str, Any] = {
        name: told.pop(key) for key in list(told) if (name := key.removeprefix("aws_")) in _CLIENT
    }
    if "allow_http" in client:
        client["allow_http"] = str(client["allow_http"]).lower() == "true"
    return from_url(url, config=cast(Any, told), client_options=cast(Any, client))
