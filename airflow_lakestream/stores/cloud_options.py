"""Storage options of Azure and Google Cloud Storage, from locations, catalog properties and delta-rs' options."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

# The prefixes of the options of each store; one connection may have options for several stores.
_PREFIXES = ("aws_", "azure_", "google_")
# Each catalog has one of these properties, or a property with a dot in its name; delta-rs' options have neither.
_CATALOG_PROPERTIES = ("type", "uri", "warehouse")


def given_options(
    properties: Mapping[str, Any], prefix: str, plain: Collection[str], other_names: Mapping[str, str]
) -> dict[str, str]:
    """Return a store's options among properties, with names in lower case.

    Among a catalog's properties, an option has the store's prefix, or a known name without prefix. Otherwise all
    properties are options, except options with the prefix of another store: obstore refuses an unknown name.

    :param properties: a catalog's properties, perhaps with delta-rs' options among them, or delta-rs' options alone.
    :param prefix: the store's prefix, such as "aws_".
    :param plain: the known names without the prefix.
    :param other_names: delta-rs' alternative names of options, each with the name to use.
    """
    lower = {key.lower(): str(value) for key, value in properties.items()}
    if any("." in name or name in _CATALOG_PROPERTIES for name in lower):
        own = {name: value for name, value in lower.items() if name.startswith(prefix) or name in plain}
    else:
        other_prefixes = tuple(known for known in _PREFIXES if known != prefix)
        own = {name: value for name, value in lower.items() if not name.startswith(other_prefixes)}
    return {other_names.get(name, name): value for name, value in own.items()}


AZURE_SCHEMES = ("abfs", "abfss", "wasb", "wasbs", "az")
# PyIceberg's names, each with delta-rs' name.
_OF_CATALOGS = {
    "adls.account-name": "azure_storage_account_name",
    "adls.account-key": "azure_storage_account_key",
    "adls.sas-token": "azure_storage_sas_token",
    "adls.tenant-id": "azure_tenant_id",
    "adls.client-id": "azure_client_id",
    "adls.client-secret": "azure_client_secret",
    "adls.token": "azure_storage_token",
}
# The names in a connection string, as Azure's portal shows it, each with delta-rs' name.
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
# delta-rs' alternative names for the endpoint.
_ALIASES = {"azure_endpoint": "azure_storage_endpoint", "endpoint": "azure_storage_endpoint"}
# Endings of Azure's own hosts, for which the account is enough: no endpoint is needed.
_PUBLIC = (".dfs.core.windows.net", ".blob.core.windows.net")
_ACCOUNT, _ENDPOINT = "azure_storage_account_name", "azure_storage_endpoint"


def azure_url(location: str) -> str:
    """Return a location as a URL az://container/path; the path is quoted, which a location's path is not."""
    host, _, path = location.partition(":")[2].lstrip("/").partition("/")
    return f"az://{host.partition('@')[0]}/{quote(path.strip('/'))}"


def azure_options(location: str, properties: Mapping[str, Any]) -> dict[str, str]:
    """Return Azure's storage options, named as in delta-rs.

    delta-rs' options win over a catalog's properties, these over a connection string, and all over the location.

    :param location: its host, `container@account.host`, has the account and the endpoint.
    :param properties: see `given_options`.
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
    """Return the options in a connection string."""
    parts = dict(part.split("=", 1) for part in text.split(";") if "=" in part)
    return {option: parts[name].rstrip("/") for name, option in _OF_STRINGS.items() if name in parts}


def _endpoint(properties: Mapping[str, Any], account: str) -> str:
    """Return the endpoint that a catalog's properties specify, or "" for Azure's own endpoint."""
    if host := properties.get("adls.account-host"):
        return f"https://{host}"
    if not (authority := properties.get("adls.blob-storage-authority")):
        return ""
    # As in PyArrow, an authority is a suffix of the account's host, or a server that has accounts in its path.
    scheme = properties.get("adls.blob-storage-scheme") or "https"
    return f"{scheme}://{account}{authority}" if authority.startswith(".") else f"{scheme}://{authority}/{account}"


GCS_SCHEMES = ("gs", "gcs")
# PyIceberg's names, each with delta-rs' name.
_GCS_OF_CATALOGS = {"gcs.service.host": "google_base_url", "gcs.oauth2.token": "google_bearer_token"}
# delta-rs' names without a prefix.
_GCS_PLAIN = ("service_account", "service_account_path", "service_account_key", "application_credentials")
# delta-rs' alternative names for the options of PyIceberg's names above.
_GCS_ALIASES = {"base_url": "google_base_url", "bearer_token": "google_bearer_token"}


def gcs_options(properties: Mapping[str, Any]) -> dict[str, str]:
    """Return Google Cloud Storage's options, named as in delta-rs; delta-rs' options win over a catalog's properties.

    :param properties: see `given_options`.
    """
    settings = {option: str(properties[name]) for name, option in _GCS_OF_CATALOGS.items() if properties.get(name)}
    settings |= given_options(properties, "google_", _GCS_PLAIN, _GCS_ALIASES)
    if settings.get("google_base_url", "").startswith("http://"):
        settings["google_allow_http"] = "true"
    return settings
