"""Events of a task's outlet assets, with the report of the landings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow.providers.common.compat.sdk import Asset, AssetAlias

from airflow_lakestream.lakes import lake_of


def emit_to_outlets(context: Any, outlets: Iterable[Any], result: Mapping[str, Any]) -> None:
    """Put a report on the event of each outlet.

    An asset gets the report. An alias gets an asset for each written table; with several tables each asset's report has
    its own `table` and `rows`, and no `topics`.

    :param result: the report, with the rows by table in `tables`.
    """
    # An alias gets an asset for each written table, which a form or the records may have chosen.
    written = {table: rows for table, rows in result["tables"].items() if rows or len(result["tables"]) == 1}
    by_topic = {name: value for name, value in result.items() if name != "topics"}
    for outlet in outlets:
        if isinstance(outlet, AssetAlias):
            for table, rows in written.items():
                own = by_topic | {"table": table, "rows": rows} if len(written) > 1 else dict(result)
                context["outlet_events"][outlet].add(table_asset(table), extra=own)
        elif isinstance(outlet, Asset):
            context["outlet_events"][outlet].extra = dict(result)


def table_asset(table: str) -> Asset:
    """Return the asset of a table; its name is the table in the user's spelling."""
    return Asset(name=table, uri=lake_of(table).uri(table))
