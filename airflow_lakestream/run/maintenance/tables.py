"""Selection of tables to maintain, by names and patterns, and reasons to leave a table alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

from airflow_lakestream.cdc.merge.memory import MIRROR_ID, SUFFIX
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal
from airflow_lakestream.lakes import lake_of

_WILDCARDS = "*?["


class NoIcebergTable(InvalidArgument):
    """Error of a name that is not an Iceberg table of the catalog."""

    def __init__(self, name: str, catalog: Catalog) -> None:
        super().__init__(
            "maintenance.tables",
            f"{name} is not an Iceberg table of catalog {catalog.name!r}.{lake_of(name).part('near')(catalog, name)}",
            "Correct it. A Delta table is named by its path or URI, for `lakestream maintain`.",
        )


class SharedFolder(LakestreamError, Terminal):
    """Error of a folder shared by two tables: the files of the other table would count as orphans."""

    def __init__(self, table: str, neighbours: Sequence[str]) -> None:
        super().__init__(
            f"{table}: no orphan was removed, since {', '.join(neighbours)} has its files in the same folder: they "
            "would count as orphans. Move one of the tables, or leave out remove_orphans for this one."
        )


def select(catalog: Catalog, wanted: Sequence[str]) -> list[str]:
    """Return the names of the tables, each once, in the order of the configuration.

    A pattern matches names with the pattern's number of parts. A pattern may match no table, and skips tables that are
    not Iceberg tables. Raises NoIcebergTable for a plain name that is not an Iceberg table.
    """
    selected: dict[str, None] = {}
    for pattern in wanted:
        if not any(letter in pattern for letter in _WILDCARDS):
            if not _is_table(catalog, pattern):
                raise NoIcebergTable(pattern, catalog)
            selected[pattern] = None
            continue
        *namespace, last = pattern.split(".")
        for name in _names(catalog, namespace):
            if fnmatchcase(name.split(".")[-1], last) and name not in selected and _is_table(catalog, name):
                selected[name] = None
    return list(selected)


def inside(catalog: Catalog, table: Table) -> list[str]:
    """Return the names of other tables whose folder is in or around this table's folder.

    Only tables of the same namespace, and of the namespaces below, are compared.
    """
    name = ".".join(table.name())
    folder = _folder(table.location())
    namespace = name.split(".")[:-1]
    sharing = []
    for other in dict.fromkeys([*_names(catalog, namespace), *_tables_below(catalog, tuple(namespace))]):
        other_folder = None if other == name else _location(catalog, other)
        if other_folder is not None and (other_folder.startswith(folder) or folder.startswith(other_folder)):
            sharing.append(other)
    return sharing


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
    """Yield the tables of the namespaces that match a pattern, whose parts may have wildcards."""
    for match in _namespaces(catalog, namespace):
        yield from sorted(".".join(table) for table in catalog.list_tables(match))


def _namespaces(catalog: Catalog, wanted: Sequence[str], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the namespaces whose parts match the wanted parts, which may have wildcards.

    :param above: the namespace whose children are matched.
    """
    if not any(letter in part for part in wanted for letter in _WILDCARDS):
        if catalog.namespace_exists((*above, *wanted)):
            yield (*above, *wanted)
        return
    for child in _children(catalog, above):
        if fnmatchcase(child[-1], wanted[0]):
            if len(wanted) == 1:
                yield child
            else:
                yield from _namespaces(catalog, wanted[1:], child)


def _tables_below(catalog: Catalog, namespace: tuple[str, ...]) -> Iterator[str]:
    """Yield the tables of all namespaces below a namespace."""
    for child in _children(catalog, namespace):
        yield from (".".join(table) for table in catalog.list_tables(child))
        yield from _tables_below(catalog, child)


def _children(catalog: Catalog, above: tuple[str, ...]) -> Collection[tuple[str, ...]]:
    """Return the namespaces directly below a namespace; some catalogs list deeper namespaces, too."""
    below = catalog.list_namespaces(above)
    return [name for name in below if len(name) == len(above) + 1 and name[: len(above)] == above]


def is_memory(table: Table) -> bool:
    """Return whether a table is a mirror's memory of deleted rows.

    Compaction would mix up its files, and make them too large.
    """
    return table.name()[-1].endswith(SUFFIX) and MIRROR_ID in table.metadata.properties
