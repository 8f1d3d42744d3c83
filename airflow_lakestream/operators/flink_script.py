"""FlinkScriptOperator: Flink SQL or a program of the user's own as one job, submitted once and watched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_lakestream.config.arguments import items
from airflow_lakestream.config.literals import Check, check_literals
from airflow_lakestream.core.policies import is_given
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


def _jar(argument: str, value: object) -> None:
    from airflow_lakestream.flink.script.jar import check_jar

    check_jar(str(value))


_CHECKS: dict[str, Check] = {"script": _script, "jar": _jar, "program_arguments": items}


class FlinkScriptOperator(FlinkOperator):
    """Run Flink SQL, or a program, as a job that goes on and on; see that there is one, that it moves and ends well.

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
    :param jar: in the place of a script: a file on the workers with a program of the DataStream API, which submits one
        job. It is sent to the JobManager. Another version goes on with the state of the one before, as far as Flink
        finds each of its operators (templated)
    :param entry_class: the program's class; default: what the jar's manifest names (templated)
    :param program_arguments: what the program is given, without secrets (templated)
    :param kwargs: of `FlinkOperator`: the cluster, parallelism; of `SupervisedOperator`: checkpoint_location (which
        Flink's processes have to share), restarts, time-outs, what a kill does, deferring
    """

    template_ext: Sequence[str] = (".sql",)
    template_fields_renderers: ClassVar[dict[str, str]] = {"script": "sql"}

    def __init__(
        self,
        *,
        script: str | None = None,
        database_conn_id: str | None = None,
        jar: str | None = None,
        entry_class: str | None = None,
        program_arguments: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # As early as can be: a DAG with a secret in it is not written down anywhere.
        refuse_shown("script", script)
        refuse_shown("program_arguments", program_arguments)
        self.script = script
        self.database_conn_id = database_conn_id
        self.jar = jar
        self.entry_class = entry_class
        self.program_arguments = program_arguments
        check_literals({name: getattr(self, name) for name in _CHECKS}, _CHECKS)
        self._check_one()

    template_fields: Sequence[str] = (*templated(__init__), *FlinkOperator.template_fields)

    def configuration(self, owner: str) -> ScriptConfig:
        """Check all arguments, and return what the driver is told. Raises InvalidArgument."""
        from airflow_lakestream.operators.flink.set_up import script_configured

        return script_configured(self, owner)

    def what(self) -> Mapping[str, Any]:
        """Return nothing: which topics and tables a script has is its own."""
        return {}

    def _check_one(self) -> None:
        """Refuse what is neither a script nor a program, or both. Raises InvalidArgument."""
        if is_given(self.script) == is_given(self.jar):
            problem = "and jar are both given." if is_given(self.jar) else "is missing, and there is no jar."
            raise InvalidArgument("script", problem, "Give one of the two.")
        for name in ("entry_class", "program_arguments") if is_given(self.script) else ("database_conn_id",):
            if is_given(getattr(self, name)):
                other = "jar" if is_given(self.script) else "script"
                raise InvalidArgument(name, f"goes with {other}.", "Leave it out.")
        if not is_given(self.database_conn_id) and "${database}" in str(self.script):
            problem = "is missing: the script has ${database}."
            raise InvalidArgument("database_conn_id", problem, "Name the connection of the database.")
