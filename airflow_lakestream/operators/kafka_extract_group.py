"""kafka_extract_group: a landing of a Kafka topic on several workers, in one snapshot, exactly once."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowSkipException, TaskGroup

from airflow_lakestream.config.setting import SettingTaker
from airflow_lakestream.config.settings import refuse_for
from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.core.policies import OnEmpty, choose
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.operators.arguments import extras_of
from airflow_lakestream.operators.base import airflow_errors, keep_freed_memory, late_imports, need_extras
from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_lakestream.core.landing.job import LandingJob
    from airflow_lakestream.run.job import ExtractConfig, Lake

log = logging.getLogger(__name__)

# XCom key of the bounds for the commit; the shares are the return value of the task `plan`.
BOUNDS = "bounds"
# Ids of the tasks.
PLAN, READ, COMMIT = "plan", "read", "commit"


def kafka_extract_group(
    group_id: str, *, tasks: int = 4, outlets: Sequence[Any] | None = None, **arguments: Any
) -> TaskGroup:
    """Land a topic by several tasks: `plan`, mapped `read` tasks in parallel, and `commit`, in a single snapshot.

    The plan is cut into shares of equal width; partitions with much to read are split. Each `read` task writes the
    files of its share and hands over their metadata; `commit` puts all of them and the ledger into one snapshot, and
    returns the report of `KafkaExtractOperator`. A failed `read` task fails the group, which then lands nothing; a
    `read` task that ran twice changes nothing. `commit` deletes files that are not in the snapshot.

    Raises InvalidArgument for values that only `KafkaExtractOperator` takes: `replace`, `idle_timeout`, `parallelism`,
    `unknown_fields="evolve"`, a topic regex and tables chosen by records.

    .. seealso:: docs/operators/kafka_extract_group.md

    :param group_id: the task group's id
    :param tasks: most `read` tasks of a run; few records make fewer
    :param outlets: assets, or an `AssetAlias`, of the table; updated by `commit`
    :param arguments: arguments of `KafkaExtractOperator`, and of every operator, such as `retries` and `pool`, for each
        of the tasks; a `trigger_rule` is for the group, which begins with `plan`
    """
    if isinstance(tasks, bool) or not isinstance(tasks, int) or tasks < 1:
        raise InvalidArgument("tasks", f"{tasks!r} is not a number of tasks above 0.")
    refuse_for(SettingTaker.GROUP, arguments)
    plan_rule = {"trigger_rule": arguments.pop("trigger_rule")} if "trigger_rule" in arguments else {}
    with TaskGroup(group_id=group_id) as group:
        plan = PlanSharesOperator(task_id=PLAN, tasks=tasks, **plan_rule, **arguments)
        # The operator's form of the schema: Airflow can't serialize an Arrow schema.
        arguments = {**arguments, "schema": plan.schema}
        # With these two rules a run lands the whole plan or nothing; set here, since a DAG's default_args may differ.
        readers = ReadShareOperator.partial(task_id=READ, trigger_rule="all_success", **arguments)
        read = readers.expand(share=plan.output)
        commit = CommitPiecesOperator(
            task_id=COMMIT, trigger_rule="none_failed", pieces=read.output, outlets=outlets, **arguments
        )
        plan >> commit
    return group


class _SharedRunOperator(KafkaExtractOperator):
    """Base of the three tasks, which have the same arguments and the same run id."""

    def _prepare(self, context: Context) -> tuple[ExtractConfig, LandingJob, Lake]:
        """Return the landing's configuration, job and lake. Raises InvalidArgument."""
        self._stop = threading.Event()
        self._link(context)
        with late_imports():
            from airflow_lakestream.hooks.kafka import KafkaHook
            from airflow_lakestream.hooks.places import open_lake
            from airflow_lakestream.run.job import build_job

        keep_freed_memory()
        need_extras(*extras_of(self))
        choose(OnEmpty, "on_empty", self.on_empty)
        kafka = KafkaHook(self.kafka_conn_id)
        config = self.configured(context, kafka)
        refuse_for(SettingTaker.GROUP, vars(config))
        config = config.of_topic(config.topic)
        lake = open_lake(config, self.iceberg_conn_id, self.storage_conn_id)
        configuration = kafka.configuration()
        job = build_job(config, configuration, lake, run_id=_run_key(context), where=kafka.where, stop=self._stop)
        return config, replace(job, committed=self._on_commit(context, config, lake, configuration)), lake


