"""Links on a task's page: the operator pushes them while the task runs, as soon as the driver is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseOperatorLink, XCom

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class _PushedLink(BaseOperatorLink):
    """A link whose address the operator pushes."""

    name = ""

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the pushed address; empty until there is one."""
        try:
            value: Any = XCom.get_value(key=self.xcom_key, ti_key=ti_key)
        except Exception:  # noqa: BLE001  # a link that can't be had is no reason to fail a task
            return ""
        return str(value or "")


class SparkUILink(_PushedLink):
    """The Spark UI of the driver: its batches, jobs and executors."""

    name = "Spark UI"


class DriverLogLink(_PushedLink):
    """The driver's log."""

    name = "Driver log"


class TopicLink(_PushedLink):
    """The topic's page in a topic browser; `topic_url` is its address."""

    name = "Topic"


class TableLink(_PushedLink):
    """The table's page in a table browser; `table_url` is its address."""

    name = "Table"
