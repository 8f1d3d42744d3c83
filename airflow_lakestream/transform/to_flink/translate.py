"""Translation of a whole statement into Flink's SELECT.

Flink lands the rows without any doubt. A record for which a part of the statement may mean something else to DuckDB
is left out; the publication lets DuckDB land it, and compares the other rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy

import duckdb
import pyarrow as pa

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.row_buffer import no_rows
from airflow_lakestream.transform.engine import error_text
from airflow_lakestream.transform.sandbox import open_database, parse, scalar_functions, unparse
from airflow_lakestream.transform.statement import INPUT, METADATA, Node, StatementChecker, ctes, with_input
from airflow_lakestream.transform.to_flink.expressions import ExpressionTranslator
from airflow_lakestream.transform.to_flink.functions import (
    TYPES,
    FlinkExpression,
    NotCommon,
    digits_of,
    flink_type,
    name,
    text,
)

SOURCE = "source"
POSITION = ("_kafka_topic", "_kafka_partition", "_kafka_offset", "_kafka_timestamp")
# A document is looked up for each part of an expression that mentions it.
_LONGEST = 400_000
_NO_TIME = (
    "(CAST(`_kafka_timestamp` AS TIMESTAMP(3)) NOT BETWEEN TIMESTAMP '1970-01-01 00:00:00' AND "
    "TIMESTAMP '9999-12-31 23:59:59')"
)
# The replacement that a decoder writes for invalid UTF-8.
_NO_TEXT = "(POSITION(" + text("\ufffd") + " IN {0}) > 0)"
_NOT_IN_FLINK = ("headers", "_kafka_headers", "_kafka_key")


def translated(sql: str, columns: pa.Schema, *, raw: bool) -> str:
    """Return Flink's SELECT from `source` for a statement: the result columns, and each record's position.

    The SELECT leaves out records for which Flink's result might differ from DuckDB's.

    :param columns: the columns that the statement reads.
    :param raw: True: the columns are the text of Kafka's records; False: Flink has decoded the columns.

    Raises InvalidArgument for a statement that DuckDB refuses, that is too long, or that is not in the common subset
    (NotCommon).
    """
    database = open_database("64MB", 1)
    try:
        database.register(INPUT, no_rows(columns))
        known = frozenset(one.lower() for one in columns.names)
        node = StatementChecker(scalar_functions(), known).statement(parse(database, with_input(sql)))
        made, _ = _SelectTranslator(database, raw).select(node, {})
    except NotCommon as refused:
        raise refused.placed(sql) from None
    except duckdb.Error as error:
        raise InvalidArgument("sql", f"DuckDB can't bind it: {error_text(error)}.") from None
    finally:
        database.close()
    if len(made) > _LONGEST:
        raise InvalidArgument("sql", "Flink's form of it is too long: functions of functions repeat what is in them.")
    return made


Columns = Sequence[tuple[str, str]]


class _SelectTranslator:
    def __init__(self, database: duckdb.DuckDBPyConnection, raw: bool) -> None:
        self._database = database
        self._raw = raw

    def select(self, node: Node, tables: Mapping[str, tuple[str, Columns]]) -> tuple[str, Columns]:
        """Return Flink's SELECT, and the names and types of its columns; the positions are added to the SELECT.

        :param tables: SELECT and columns of each query of WITH, by name in lower case.
        """
        for cte, _, query in ctes(node):
            tables = {**tables, cte.lower(): self.select(query, tables)}
        source = node["from_table"]
        if source["type"] == "SUBQUERY":
            (inner, columns), alias, is_base = self.select(source["subquery"]["node"], tables), "", False
        elif (called := source["table_name"].lower()) == INPUT:
            inner, columns, alias, is_base = SOURCE, self._columns_of_input(), INPUT, True
        else:
            (inner, columns), alias, is_base = tables[called], called, False
        alias = source["alias"] or alias or "inner_rows"
        scope = _SelectScope(self._database, alias, columns, self._raw and is_base)
        parts = [
            (one, scope.expressions.of(item)) if isinstance(item, dict) else (one, item)
            for one, item in scope.items(node["select_list"])
        ]
        condition = node["where_clause"]
        doubts = [_NO_TIME] if is_base else []
        doubts += [doubt for _, part in parts for doubt in part.doubts]
        where = []
        if condition:
            found = scope.expressions.as_kind(condition, "BOOLEAN")
            doubts, where = [*doubts, *found.doubts], [found.sql]
        where += [f"{doubt} IS NOT TRUE" for doubt in dict.fromkeys(doubts)]
        listed = [f"{part.sql} AS {name(one)}" for one, part in parts]
        listed += [name(one) for one in POSITION]
        inner = inner if is_base else f"({inner})"
        sql = f"SELECT {', '.join(listed)} FROM {inner} AS {name(alias)}"
        return (f"{sql} WHERE {' AND '.join(where)}" if where else sql), [(one, part.kind) for one, part in parts]

    def _columns_of_input(self) -> Columns:
        relation = self._database.sql(f"SELECT * FROM {INPUT}")
        return list(zip(relation.columns, map(str, relation.types), strict=True))


class _SelectScope:
    """Scope of a SELECT: the input's columns, and the translator of the expressions."""

    def __init__(self, database: duckdb.DuckDBPyConnection, alias: str, columns: Columns, is_raw: bool) -> None:
        self._database = database
        self._alias = alias.lower()
        self._columns = {one.lower(): (one, kind) for one, kind in columns}
        self._is_raw = is_raw
        nulls = ", ".join(f"CAST(NULL AS {kind}) AS {_quoted(one)}" for one, kind in columns)
        self._typed = parse(database, f"SELECT 1 FROM (SELECT {nulls}) AS {_quoted(alias)}")["statements"][0]["node"]
        self._kinds: dict[str, str] = {}
        self.expressions = ExpressionTranslator(self.column, self.kind_of)

    def kind_of(self, node: Node) -> str:
        """Return DuckDB's type of an expression, as DuckDB itself binds the expression."""
        key = json.dumps(node)
        if key not in self._kinds:
            asked = {**deepcopy(self._typed), "select_list": [{**node, "alias": "it"}]}
            (kind,) = self._database.sql(unparse(self._database, asked)).types
            self._kinds[key] = str(kind)
        return self._kinds[key]

    def column(self, node: Node) -> FlinkExpression:
        """Return the expression for a reference to a column.

        Raises NotCommon for a column that Flink does not have, InvalidArgument for an unknown column.
        """
        *qualified, last = node["column_names"]
        if qualified and (len(qualified) > 1 or qualified[0].lower() != self._alias):
            raise NotCommon(".".join(node["column_names"]), node)
        if last.lower() not in self._columns:
            raise InvalidArgument("sql", f"there is no column {last}.", f"There are {', '.join(self._columns)}.")
        return self._column(last.lower(), node)

    def _column(self, key: str, node: Node) -> FlinkExpression:
        # Flink replaces invalid UTF-8 in raw texts, so a text with the replacement is in doubt.
        called, kind = self._columns[key]
        if self._is_raw and key in _NOT_IN_FLINK:
            raise NotCommon(f"the column {key}", node)
        if kind not in TYPES and digits_of(kind) is None:
            raise NotCommon(f"the column {called} of type {kind}", node)
        flink_type(kind, node)
        if not self._is_raw or key not in ("key", "value"):
            return FlinkExpression(name(called), kind)
        doubts = [_NO_TEXT.format(name(key))]
        if key == "value":
            doubts.append(f"({name(key)} IS NULL)")
        return FlinkExpression(name(called), kind, tuple(doubts))

    def items(self, listed: Sequence[Node]) -> list[tuple[str, Node | FlinkExpression]]:
        """Return names and expressions of a SELECT's columns, with `*` expanded. Raises NotCommon."""
        found: list[tuple[str, Node | FlinkExpression]] = []
        for item in listed:
            if item["class"] != "STAR":
                found.append((item["alias"] or item["column_names"][-1], item))
                continue
            if any(item.get(one) for one in ("replace_list", "rename_list", "expr", "columns")):
                raise NotCommon("* with REPLACE, RENAME or a pattern", item)
            left_out = {str(one).lower() for one in item["exclude_list"]}
            for key, (called, _) in self._columns.items():
                if key not in left_out and not (key.startswith(METADATA) and self._is_raw) and key not in POSITION:
                    found.append((called, self._column(key, item)))
        return found


def _quoted(called: str) -> str:
    return '"' + called.replace('"', '""') + '"'
