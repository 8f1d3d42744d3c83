"""TableContentsOperator: a table's contents for the page of streams, with samples of rejected records."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_lakestream.config import arguments
from airflow_lakestream.operators.arguments import set_arguments, templated
from airflow_lakestream.operators.base import airflow_errors, late_imports
from airflow_lakestream.operators.rendering import TextRendering

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

log = logging.getLogger(__name__)


class TableContentsOperator(TextRendering, BaseOperator):
    """Look at an Iceberg table's files and newest snapshots, and at samples of the newest rejected records.

    Returns a document of at most 32 KiB, which the page of streams shows with its age; the page itself opens no
    catalog. Values behind names such as `password` are hidden in samples. Nothing is changed.

    .. seealso:: docs/page.md

    :param table: `namespace.table` (templated)
    :param consumer_group: group whose rejected records are shown; default: the DAG's id (templated)
    :param samples: rejected records shown of each reason, at most 10; 0 keeps values of records out of Airflow's
        database (templated)
    :param iceberg_conn_id: connection of type `iceberg` (templated)
    """

    ui_color = "#dfe8f7"

    def __init__(
        self,
        *,
        table: str,
        consumer_group: str = "{{ dag.dag_id }}",
        samples: int | str = 3,
        iceberg_conn_id: str = "iceberg_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        set_arguments(self, TableContentsOperator, locals(), {"samples": arguments.count_from_zero})

    template_fields: Sequence[str] = templated(__init__)

    def execute(self, context: Context) -> dict[str, Any]:
        """Look at the table, and return the document; see the class."""
        with late_imports():
            from airflow_lakestream.hooks.iceberg import IcebergHook
            from airflow_lakestream.watching.contents import TableContents

        with airflow_errors():
            work = TableContents(self.table, self.consumer_group, self.samples)
            contents = work.look(IcebergHook(self.iceberg_conn_id).open_catalog())
        log.info(
            "%s: %s data files, %s snapshots, %s rejected records of %s.",
            self.table,
            contents["files"]["data_files"],
            contents["snapshots"]["count"],
            contents["rejects"]["count"],
            self.consumer_group,
        )
        return contents
