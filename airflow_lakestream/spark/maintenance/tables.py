"""Tables to maintain: the names and patterns of the configuration, matched with the catalog."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import Table
from pyiceberg.types import TimeType

from airflow_lakestream.exceptions import InvalidArgument

_WILD = "*?["


class NoIcebergTable(InvalidArgument):
    """Error of a name that is not an Iceberg table of the catalog."""

    def __init__(self, name: str, catalog: str) -> None:
        super().__init__(
            "maintenance.tables",
            f"{name} is not an Iceberg table of catalog {catalog!r}.",
            "Delta tables are not for this app: Delta's own OPTIMIZE and VACUUM keep them.",
        )


def select(catalog: Catalog, wanted: Sequence[str]) -> list[str]:
    """Return the names of the tables, each once, in the order of the configuration.

    A pattern matches names with the pattern's number of parts. A pattern may match no table, and skips tables that are
    not Iceberg tables. Raises NoIcebergTable for a plain name that is not an Iceberg table.
    """
    names: dict[str, None] = {}
    for one in wanted:
        if not any(letter in one for letter in _WILD):
            if not _is_table(catalog, one):
                raise NoIcebergTable(one, catalog.name)
            names[one] = None
            continue
        parts = one.split(".")
        for name in _names(catalog, parts[:-1]):
            if fnmatchcase(name.split(".")[-1], parts[-1]) and name not in names and _is_table(catalog, name):
                names[name] = None
    return list(names)


def times_of_day(schema: Schema) -> list[str]:
    """Return the columns of type time, nested columns included: Spark 4.0 opens no table with such a column."""
    ids = (number for number, field in index_by_id(schema).items() if isinstance(field.field_type, TimeType))
    return [str(schema.find_column_name(number)) for number in ids]


def inside(catalog: Catalog, table: Table) -> list[str]:
    """Return the tables with files in or around this table's folder, as far as the catalog knows.

    Only the tables of its namespace, and of namespaces below it, are compared.
    """
    name = ".".join(table.name())
    folder = _folder(table.location())
    namespace = name.split(".")[:-1]
    neighbours = [*_names(catalog, namespace), *_below(catalog, tuple(namespace))]
    return [
        other
        for other in dict.fromkeys(neighbours)
        if other != name
        and (at := _location(catalog, other)) is not None
        and (at.startswith(folder) or folder.startswith(at))
    ]


def _location(catalog: Catalog, name: str) -> str | None:
    try:
        return _folder(catalog.load_table(name).location())
    except NoSuchTableError:
        return None


def _folder(location: str) -> str:
    return location.rstrip("/") + "/"


def _is_table(catalog: Catalog, name: str) -> bool:
    try:
        catalog.load_table(name)
    except (NoSuchTableError, NoSuchNamespaceError):
        return False
    return True


def _names(catalog: Catalog, namespace: Sequence[str]) -> Iterator[str]:
    """Yield the tables of the matching namespaces, part by part."""
    for one in _namespaces(catalog, namespace):
        yield from sorted(".".join(table) for table in catalog.list_tables(one))


def _namespaces(catalog: Catalog, wanted: Sequence[str], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if not any(letter in part for part in wanted for letter in _WILD):
        if catalog.namespace_exists((*above, *wanted)):
            yield (*above, *wanted)
        return
    for one in _children(catalog, above):
        if fnmatchcase(one[-1], wanted[0]):
            if len(wanted) == 1:
                yield one
            else:
                yield from _namespaces(catalog, wanted[1:], one)


def _below(catalog: Catalog, namespace: tuple[str, ...]) -> Iterator[str]:
    for one in _children(catalog, namespace):
        yield from (".".join(table) for table in catalog.list_tables(one))
        yield from _below(catalog, one)


def _children(catalog: Catalog, above: tuple[str, ...]) -> Collection[tuple[str, ...]]:
    below = catalog.list_namespaces(above)
    return [one for one in below if len(one) == len(above) + 1 and one[: len(above)] == above]
