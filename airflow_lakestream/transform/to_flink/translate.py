"""Translation of a whole statement into Flink's SELECT.

Flink lands only rows without a doubt. A record for which Flink's result may differ from DuckDB's is left out; the
publication lands such a record by DuckDB, and compares all other rows.
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
from airflow_lakestream.transform.statement import INPUT, METADATA, Node, StatementChecker, ctes, quoted, with_input
from airflow_lakestream.transform.to_flink.expressions import ExpressionTranslator
from airflow_lakestream.transform.to_flink.functions import TYPES, FlinkExpression, NotCommon, digits_of, name

SOURCE = "source"
POSITION = ("_kafka_topic", "_kafka_partition", "_kafka_offset", "_kafka_timestamp")
# The most characters of Flink's SELECT, which repeats an expression for each mention and each doubt.
_LONGEST = 400_000
_NO_TIME = (
    "(CAST(`_kafka_timestamp` AS TIMESTAMP(3)) NOT BETWEEN TIMESTAMP '1970-01-01 00:00:00' AND "
    "TIMESTAMP '9999-12-31 23:59:59')"
)
# The condition for a text with the character by which a decoder replaces invalid UTF-8.
_NO_TEXT = "(POSITION('\ufffd' IN {0}) > 0)"
_NOT_IN_FLINK = ("headers", "_kafka_headers", "_kafka_key")


def translated(sql: str, columns: pa.Schema, *, raw: bool) -> str:
    """Return Flink's SELECT from `source` for a statement: the result columns, and each record's position.

    The SELECT leaves out records for which Flink's result might differ from DuckDB's.

    :param columns: the statement's input columns.
    :param raw: whether the columns are the text of Kafka's records; otherwise Flink has decoded the columns.

    Raises InvalidArgument for a statement that DuckDB refuses, that is too long, or that is not in the common subset
    (NotCommon).
    """
    database = open_database("64MB", 1)
    try:
        database.register(INPUT, no_rows(columns))
        names = frozenset(column.lower() for column in columns.names)
        node = StatementChecker(scalar_functions(), names).statement(parse(database, with_input(sql)))
        select, _ = _SelectTranslator(database, raw).select(node, {})
    except NotCommon as refused:
        raise refused.placed(sql) from None
    except duckdb.Error as error:
        raise InvalidArgument("sql", f"DuckDB can't bind it: {error_text(error)}.") from None
    finally:
        database.close()
    if len(select) > _LONGEST:
        raise InvalidArgument("sql", "Flink's form of it is too long: functions of functions repeat what is in them.")
    return select


# Names and DuckDB's types of columns.
Columns = Sequence[tuple[str, str]]


class _SelectTranslator:
    def __init__(self, database: duckdb.DuckDBPyConnection, raw: bool) -> None:
        self._database = database
        self._raw = raw

    def select(self, node: Node, tables: Mapping[str, tuple[str, Columns]]) -> tuple[str, Columns]:
        """Return Flink's SELECT, and its columns without the columns of the records' positions.

        :param tables: SELECT and columns of each query of WITH, by name in lower case.
        """
        for cte, _, query in ctes(node):
            tables = {**tables, cte.lower(): self.select(query, tables)}
        source = node["from_table"]
        if source["type"] == "SUBQUERY":
            (inner, columns), alias, is_base = self.select(source["subquery"]["node"], tables), "", False
        elif (table_name := source["table_name"].lower()) == INPUT:
            inner, columns, alias, is_base = SOURCE, self._columns_of_input(), INPUT, True
        else:
            (inner, columns), alias, is_base = tables[table_name], table_name, False
        alias = source["alias"] or alias or "inner_rows"
        scope = _SelectScope(self._database, alias, columns, self._raw and is_base)
        parts = scope.items(node["select_list"])
        condition = node["where_clause"]
        doubts = [_NO_TIME] if is_base else []
        doubts += [doubt for _, part in parts for doubt in part.doubts]
        where = []
        if condition:
            translated_condition = scope.expressions.as_kind(condition, "BOOLEAN")
            doubts, where = [*doubts, *translated_condition.doubts], [translated_condition.sql]
        where += [f"{doubt} IS NOT TRUE" for doubt in dict.fromkeys(doubts)]
        listed = [f"{part.sql} AS {name(column)}" for column, part in parts]
        listed += [name(column) for column in POSITION]
        inner = inner if is_base else f"({inner})"
        sql = f"SELECT {', '.join(listed)} FROM {inner} AS {name(alias)}"
        if where:
            sql += f" WHERE {' AND '.join(where)}"
        return sql, [(column, part.kind) for column, part in parts]

    def _columns_of_input(self) -> Columns:
        relation = self._database.sql(f"SELECT * FROM {INPUT}")
        return list(zip(relation.columns, map(str, relation.types), strict=True))


class _SelectScope:
    """Scope of a SELECT: the source's columns, and the translator of the expressions.

    :param alias: the source's name in the statement.
    :param is_raw: whether the columns are the text of Kafka's records.
    """

    def __init__(self, database: duckdb.DuckDBPyConnection, alias: str, columns: Columns, is_raw: bool) -> None:
        self._database = database
        self._alias = alias.lower()
        self._columns = {column.lower(): (column, kind) for column, kind in columns}
        self._is_raw = is_raw
        # A SELECT from columns of the same names and types, for DuckDB to bind an expression.
        nulls = ", ".join(f"CAST(NULL AS {kind}) AS {quoted(column)}" for column, kind in columns)
        self._typed = parse(database, f"SELECT 1 FROM (SELECT {nulls}) AS {quoted(alias)}")["statements"][0]["node"]
        self._kinds: dict[str, str] = {}
        self.expressions = ExpressionTranslator(self.column, self.kind_of)

    def kind_of(self, node: Node) -> str:
        """Return DuckDB's type of an expression, as DuckDB itself binds the expression."""
        key = json.dumps(node)
        if key not in self._kinds:
            select = {**deepcopy(self._typed), "select_list": [{**node, "alias": "it"}]}
            (kind,) = self._database.sql(unparse(self._database, select)).types
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
        """Return the expression for a column by its lower-case name; an error has the place of `node`."""
        column, kind = self._columns[key]
        if self._is_raw and key in _NOT_IN_FLINK:
            raise NotCommon(f"the column {key}", node)
        if kind not in TYPES and digits_of(kind) is None:
            raise NotCommon(f"the column {column} of type {kind}", node)
        if not self._is_raw or key not in ("key", "value"):
            return FlinkExpression(name(column), kind)
        # Flink has replaced invalid UTF-8 in raw texts.
        doubts = [_NO_TEXT.format(name(key))]
        if key == "value":
            doubts.append(f"({name(key)} IS NULL)")
        return FlinkExpression(name(column), kind, tuple(doubts))

    def items(self, listed: Sequence[Node]) -> list[tuple[str, FlinkExpression]]:
        """Return names and expressions of a SELECT's columns, with `*` expanded. Raises NotCommon."""
        items: list[tuple[str, FlinkExpression]] = []
        for item in listed:
            if item["class"] != "STAR":
                items.append((item["alias"] or item["column_names"][-1], self.expressions.of(item)))
                continue
            if any(item.get(clause) for clause in ("replace_list", "rename_list", "expr", "columns")):
                raise NotCommon("* with REPLACE, RENAME or a pattern", item)
            excluded = {str(column).lower() for column in item["exclude_list"]}
            for key, (column, _) in self._columns.items():
                if key not in excluded and not (key.startswith(METADATA) and self._is_raw) and key not in POSITION:
                    items.append((column, self._column(key, item)))
        return items
