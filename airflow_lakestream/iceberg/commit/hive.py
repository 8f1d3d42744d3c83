"""Commits through Hive's metastore with the expected location of a table, since a lock alone is not safe.

PyIceberg locks the table, reads its metadata location, and alters the table even if the location has changed by then.
The metastore forgets a lock after `metastore.txn.timeout`, and PyIceberg sends no heartbeats. So a commit that is
delayed for longer, by a paused worker or a slow store, would remove the commits of other writers unnoticed. A metastore
that gets the expected location alters the table only if it is still at that location (HIVE-26882: Hive 4.0.0 and
2.3.10, and some other distributions). An older metastore ignores the expected location; so each metastore is tested
before a record is read.
"""

from __future__ import annotations

import copy
import getpass
import re
import socket
import sys
from typing import TYPE_CHECKING, Any, TypeGuard
from weakref import WeakSet

from pyiceberg.catalog import METADATA_LOCATION, PREVIOUS_METADATA_LOCATION, Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate

from airflow_lakestream.exceptions import LakestreamError, Terminal

if TYPE_CHECKING:
    from pyiceberg.catalog.hive import HiveCatalog

# The text in the error of a metastore that compares locations; Iceberg's own client looks for this text, too.
_MODIFIED = "The table has been modified"
# Versions that certainly compare locations. Versions before 4 all report "3.0", with and without the comparison.
_COMPARES = re.compile(r"(?!.*alpha)([4-9]|\d\d+)\.")
# Catalogs whose metastore has passed the test of `check`.
_comparing: WeakSet[Catalog] = WeakSet()


class MetastoreDoesNotCompare(LakestreamError, Terminal):
    """Metastore without compare-and-set: a delayed commit could overwrite another commit."""

    def __init__(self, table: str, problem: str, remedy: str) -> None:
        super().__init__(
            f"{table}: {problem} With the metastore's lock alone, a delayed commit can overwrite the commit of another "
            "writer, whose rows would be lost without an error. Nothing was read. Use Hive's metastore 4.0.0 or 2.3.10 "
            f"(HIVE-26882), or a REST, Glue or SQL catalog{remedy}."
        )


class NotTaken(CommitFailedException):
    """Commit certainly without effect: the metastore got no request, or refused the request."""


def is_hive(catalog: Catalog) -> TypeGuard[HiveCatalog]:
    """Return whether a catalog is Hive's, or a subclass of Hive's."""
    # The module is not imported here: it needs Thrift, which is not installed everywhere.
    module = sys.modules.get("pyiceberg.catalog.hive")
    return module is not None and isinstance(catalog, module.HiveCatalog)


def commit_table(
    catalog: HiveCatalog, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
) -> CommitTableResponse:
    """Commit like the catalog, but only on the table just read. Raises the catalog's errors, and NotTaken."""
    client = _MetastoreClient(catalog._client)
    # The catalog itself stays as it is: it may be in use elsewhere.
    comparing = copy.copy(catalog)
    comparing._client = client  # type: ignore[assignment]
    try:
        return comparing.commit_table(table, requirements, updates)
    except CommitFailedException as e:
        if client.sent:
            raise
        raise NotTaken(str(e)) from e


def create_namespace(catalog: HiveCatalog, namespace: tuple[str, ...]) -> None:
    """Create a namespace under a lock. Raises NamespaceAlreadyExistsError.

    If two processes create it at once, the metastore refuses one and removes its folder, together with the files that
    the other process has written there meanwhile.
    """
    from hive_metastore.ttypes import LockComponent, LockLevel, LockRequest, LockState, LockType, UnlockRequest

    database = catalog.identifier_to_database(namespace)
    component = LockComponent(type=LockType.EXCLUSIVE, level=LockLevel.DB, dbname=database, isTransactional=True)
    # A connection of its own: the catalog's only connection is opened for each request.
    with catalog._create_hive_client(catalog.properties) as client:
        lock = client.lock(LockRequest([component], user=getpass.getuser(), hostname=socket.gethostname()))
        try:
            if lock.state != LockState.ACQUIRED:
                catalog._wait_for_lock(database, "", lock.lockid, client)
            catalog.create_namespace(namespace)
        finally:
            client.unlock(UnlockRequest(lock.lockid))


def check(catalog: HiveCatalog, name: str) -> None:
    """Refuse a metastore without checks of the expected location. Raises MetastoreDoesNotCompare.

    The metastore is asked for a change that no metastore makes. A catalog that has passed is not tested again. If
    the table is missing, the metastore's version decides.
    """
    if catalog in _comparing:
        return
    from hive_metastore.ttypes import (
        EnvironmentContext,
        FieldSchema,
        InvalidOperationException,
        MetaException,
        NoSuchObjectException,
    )

    database, table = catalog.identifier_to_database_and_table(name)
    with catalog._client as client:
        try:
            existing = client.get_table(dbname=database, tbl_name=table)
        except NoSuchObjectException:
            _check_version(name, client.getVersion())
            return
        # No metastore makes this change. A metastore that compares answers that the location differs, any other that
        # partition keys can't be changed.
        existing.partitionKeys = [*(existing.partitionKeys or ()), FieldSchema("lakestream_asks", "string", "")]
        context = EnvironmentContext(properties=_expecting("the location that no table has"))
        try:
            client.alter_table_with_environment_context(database, table, existing, context)
        except MetaException as e:
            if _MODIFIED not in str(e.message):
                raise
            _comparing.add(catalog)
        except InvalidOperationException as e:
            problem = f"Hive's metastore at {catalog.properties['uri']} can't compare and set a commit."
            raise MetastoreDoesNotCompare(name, problem, "") from e


def _check_version(name: str, version: str) -> None:
    """Refuse a metastore of a version without certain compare-and-set, if no table exists for a test.

    Raises MetastoreDoesNotCompare.
    """
    if not _COMPARES.match(version):
        problem = f"the version of Hive's metastore ({version}) does not show whether it can compare and set a commit."
        remedy = "; if the metastore is 2.3.10, create the table before: then the metastore is asked"
        raise MetastoreDoesNotCompare(name, problem, remedy)


def _expecting(location: str) -> dict[str, str]:
    return {"expected_parameter_key": METADATA_LOCATION, "expected_parameter_value": location}


class _MetastoreClient:
    """PyIceberg's client of the metastore, with changes of a table only from the state read before."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._open: Any = None
        # Whether the metastore got a request to change a table.
        self.sent = False

    def __enter__(self) -> _MetastoreClient:
        self._open = self._client.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._client.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._open, name)

    def create_table(self, table: Any) -> None:
        """Create a table; the metastore refuses an existing table."""
        self.sent = True
        self._open.create_table(table)

    def alter_table_with_environment_context(
        self, dbname: str, tbl_name: str, new_tbl: Any, environment_context: Any
    ) -> None:
        """Alter a table at the expected location. Raises NotTaken if the table has another location."""
        from hive_metastore.ttypes import MetaException

        # PyIceberg puts the location of the metadata that it has read into this parameter.
        environment_context.properties.update(_expecting(new_tbl.parameters[PREVIOUS_METADATA_LOCATION]))
        self.sent = True
        try:
            self._open.alter_table_with_environment_context(dbname, tbl_name, new_tbl, environment_context)
        except MetaException as e:
            if _MODIFIED in str(e.message):
                raise NotTaken(f"{dbname}.{tbl_name} was changed by another commit: {e.message}") from e
            raise