class PlanSharesOperator(_SharedRunOperator):
    """Plan a run, and cut the plan into shares; made by `kafka_extract_group`.

    :param tasks: most shares
    """

    def __init__(self, *, tasks: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tasks = tasks

    def execute(self, context: Context) -> list[dict[str, Any]]:  # type: ignore[override]  # shares, not a report
        """Plan the run, return the shares, and push the bounds for the commit as XCom."""
        from airflow_lakestream.core.sharing.parallel import plan_shares
        from airflow_lakestream.core.sharing.pieces import ranges_to_dict

        with airflow_errors():
            _, job, _ = self._prepare(context)
            plan = plan_shares(job, self.tasks)
        within = None if plan.within is None else ranges_to_dict(plan.identity, plan.within)
        context["ti"].xcom_push(key=BOUNDS, value={"within": within})
        return [share.to_dict() for share in plan.shares]


class ReadShareOperator(_SharedRunOperator):
    """Read a share, and write the share's files; made by `kafka_extract_group`.

    :param share: the share that `PlanSharesOperator` returned for this task (templated)
    """

    template_fields: Sequence[str] = (*KafkaExtractOperator.template_fields, "share")

    def __init__(self, *, share: Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.share = share

    def execute(self, context: Context) -> list[dict[str, Any]]:  # type: ignore[override]  # pieces, not a report
        """Read the share, write the files without a commit, and return the pieces.

        A piece has offsets, counts and the metadata of files.
        """
        from airflow_lakestream.core.landing.run_log import counts_text
        from airflow_lakestream.core.sharing.parallel import folder_of, read_share
        from airflow_lakestream.core.sharing.pieces import PlanShare
        from airflow_lakestream.run.storage import storage_errors_named

        with airflow_errors():
            _, job, lake = self._prepare(context)
            with storage_errors_named(job.table, lake):
                pieces = read_share(job, PlanShare.from_dict(self.share), folder_of(job.run_id))
        read = sum((piece.counts for piece in pieces), Counts())
        log.info(
            "Read %s, and handed them over in %s pieces; the task %s lands them.",
            counts_text(read),
            len(pieces),
            COMMIT,
        )
        return [piece.to_dict() for piece in pieces]


class CommitPiecesOperator(_SharedRunOperator):
    """Land the handed over files of the read tasks, in one snapshot; made by `kafka_extract_group`.

    :param pieces: the pieces that each `ReadShareOperator` returned (templated)
    """

    template_fields: Sequence[str] = (*KafkaExtractOperator.template_fields, "pieces")

    def __init__(self, *, pieces: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pieces = pieces

    def execute(self, context: Context) -> dict[str, Any]:
        """Land the pieces of all read tasks, and return the report.

        Raises AirflowSkipException if the plan was skipped.
        """
        from airflow_lakestream.core.sharing.parallel import folder_of, land_pieces
        from airflow_lakestream.core.sharing.pieces import SharePiece, ranges_from_dict
        from airflow_lakestream.run.maintenance.after_landing import LandingUpkeep
        from airflow_lakestream.run.storage import storage_errors_named
        from airflow_lakestream.run.topics import RunReport

        ti, deadline = context["ti"], self._deadline()
        bounds = ti.xcom_pull(task_ids=f"{_group_of(context)}.{PLAN}", key=BOUNDS)
        if bounds is None:
            raise AirflowSkipException("nothing was planned: the plan was skipped.")
        with airflow_errors():
            config, job, lake = self._prepare(context)
            within = None if bounds["within"] is None else ranges_from_dict(bounds["within"])
            pieces = [SharePiece.from_dict(piece) for piece in _flat(self.pieces)]
            with storage_errors_named(job.table, lake):
                report = land_pieces(job, pieces, within, folder_of(job.run_id))
            LandingUpkeep(lake, config.maintain_mode, job.stop, deadline).run(job, report)
        tables = Counter({config.table: report.counts.written})
        run = RunReport(config.topic, config.table, config.consumer_group, {config.topic: report}, tables)
        return self._report(context, run, config, choose(OnEmpty, "on_empty", self.on_empty))


def _flat(pieces: Iterable[Iterable[Mapping[str, Any]]] | None) -> Iterable[Mapping[str, Any]]:
    """Return the pieces of all read tasks; a task that a person marked as a success has returned None."""
    return (piece for of_task in pieces or () for piece in of_task or ())


def _group_of(context: Any) -> str:
    group, _, _ = context["ti"].task_id.rpartition(".")
    return str(group)


def _run_key(context: Any) -> str:
    """Return the run id that a group's tasks share: the run key of the task `commit`."""
    ti = context["ti"]
    return f"{ti.dag_id}/{_group_of(context)}.{COMMIT}/{ti.run_id}/-1"
