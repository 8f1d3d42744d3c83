"""FlinkScriptOperator: Flink SQL of the user's own as one job, submitted once and watched from Airflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_lakestream.config.literals import Check, check_literals
from airflow_lakestream.core.secrecy import refuse_shown
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.operators.arguments import templated
from airflow_lakestream.operators.flink.base import FlinkOperator

if TYPE_CHECKING:
    from airflow_lakestream.flink.script.config import ScriptConfig


def _script(argument: str, value: object) -> None:
    from airflow_lakestream.flink.script.text import Script

    # A name of a file is read by Airflow when the task is rendered.
    if not str(value).endswith(".sql"):
        Script.parse(str(value))


def _check_database(script: str, database_conn_id: str | None) -> None:
    """Refuse a script that wants a database where none is named. Raises InvalidArgument."""
    if database_conn_id is None and "${database}" in script:
        problem = "is missing: the script has ${database}."
        raise InvalidArgument("database_conn_id", problem, "Name the connection of the database.")


_CHECKS: dict[str, Check] = {"script": _script}


class FlinkScriptOperator(FlinkOperator):
    """Run a script of Flink SQL as a job that goes on and on; see to it that there is one, that it moves and ends well.

    For what is no landing of a topic: windows, joins, other sources and sinks. **It has no ledger**: what is written,
    and whether once, is between Flink's checkpoints and the sink. `FlinkSqlOperator` lands a topic with the ledger.

    A job that fails, vanishes or stalls is restarted from its newest complete checkpoint, and never begun anew once it
    had one. Stopping it takes a savepoint, from which the next one goes on. A job that comes to the end of bounded
    sources ends the task well. Returns the report of `SparkStreamingSubmitOperator`, without batches.

    .. seealso:: docs/flink.md

    :param script: statements with a `;` between them: first `SET`, `CREATE`, `USE` and their like, then one or more
        `INSERT`s, which become one job. `${kafka}` among the options of a table stands for those of the Kafka
        connection, `${database}` for those that lead one of Flink's CDC connectors to a database. The catalog of
        `iceberg_conn_id` is there under that name. Or the name of a `.sql` file beside the DAG (templated)
    :param database_conn_id: connection of the database that the script captures, of whatever type (templated)
    :param kwargs: of `FlinkOperator`: the cluster, parallelism; of `SupervisedOperator`: checkpoint_location (which
        Flink's processes have to share), restarts, time-outs, what a kill does, deferring
    """

    template_ext: Sequence[str] = (".sql",)
    template_fields_renderers: ClassVar[dict[str, str]] = {"script": "sql"}

    def __init__(self, *, script: str, database_conn_id: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # As early as can be: a DAG with a secret in it is not written down anywhere.
        refuse_shown("script", script)
        self.script = script
        self.database_conn_id = database_conn_id
        check_literals({"script": script}, _CHECKS)
        _check_database(script, database_conn_id)

    template_fields: Sequence[str] = (*templated(__init__), *FlinkOperator.template_fields)

    def configuration(self, owner: str) -> ScriptConfig:
        """Check all arguments, and return what the driver is told. Raises InvalidArgument."""
        from airflow_lakestream.operators.flink.set_up import script_configured

        return script_configured(self, owner)

    def what(self) -> Mapping[str, Any]:
        """Return nothing: which topics and tables a script has is its own."""
        return {}
