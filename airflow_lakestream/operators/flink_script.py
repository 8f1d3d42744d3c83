"""FlinkScriptOperator: Flink SQL or a program of the user as a job, submitted once and watched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_lakestream.config.arguments import items
from airflow_lakestream.config.literals import Check
from airflow_lakestream.core.policies import is_given
from airflow_lakestream.core.secrecy import refuse_shown
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.operators.arguments import set_arguments, templated
from airflow_lakestream.operators.flink.base import FlinkOperator

if TYPE_CHECKING:
    from airflow_lakestream.flink.script.config import ScriptConfig


def _script(argument: str, value: object) -> None:
    from airflow_lakestream.flink.script.config import FlinkScript

    # A file's content is checked later: Airflow reads the file when the task is rendered.
    if not str(value).endswith(".sql"):
        FlinkScript.parse(str(value))


def _jar(argument: str, value: object) -> None:
    from airflow_lakestream.flink.script.config import check_jar

    check_jar(str(value))


_CHECKS: dict[str, Check] = {"script": _script, "jar": _jar, "program_arguments": items}


class FlinkScriptOperator(FlinkOperator):
    """Run Flink SQL, or a program, as a job without an end; keep the job running and moving until a good end.

    For jobs that do not land a topic: windows, joins, other sources and sinks. **It has no ledger**: only Flink's
    checkpoints and the sink decide about the written rows, and whether each is written once. `FlinkSqlOperator` lands a
    topic with the ledger.

    A job that fails, vanishes or stalls is restarted from its newest complete checkpoint, and never started from the
    beginning once it had a checkpoint. Stopping it takes a savepoint, from which the next job goes on. A job that
    reaches the end of bounded sources ends the task well. Returns the report of `SparkStreamingSubmitOperator`,
    without batches.

    .. seealso:: docs/flink.md

    :param script: statements with a `;` between them: first `SET`, `CREATE`, `USE` and the like, then one or more
        `INSERT`s, which become one job. `${kafka}` among the options of a table is replaced by the options of the Kafka
        connection, `${database}` by the options of a Flink CDC connector for a database. The catalog of
        `iceberg_conn_id` is available under that name. Or the name of a `.sql` file next to the DAG (templated)
    :param database_conn_id: connection of the database that the script captures, of any type (templated)
    :param jar: instead of a script: a file on the workers with a program of the DataStream API, which submits one
        job. It is sent to the JobManager. Another version goes on with the state of the one before, as far as Flink
        finds each of its operators (templated)
    :param entry_class: the program's class; default: the class in the jar's manifest (templated)
    :param program_arguments: arguments of the program, without secrets (templated)
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
        # Here, before Airflow stores a DAG with a secret anywhere.
        refuse_shown("script", script)
        refuse_shown("program_arguments", program_arguments)
        set_arguments(self, FlinkScriptOperator, locals(), _CHECKS)
        self._check_script_or_jar()

    template_fields: Sequence[str] = (*templated(__init__), *FlinkOperator.template_fields)

    def configuration(self, owner: str) -> ScriptConfig:
        """Check all arguments, and return the driver's configuration. Raises InvalidArgument."""
        from airflow_lakestream.operators.flink.set_up import script_configured

        return script_configured(self, owner)

    def stream_names(self) -> Mapping[str, Any]:
        """Return an empty mapping: the topics and tables of a script are not known."""
        return {}

    def _check_script_or_jar(self) -> None:
        """Raise InvalidArgument for neither a script nor a jar, or for both.

        Also for an argument of a script with a jar, for an argument of a jar with a script, and for a script with
        `${database}` without `database_conn_id`.
        """
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
