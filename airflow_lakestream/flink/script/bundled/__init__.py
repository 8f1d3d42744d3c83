"""Scripts of Flink SQL that come with the package, to run or to begin with."""

from __future__ import annotations

from pathlib import Path
from string import Template

from airflow_lakestream.core.names import check_group, check_table_name, check_topic
from airflow_lakestream.exceptions import UnknownValue

_FOLDER = Path(__file__).parent


def flink_scripts() -> list[str]:
    """Return the names of the bundled scripts."""
    return sorted(path.stem for path in _FOLDER.glob("*.sql"))


def flink_script(name: str, *, topic: str, table: str, group: str, catalog: str = "iceberg_default") -> str:
    """Return a bundled script, for `FlinkScriptOperator`.

    :param name: `"clicks_by_minute"`: a tumbling window over a clickstream.
    :param topic: what it reads.
    :param table: the Iceberg table that it writes, `database.table`.
    :param group: the consumer group that Kafka knows it by.
    :param catalog: the operator's `iceberg_conn_id`.

    Raises InvalidArgument.
    """
    if name not in flink_scripts():
        raise UnknownValue("name", name, flink_scripts())
    check_topic(topic)
    check_table_name(table)
    check_group(group)
    namespace, _, quoted = ".".join(f"`{part}`" for part in table.split(".")).rpartition(".")
    text = Template((_FOLDER / f"{name}.sql").read_text())
    # `${kafka}` stays: the driver puts the connection there.
    names = {"catalog": f"`{catalog}`", "namespace": namespace, "table": f"{namespace}.{quoted}"}
    return text.safe_substitute(topic=topic, group=group, **names)
