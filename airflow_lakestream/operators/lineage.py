"""OpenLineage of operators. Without its provider, or if it is disabled, no facts are kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_lakestream.core.policies import is_given
from airflow_lakestream.operators.sql_template import SqlRendering

if TYPE_CHECKING:
    from airflow_lakestream.lineage.facts import LineageFacts


def is_lineage_enabled() -> bool:
    """Return whether OpenLineage's provider is installed and enabled."""
    try:
        from airflow.providers.openlineage.conf import is_disabled
    except ImportError:
        return False
    return not is_disabled()


class LineageReporting:
    """An operator with facts about the try's landings; OpenLineage's listener asks for them at the end.

    Mixin, right of BaseOperator: left of it a class without an `__init__` of its own would have the signature's
    defaults for mapped tasks, which are wrong (`inlets` is None).
    """

    _facts: LineageFacts | None = None

    def keep_facts(self, facts: LineageFacts | None) -> None:
        """Keep the facts of the try until the listener asks."""
        self._facts = facts

    def rows_statement(self) -> str | None:
        """Return the SQL of the rows, or None without SQL."""
        sql = self.statement() if isinstance(self, SqlRendering) else getattr(self, "sql", None)
        return str(sql) if is_given(sql) else None

    def column_sources(self) -> Mapping[str, tuple[str, ...]]:
        """Return by column of the table the topic's fields in the column, as far as certain.

        The base class knows no sources: an operator with a driver overrides this.
        """
        return {}

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the lineage of this try's landings, or None without facts.

        OpenLineage's listener calls this. `task_instance` is not used.
        """
        if self._facts is None or not (self._facts.topics or self._facts.tables):
            return None
        from airflow.providers.openlineage.extractors import OperatorLineage

        from airflow_lakestream.lineage.datasets import inputs_of, job_facets_of, outputs_of, run_facets_of

        facts = self._facts
        return OperatorLineage(
            inputs=inputs_of(facts),
            outputs=outputs_of(facts),
            run_facets=run_facets_of(facts),
            job_facets=job_facets_of(facts),
        )

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """Return the lineage of commits before the failure."""
        return self.get_openlineage_facets_on_complete(task_instance)
