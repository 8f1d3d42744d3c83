"""Object stores by obstore, the only client that can create a file only if missing.

The header of such a request is `If-None-Match` in S3 and Azure, `x-goog-if-generation-match` in Google Cloud Storage.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, cast
from urllib.parse import quote

from airflow_lakestream.exceptions import LakestreamError, Terminal
from airflow_lakestream.stores import cloud_options
from airflow_lakestream.stores.cloud_options import given_options

_S3 = ("s3", "s3a", "s3n")
SCHEMES = (*_S3, *cloud_options.GCS_SCHEMES, *cloud_options.AZURE_SCHEMES)
# delta-rs' options for the HTTP client, which may have the store's prefix; all other options are for the store.
_CLIENT_OPTIONS = (
    *(
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "http1_only",
        "http2_only",
    ),
    *("http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle", "pool_idle_timeout"),
    *("pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes", "proxy_url", "randomize_addresses"),
    *("read_timeout", "timeout", "user_agent"),
)
# PyIceberg's names, each with delta-rs' name. If two have the same meaning, the first wins, as in PyIceberg.
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
# delta-rs' alternative names for the same options.
_ALIASES = {
    "aws_endpoint": "aws_endpoint_url",
    "endpoint": "aws_endpoint_url",
    "endpoint_url": "aws_endpoint_url",
    "region": "aws_region",
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
}
# Further alternative names, which have another meaning among a catalog's properties.
_ALIASES_ALONE = {
    "aws_token": "aws_session_token",
    "token": "aws_session_token",
    "virtual_hosted_style_request": "aws_virtual_hosted_style_request",
    "allow_http": "aws_allow_http",
}


def open_location(location: str, properties: Mapping[str, Any]) -> Any:
    """Return obstore's object for a location.

    :param location: a URI with one of `SCHEMES`.
    :param properties: a catalog's properties, or storage options of delta-rs.

    Raises ModuleNotFoundError without obstore, ValueError for options that can't work.
    """
    from obstore.exceptions import BaseError

    scheme, _, rest = location.partition(":")
    try:
        if scheme in cloud_options.AZURE_SCHEMES:
            return open_store(cloud_options.azure_url(location), cloud_options.azure_options(location, properties))
        # In Hadoop's locations a percent sign is a plain character, so the path is quoted for the URL.
        path = quote(rest.strip("/"))
        if scheme in cloud_options.GCS_SCHEMES:
            return open_store(f"gs://{path}", cloud_options.gcs_options(properties))
        return open_store(f"s3://{path}", options_of(properties))
    except BaseError as e:
        # Further lines are for debugging obstore.
        raise ValueError(str(e).partition("\n")[0].rstrip(".")) from e


def options_of(properties: Mapping[str, Any]) -> dict[str, str]:
    """Return the storage options of S3, named as in delta-rs; delta-rs' options win over a catalog's properties.

    :param properties: see `given_options`.
    """
    options: dict[str, str] = {}
    for name, option in _OF_CATALOGS.items():
        if properties.get(name) not in (None, ""):
            options.setdefault(option, str(properties[name]))
    options |= given_options(properties, "aws_", _ALIASES, {**_ALIASES, **_ALIASES_ALONE})
    if options.get("aws_endpoint_url", "").startswith("http://"):
        options["aws_allow_http"] = "true"
    return options


def open_store(url: str, options: Mapping[str, str]) -> Any:
    """Return obstore's object for a URL like s3://bucket/prefix. Raises ModuleNotFoundError without obstore.

    :param options: storage options of delta-rs, for the store and for the HTTP client. obstore reads missing settings
        of the store from the environment.
    """
    from obstore.store import from_url

    settings = {key.lower(): value for key, value in options.items()}
    client: dict[str, Any] = {}
    for option in list(settings):
        if (name := _without_prefix(option)) in _CLIENT_OPTIONS:
            client[name] = settings.pop(option)
    if "allow_http" in client:
        client["allow_http"] = str(client["allow_http"]).lower() == "true"
    return from_url(url, config=cast(Any, settings), client_options=cast(Any, client))


def _without_prefix(option: str) -> str:
    for prefix in ("aws_", "azure_", "google_"):
        option = option.removeprefix(prefix)
    return option


class PlaceNotWritable(LakestreamError, Terminal):
    """A table's files can't be written at the location."""

    def __init__(self, table: str, place: str, cause: Exception) -> None:
        self.table, self.place = table, place
        # Further lines are for debugging a client.
        first_line = str(cause).partition("\n")[0]
        super().__init__(
            f"{table}: no file can be written below {place} ({type(cause).__name__}: {first_line}). Nothing was read "
            "or changed. Give the worker's user the right to write there; or correct the table's location; or land in "
            "another table."
        )


def check_folder(table: str, folder: str | Path) -> None:
    """Refuse a folder on a disk that this process can't write or create. Raises PlaceNotWritable.

    Raises OSError if the disk is full.
    """
    existing = Path(folder)
    try:
        while not existing.exists():
            existing = existing.parent
        # The file has no name, so it disappears even if this process is killed.
        with TemporaryFile(dir=existing):
            pass
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise PlaceNotWritable(table, str(folder), e) from e
