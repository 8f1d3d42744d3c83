"""What operators tell OpenLineage. Without its provider, or where that is off, nothing is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_lakestream.core.policies import is_given
from airflow_lakestream.operators.sql_template import RendersSql

if TYPE_CHECKING:
    from airflow_lakestream.lineage.facts import Facts


def is_told() -> bool:
    """Tell whether OpenLineage's provider is installed, and told where to send events to."""
    try:
        from airflow.providers.openlineage.conf import is_disabled
    except ImportError:
        return False
    return not is_disabled()


class TellsLineage:
    """An operator that keeps the facts of what its try has landed; OpenLineage's listener asks for them at the end.

    Mixin, right of BaseOperator: left of it a class without an `__init__` of its own would have the signature's
    defaults for mapped tasks, which are none (`inlets` is None).
    """

    _facts: Facts | None = None

    def keep_facts(self, facts: Facts | None) -> None:
        """Keep what the try has landed until it is asked for."""
        self._facts = facts

    def told_statement(self) -> str | None:
        """Return the SQL that makes the rows; None without any."""
        sql = self.statement() if isinstance(self, RendersSql) else getattr(self, "sql", None)
        return str(sql) if is_given(sql) else None

    def told_columns(self) -> Mapping[str, tuple[str, ...]]:
        """Return, by column of the table, the topic's fields that it is made of, as far as that is certain."""
        return {}

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return what this try has landed; None if it knows of nothing."""
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
        """Return what was committed before the failure."""
        return self.get_openlineage_facets_on_complete(task_instance)
