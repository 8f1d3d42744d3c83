"""The catalogs that users have, each a real server: what a client needs to know of them, and how they are emptied."""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog

from dev.stack import Stack
from tests.support.lake import Lake
from tests.support.table_formats import Place, sqlite_catalog

SPAWN = multiprocessing.get_context("spawn")
# Long enough for the lock of a writer that is paused to expire, and as quick as can be before.
LOCK = {"lock-check-min-wait-time": "0.1", "lock-check-max-wait-time": "1", "lock-check-retries": "60"}


def _of_database(url: str, folder: Path) -> dict[str, str]:
    properties = {**sqlite_catalog(folder), "uri": url}
    # The first client makes the catalog's own tables. Two first ones at once: the second is told that they are there.
    load_catalog("iceberg_default", **properties)
    return properties


def _in_folder(properties: Mapping[str, str], folder: Path) -> dict[str, str]:
    return {**properties, "warehouse": f"file://{folder}/warehouse"}


# By its name in the docs: the properties of an empty catalog, whose warehouse is in the folder or the server's own.
CATALOGS: Mapping[str, Callable[[Stack, Path], Mapping[str, str]]] = {
    "REST": lambda stack, _: stack.up_rest_catalog().properties,
    "Hive": lambda stack, _: {**stack.up_metastore().properties, **LOCK},
    "Glue": lambda stack, folder: _in_folder(stack.up_glue().properties, folder),
    "PostgreSQL": lambda stack, folder: _of_database(stack.up_postgres().new_database("catalog"), folder),
    "MariaDB": lambda stack, folder: _of_database(stack.up_mariadb().new_database("catalog"), folder),
}


@contextmanager
def place_in(name: str, stack: Stack, folder: Path) -> Iterator[Place]:
    """Give a place for one table in an empty catalog, and empty it afterwards."""
    properties = CATALOGS[name](stack, folder)
    warehouse = properties.get("warehouse") or stack.up_rest_catalog().warehouse
    own = Path(warehouse.removeprefix("file://"))
    yield Place(own, {"catalog": properties})
    empty_catalog(load_catalog("iceberg_default", **properties), own)


def empty_catalog(catalog: Catalog, warehouse: Path) -> None:
    """Remove all namespaces and tables, and their files."""
    for namespace in catalog.list_namespaces():
        for table in catalog.list_tables(namespace):
            catalog.drop_table(table)
        if namespace != ("default",):
            catalog.drop_namespace(namespace)
    for folder in warehouse.iterdir() if warehouse.is_dir() else ():
        shutil.rmtree(folder)


class CatalogLake(Lake):
    """A lake in a catalog of any kind."""

    def __init__(self, place: Place, kafka: Mapping[str, Any]) -> None:
        super().__init__(place.folder, kafka)
        self.properties = dict(place.options["catalog"])

    def catalog(self, **properties: str) -> Catalog:  # type: ignore[override]  # any catalog, where a lake promises SQL's
        """Return a catalog client of its own, such as another process would have."""
        return load_catalog("iceberg_default", **self.properties, **properties)


def land_each(lake: Lake, topic: str, ranges: Sequence[tuple[int, int]], start: Any, answers: Any) -> None:
    """Land ranges of partition 0, one after the other; answer what became of each."""
    start.wait(60)
    for first, until in ranges:
        try:
            lake.land(topic, mode="ranges", ranges=[[0, first, until]])
            answers.put("landed")
        except Exception as e:  # noqa: BLE001  # another process raised it: the test gets it as its answer
            answers.put(repr(e))


def land_side_by_side(lake: Lake, topic: str, shares: Sequence[Sequence[tuple[int, int]]]) -> list[str]:
    """Land each share in a process of its own, at once; return what became of each range."""
    answers, start = SPAWN.Queue(), SPAWN.Barrier(len(shares))
    processes = [SPAWN.Process(target=land_each, args=(lake, topic, share, start, answers)) for share in shares]
    for process in processes:
        process.start()
    said = [answers.get(timeout=240) for share in shares for _ in share]
    for process in processes:
        process.join()
    return said
