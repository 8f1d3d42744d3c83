"""Clients of catalogs in SQLite files: one for each file, since every new client compiles all of its queries again."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog


# Few: each keeps its file open.
@lru_cache(maxsize=4)
def client_in(folder: Path, name: str = "iceberg_default", warehouse: str = "warehouse") -> SqlCatalog:
    """Return the client of the catalog in a folder. It remembers nothing of a table, so runs may share it.

    :param warehouse: the folder of the tables, within the other.
    """
    return SqlCatalog(name, uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/{warehouse}")
