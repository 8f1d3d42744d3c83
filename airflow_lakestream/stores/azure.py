"""Azure's Blob Storage and Data Lake: URLs and storage options from locations and properties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from airflow_lakestream.stores.given_options import given_options

SCHEMES = ("abfs", "abfss", "wasb", "wasbs", "az")
# PyIceberg's names.
_OF_CATALOGS = {
    "adls.account-name": "azure_storage_account_name",
    "adls.account-key": "azure_storage_account_key",
    "adls.sas-token": "azure_storage_sas_token",
    "adls.tenant-id": "azure_tenant_id",
    "adls.client-id": "azure_client_id",
    "adls.client-secret": "azure_client_secret",
    "adls.token": "azure_storage_token",
}
# Of a connection string, as Azure's portal shows it.
_OF_STRINGS = {
    "AccountName": "azure_storage_account_name",
    "AccountKey": "azure_storage_account_key",
    "SharedAccessSignature": "azure_storage_sas_token",
    "BlobEndpoint": "azure_storage_endpoint",
}
# delta-rs' names without a prefix.
_PLAIN = (
    *("account_name", "account_key", "access_key", "sas_token", "sas_key"),
    *("client_id", "client_secret", "tenant_id", "use_emulator"),
)
# delta-rs' other names for the endpoint.
_ALIASES = {"azure_endpoint": "azure_storage_endpoint", "endpoint": "azure_storage_endpoint"}
# Hosts that need no endpoint: the account is enough.
_PUBLIC = (".dfs.core.windows.net", ".blob.core.windows.net")
_ACCOUNT, _ENDPOINT = "azure_storage_account_name", "azure_storage_endpoint"


def url_of(location: str) -> str:
    """Return a location as a URL az://container/path, quoted, since a location is not."""
    host, _, path = location.partition(":")[2].lstrip("/").partition("/")
    return f"az://{host.partition('@')[0]}/{quote(path.strip('/'))}"


def options_of(location: str, properties: Mapping[str, Any]) -> dict[str, str]:
    """Return the storage options of a catalog's properties, of given storage options, and of a location.

    Given storage options win over properties, and properties over a connection string; see `given_options`.

    :param location: its host, `container@account.host`, has what the properties leave out.
    """
    given = given_options(properties, "azure_", _PLAIN, _ALIASES)
    settings = _of_string(str(properties.get("adls.connection-string") or ""))
    settings |= {option: str(properties[name]) for name, option in _OF_CATALOGS.items() if properties.get(name)}
    settings |= given
    host = urlsplit(location).netloc.partition("@")[2]
    if host and not any(name.endswith("account_name") for name in settings):
        settings[_ACCOUNT] = host.split(".")[0]
    account = next((value for name, value in settings.items() if name.endswith("account_name")), "")
    if _ENDPOINT not in given and (endpoint := _endpoint(properties, account)):
        settings[_ENDPOINT] = endpoint
    elif host and not host.endswith(_PUBLIC):
        settings.setdefault(_ENDPOINT, f"https://{host.replace('.dfs.', '.blob.', 1)}")
    if settings.get(_ENDPOINT, "").startswith("http://"):
        settings["azure_allow_http"] = "true"
    return settings


def _of_string(text: str) -> dict[str, str]:
    parts = dict(part.split("=", 1) for part in text.split(";") if "=" in part)
    return {option: parts[name].rstrip("/") for name, option in _OF_STRINGS.items() if name in parts}


def _endpoint(properties: Mapping[str, Any], account: str) -> str:
    """Return the endpoint by the properties, or an empty text for Azure's own endpoint."""
    if host := properties.get("adls.account-host"):
        return f"https://{host}"
    if not (authority := properties.get("adls.blob-storage-authority")):
        return ""
    # As PyArrow does: an authority is a suffix of the account's host, or a server that has accounts in its path.
    scheme = properties.get("adls.blob-storage-scheme") or "https"
    return f"{scheme}://{account}{authority}" if authority.startswith(".") else f"{scheme}://{authority}/{account}"
