"""Facts about the landings of a try of a task: plain values, with OpenLineage's names of topics, files and catalogs.

Other tools find the same datasets by these names, see https://openlineage.io/docs/spec/naming.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.core.ranges import RangeSet


@dataclass(frozen=True, slots=True)
class LineageColumn:
    """A column of a table; `fields` are the fields of a struct."""

    name: str
    type: str
    fields: tuple[LineageColumn, ...] = ()


@dataclass(frozen=True, slots=True)
class CatalogName:
    """Name of a catalog, without secrets. `namespace` is the namespace of the tables' names."""

    name: str
    kind: str
    namespace: str


@dataclass(frozen=True, slots=True)
class TablePlace:
    """Location, format and columns of a table at the newest commit. A Delta table has no catalog."""

    location: str
    format: str
    columns: tuple[LineageColumn, ...]
    catalog: CatalogName | None = None


@dataclass(slots=True)
class TopicRead:
    """Records read from a topic. `lost` are removed offsets with a receipt in the ledger.

    `counts` are None if only the counts of several topics together are known.
    """

    counts: Counts | None = Counts()
    ranges: RangeSet = field(default_factory=RangeSet)
    lost: RangeSet = field(default_factory=RangeSet)


@dataclass(slots=True)
class TableOutput:
    """Rows written to a table. `size` (bytes) and `files` are None if unknown; `snapshots` are in the order of commits.

    `knows_all` is False if there were more snapshots than are listed.
    """

    rows: int = 0
    size: int | None = None
    files: int | None = None
    snapshots: list[str] = field(default_factory=list)
    place: TablePlace | None = None
    knows_all: bool = True

    def add(self, rows: int, size: int | None, files: int | None, snapshot: str | None) -> None:
        """Count a commit. A commit with an unknown size or number of files makes the sum unknown."""
        is_first = not self.snapshots
        self.rows += rows
        self.size = size if is_first else _sum(self.size, size)
        self.files = files if is_first else _sum(self.files, files)
        if snapshot is not None:
            self.snapshots.append(snapshot)


@dataclass(slots=True)
class LineageFacts:
    """All facts about the landings of a try.

    :param brokers: the Kafka connection's `bootstrap.servers`.
    :param recovered: snapshots of the run's earlier tries, which emitted the rows.
    :param statement: the SQL that made the rows, if any.
    :param columns: by column of the table, the fields of the topic that it is made of, if certain.
    """

    brokers: str
    consumer_group: str
    topics: dict[str, TopicRead] = field(default_factory=dict)
    tables: dict[str, TableOutput] = field(default_factory=dict)
    landings: list[str] = field(default_factory=list)
    recovered: list[str] = field(default_factory=list)
    statement: str | None = None
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def topic(self, name: str) -> TopicRead:
        """Return the records read from a topic, for adding."""
        return self.topics.setdefault(name, TopicRead())

    def table(self, name: str) -> TableOutput:
        """Return the rows written to a table, for adding."""
        return self.tables.setdefault(name, TableOutput())


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


_KAFKA_PORT = 9092
# Schemes of the same store under several names.
_SAME_SCHEME = {"s3a": "s3", "s3n": "s3"}
# Schemes of stores whose dataset names begin without a slash.
_OBJECT_STORES = frozenset({"s3", "gs", "abfs", "abfss", "wasb", "wasbs", "az", "adl"})


def brokers_of(configuration: Mapping[str, Any]) -> str:
    """Return the brokers in librdkafka's configuration."""
    return str(configuration.get("bootstrap.servers") or configuration.get("metadata.broker.list") or "")


def kafka_namespace(brokers: str) -> str:
    """Return the namespace of a cluster's topics: the first broker of the list in alphabetical order.

    So connections with the same brokers in another order have the same namespace. Without brokers it is
    `kafka://unknown`.
    """
    addresses = sorted(_broker(broker) for broker in brokers.split(",") if broker.strip())
    return f"kafka://{addresses[0]}" if addresses else "kafka://unknown"


def _broker(text: str) -> str:
    """Return a broker's address in lower case, without a protocol, and with a port."""
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
        return f"hive://{min(metastore.strip().rpartition('://')[2] for metastore in address.split(','))}"
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
