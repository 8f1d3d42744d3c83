"""A templated SQL statement with `{{ input }}`, which Airflow's rendering keeps."""

from __future__ import annotations

import copy
from typing import Any

from airflow_lakestream.core.policies import OF_INPUT, SqlInput, choose, is_given, is_template
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.operators.rendering import TextRendering

INPUT = "{{ input }}"
_FILE = ".sql"


def check_written_out(sql: object, sql_input: object) -> None:
    """Raise InvalidArgument for errors in a statement that are visible before rendering.

    Only a run checks the statement by DuckDB, before it connects to anything: DuckDB's import takes longer than Airflow
    should spend on a DAG file every half minute.
    """
    if not isinstance(sql_input, str) or is_template(sql_input):
        return
    chosen_input = choose(SqlInput, "sql_input", sql_input)
    if sql is None and chosen_input is not SqlInput.RAW:
        raise InvalidArgument("sql_input", "goes with sql, but sql is not set.")
    if not isinstance(sql, str) or not is_given(sql) or sql.endswith(_FILE):
        return
    if not OF_INPUT.search(sql) and not is_template(sql):
        raise InvalidArgument("sql", "it does not read from {{ input }}.", "Write SELECT ... FROM {{ input }}.")


class SqlRendering(TextRendering):
    """Mixin, left of Airflow's BaseOperator: renders the operator's statement.

    `{{ input }}` is a table that exists only while a batch is transformed, and Airflow's Jinja raises an error for an
    unknown name. So `input` is a known name here, and renders to `{{ input }}`; everything else in the statement
    renders as usual. A value that ends with `.sql` is a file next to the DAG, or below its `template_searchpath`.
    """

    def statement(self) -> Any:
        """Return the unrendered statement in the operator's arguments, or None without a statement."""
        return getattr(self, "sql", None)

    def written_statement(self) -> Any:
        """Return the statement before rendering, from the arguments or from the file."""
        sql = self.statement()
        # The environment is the operator's: this class is only a mixin.
        return _read(sql, self.get_template_env()) if isinstance(sql, str) and sql.endswith(_FILE) else sql

    # Airflow renders a mapped operator by `_do_render_template_fields` of the unmapped operator, and never calls its
    # `render_template_fields`: only this method is called in all cases.
    def render_template(
        self, content: Any, context: Any, jinja_env: Any = None, seen_oids: set[int] | None = None
    ) -> Any:
        """Render a value; the statement is rendered with `input` in the context."""
        parent: Any = super()
        if isinstance(content, str) and content is self.statement():
            # Read here and not by `template_ext`, which would also read a file for a topic with the name `x.sql`.
            if content.endswith(_FILE):
                jinja_env = jinja_env or self.get_template_env()
                content = _read(content, jinja_env)
            # A shallow copy: other fields must not get this name, and Airflow's lazy values stay lazy.
            context = copy.copy(context)
            context["input"] = INPUT
        return parent.render_template(content, context, jinja_env, seen_oids)


def _read(name: str, jinja_env: Any) -> str:
    """Return the text of a statement's file. Raises InvalidArgument for a task without a DAG."""
    if jinja_env.loader is None:
        raise InvalidArgument("sql", f"{name!r} is a file, to be read from the DAG's folder, but the task has no DAG.")
    source: str = jinja_env.loader.get_source(jinja_env, name)[0]
    return source
