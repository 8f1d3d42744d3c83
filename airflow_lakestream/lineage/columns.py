"""Column lineage of a statement in SQL: only origins that are certain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from airflow_lakestream.config.sql import SqlStatement
from airflow_lakestream.core.policies import SqlInput
from airflow_lakestream.transform.sandbox import parse
from airflow_lakestream.transform.statement import INPUT, Node, ctes, expressions, with_input


def columns_of(sql: SqlStatement | None) -> dict[str, tuple[str, ...]]:
    """Return for each column of a statement's result the decoded columns in its expression.

    A column is left out if a part of its expression may be something else: metadata of the record, another column's
    alias, a parameter of a lambda, a field of a struct. The result is empty without a statement, and for raw records,
    `*`, WITH, and a FROM with more than the input.
    """
    if sql is None or sql.input is not SqlInput.DECODED or sql.given is None:
        return {}
    import duckdb

    with duckdb.connect() as database:
        parsed = parse(database, with_input(sql.text))
    # The run has checked that the text is exactly one statement without an error.
    node: Node = parsed["statements"][0]["node"]
    is_select = node["type"] == "SELECT_NODE" and not any(ctes(node))
    if not is_select or str(node["from_table"].get("table_name", "")).lower() != INPUT:
        return {}
    return _certain_lineage(node["select_list"], {field.name.lower(): field.name for field in sql.given.fields})


def _certain_lineage(items: Sequence[Node], columns: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the lineage of the items of a SELECT; see `columns_of`.

    :param columns: the names of the decoded columns, by the name in lower case.
    """
    lineage: dict[str, tuple[str, ...]] = {}
    aliases: set[str] = set()
    for item in items:
        if item["class"] == "STAR":
            return {}
        name = str(item["alias"] or item.get("column_names", [""])[-1])
        origins = _source_columns(expressions(item), columns, aliases)
        if origins:
            lineage[name] = origins
        if item["alias"]:
            aliases.add(name.lower())
    return lineage


def _source_columns(nodes: Iterable[Node], columns: Mapping[str, str], aliases: set[str]) -> tuple[str, ...]:
    """Return the decoded columns in an expression, or an empty tuple if any part may be something else."""
    columns_used: dict[str, None] = {}
    for node in nodes:
        if node["class"] in ("LAMBDA", "LAMBDA_REF"):
            return ()
        if node["class"] != "COLUMN_REF":
            continue
        [*qualifiers, name] = (str(part).lower() for part in node["column_names"])
        if qualifiers or name not in columns or name in aliases:
            return ()
        columns_used[columns[name]] = None
    return tuple(columns_used)
