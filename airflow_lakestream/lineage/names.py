"""Names of topics, files and catalogs by OpenLineage's specification: other tools find the same datasets by these.

See https://openlineage.io/docs/spec/naming.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

_KAFKA_PORT = 9092
# Schemes of the same store under several names.
_SAME_SCHEME = {"s3a": "s3", "s3n": "s3"}
# Stores with dataset names that begin without a slash.
_OBJECT_STORES = frozenset({"s3", "gs", "abfs", "abfss", "wasb", "wasbs", "az", "adl"})


def brokers_of(configuration: Mapping[str, Any]) -> str:
    """Return the brokers in librdkafka's configuration."""
    return str(configuration.get("bootstrap.servers") or configuration.get("metadata.broker.list") or "")


def kafka_namespace(brokers: str) -> str:
    """Return the namespace of a cluster's topics: the first broker of the list in alphabetical order.

    So connections with the same brokers in another order have the same namespace. Without brokers it is
    `kafka://unknown`.
    """
    known = sorted(_broker(one) for one in brokers.split(",") if one.strip())
    return f"kafka://{known[0]}" if known else "kafka://unknown"


def _broker(text: str) -> str:
    address = text.strip().rpartition("://")[2].lower()
    parts = urlsplit(f"//{address}")
    try:
        port = parts.port
    except ValueError:
        return address
    return address if port is not None else f"{address}:{_KAFKA_PORT}"


def of_location(location: str) -> tuple[str, str]:
    """Return namespace and name of the dataset at a path or a URI.

    The namespace is `file` for a local path, otherwise scheme and store, such as `s3://bucket`, also for `s3a`.
    """
    parts = urlsplit(location)
    if not parts.scheme or parts.scheme == "file":
        path = unquote(parts.path) if parts.scheme else location
        return "file", path.rstrip("/") or "/"
    scheme = _SAME_SCHEME.get(parts.scheme, parts.scheme)
    # The name before an @ is a container of Azure, not a secret: locations with a password are refused.
    path = parts.path.rstrip("/")
    return f"{scheme}://{parts.netloc}", (path.lstrip("/") or "/") if scheme in _OBJECT_STORES else path


def of_catalog(name: str, kind: str, properties: Mapping[str, Any]) -> str:
    """Return the namespace of a catalog's tables: the address or the warehouse, without secrets.

    :param name: the catalog's own name, used without an address and a warehouse.
    :param kind: `"rest"`, `"hive"`, `"glue"`, `"sql"`, ...
    """
    address = _public(str(properties.get("uri") or ""))
    if kind == "hive" and address:
        # A list of metastores: the least name is the namespace, as for brokers.
        return f"hive://{min(one.strip().rpartition('://')[2] for one in address.split(','))}"
    if kind == "rest" and address:
        return address
    # Another kind of catalog, or no address: the warehouse names the catalog, as a path, a URI, or a plain name.
    warehouse = str(properties.get("warehouse") or "")
    if warehouse.startswith("/") or "://" in warehouse:
        return "://".join(of_location(_public(warehouse))) if warehouse.startswith("/") else _public(warehouse)
    return warehouse or name


def _public(uri: str) -> str:
    """Return an address without user, password and parameters."""
    scheme, mark, rest = uri.partition("://")
    if not mark:
        return uri
    return f"{scheme}://{rest.split('?')[0].split('#')[0].rpartition('@')[2]}".rstrip("/")
