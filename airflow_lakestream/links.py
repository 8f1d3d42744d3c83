"""Links on a task's page in Airflow. The operator pushes an address while the task runs, once the page exists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.providers.common.compat.sdk import BaseOperatorLink, XCom

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


def links_until_run(*links: _PushedLink) -> Any:
    """Return a property for an operator's `operator_extra_links`: the links until the task has run, then no link.

    After a task has run, Airflow pushes the address of each link in the property again: for a missing page that would
    be an empty link. The operator sets `_has_run` at its end. A link with an `argument` is left out if the operator
    does not have that argument.
    """

    def current_links(operator: Any) -> tuple[_PushedLink, ...]:
        if getattr(operator, "_has_run", False):
            return ()
        return tuple(link for link in links if not link.argument or _argument_of(operator, link.argument))

    return property(current_links)


def _argument_of(operator: Any, argument: str) -> Any:
    # A mapped operator has its arguments in `partial_kwargs`.
    return getattr(operator, argument, None) or getattr(operator, "partial_kwargs", {}).get(argument)


def push_pages(ti: Any, names: Mapping[str, Any], topic_url: str | None, table_url: str | None) -> None:
    """Push the links to the pages of topic and table. A link without a known name or address is left out.

    :param ti: the task instance.
    :param names: the names of `topic` and `table`, as far as they are known.
    :param topic_url: address of a topic's page, with `{topic}` for the name; None for no link.
    :param table_url: address of a table's page, with `{table}` for the name; None for no link.
    """
    for link, name, url in ((TopicLink(), "topic", topic_url), (TableLink(), "table", table_url)):
        if url and (value := names.get(name)):
            ti.xcom_push(key=link.xcom_key, value=url.replace(f"{{{name}}}", quote(str(value), safe="")))


class _PushedLink(BaseOperatorLink):
    """A link to an address that the operator pushes as an XCom, as soon as it is known."""

    name = ""
    # The operator's argument without which there is no link; empty: the link needs none.
    argument = ""

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the pushed address, or an empty text without an address."""
        try:
            value: Any = XCom.get_value(key=self.xcom_key, ti_key=ti_key)
        except Exception:  # noqa: BLE001  # a missing link must not fail a task
            return ""
        return str(value or "")


class SparkUILink(_PushedLink):
    """The Spark UI of the driver: batches, jobs and executors."""

    name = "Spark UI"


class FlinkLink(_PushedLink):
    """Flink's dashboard: jobs and checkpoints."""

    name = "Flink"


class DriverLogLink(_PushedLink):
    """The driver's log."""

    name = "Driver log"


class TopicLink(_PushedLink):
    """The topic's page in a topic browser, with `topic_url` as address."""

    name = "Topic"
    argument = "topic_url"


class TableLink(_PushedLink):
    """The table's page in a table browser, with `table_url` as address."""

    name = "Table"
    argument = "table_url"
