"""New table of a first landing: staged, and created by the same commit as the first snapshot."""

from __future__ import annotations

import logging

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchNamespaceError, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import CreateTableTransaction, Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata

from airflow_lakestream.core.ports import StaleFiles
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError
from airflow_lakestream.iceberg import fitness
from airflow_lakestream.iceberg.commit import hive, retention
from airflow_lakestream.iceberg.write import layout
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.schema.change import whole_schema
from airflow_lakestream.tables.schema.columns import refuse_taken

log = logging.getLogger(__name__)

# A table that is landed into every minute stays as quick as a new one: its snapshots, its metadata files (of which the
# ledger may need older ones after an expiry) and its manifests are bounded.
DEFAULT_PROPERTIES = {
    retention.KEEP: "1000",
    "write.metadata.previous-versions-max": "100",
    "write.metadata.delete-after-commit.enabled": "true",
    "commit.manifest-merge.enabled": "true",
}

# A run that ends without a table drops the namespace that it has made, if the namespace is empty.
NAMESPACE_GONE = "another run dropped the namespace"


def planned(schema: Schema, design: TableDesign) -> TableMetadata:
    """Return the metadata of a table of the design without a catalog. Raises InvalidArgument."""
    spec, order = layout.partition_spec(schema, design.partition_by), layout.sort_order(schema, design.sort_order)
    return new_table_metadata(schema, spec, order, "", {**DEFAULT_PROPERTIES, **design.properties})


def check_new(design: TableDesign) -> None:
    """Refuse partitions and an order that a new table of the design can't have. Raises InvalidArgument.

    The design must have a schema.
    """
    planned(whole_schema(design, None), design)


class NewTable:
    """Create-table transaction, and the namespace made for the table (namespaces are outside of transactions)."""

    def __init__(self, catalog: Catalog, name: str, transaction: CreateTableTransaction, made_namespace: bool) -> None:
        self._catalog = catalog
        self._name = name
        self._made_namespace = made_namespace
        self.transaction = transaction
        # Private in PyIceberg: the staged table, which alone has the location of the new files.
        self.table: Table = transaction._table

    @classmethod
    def stage(cls, catalog: Catalog, name: str, schema: Schema, design: TableDesign) -> NewTable:
        """Stage a table of the design, and make its namespace if missing.

        Raises InvalidArgument for the design, before anything is made, and if the catalog can't create the table;
        StaleFiles if the catalog has the table by now; and the errors of `fitness.check_store`. A namespace made here
        is dropped after an error, except StaleFiles.
        """
        fitness.check_properties(design.properties)
        refuse_taken(schema, design.argument)
        spec = layout.partition_spec(schema, design.partition_by)
        order = layout.sort_order(schema, design.sort_order)
        made_namespace = make_namespace(catalog, name)
        try:
            transaction = catalog.create_table_transaction(
                name,
                schema,
                partition_spec=spec,
                sort_order=order,
                properties={**DEFAULT_PROPERTIES, **design.properties},
            )
        except TableAlreadyExistsError as e:
            # Most catalogs check this only on commit.
            raise StaleFiles(name, "another run created the table") from e
        except NoSuchNamespaceError as e:
            raise StaleFiles(name, NAMESPACE_GONE) from e
        except BaseException as e:
            if made_namespace:
                _drop_namespace(catalog, name)
            if isinstance(e, ValueError):
                argument, remedy = (
                    ("table", _ONE_LEVEL) if "hierarchical" in str(e) else ("iceberg_conn_id", _WAREHOUSE)
                )
                raise InvalidArgument(argument, f"the catalog can't create {name}: {e}.", remedy) from e
            raise
        staged = cls(catalog, name, transaction, made_namespace)
        try:
            fitness.check_store(staged.table)
        except LakestreamError:
            staged.drop_namespace_if_made()
            raise
        return staged

    def drop_namespace_if_made(self) -> None:
        """Drop an empty namespace if the table was not created; never raises."""
        if self._made_namespace:
            _drop_namespace(self._catalog, self._name)


_ONE_LEVEL = "This catalog knows namespaces of one level only: name the table namespace.table."
_WAREHOUSE = "Give the connection a `warehouse` in its extra, such as a bucket or a folder."


def make_namespace(catalog: Catalog, name: str) -> bool:
    """Make a table's namespace if missing; return True if made here, False if the namespace was there."""
    namespace = catalog.namespace_from(name)
    if catalog.namespace_exists(namespace):
        return False
    try:
        if hive.is_hive(catalog):
            hive.create_namespace(catalog, namespace)
        else:
            catalog.create_namespace(namespace)
    except Exception as e:
        # Another run made it meanwhile. SqlCatalog then raises the database's error, not PyIceberg's.
        if isinstance(e, NamespaceAlreadyExistsError) or catalog.namespace_exists(namespace):
            return False
        raise
    return True


def _drop_namespace(catalog: Catalog, name: str) -> None:
    try:
        catalog.drop_namespace(catalog.namespace_from(name))
    except Exception as e:  # noqa: BLE001  # another run may use it by now; the error under way matters more
        log.info("The namespace of %s was kept: %s", name, e)
