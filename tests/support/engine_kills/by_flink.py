"""A landing by Flink whose processes are killed: the cluster's, the driver, the task's, the triggerer."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from airflow_lakestream.driver.detached import kill_process
from airflow_lakestream.driver.lease import request_stop
from airflow_lakestream.driver.lease_record import LeaseRecord, LeaseState
from airflow_lakestream.flink.checkpoints import CHECKPOINT, JOB
from airflow_lakestream.iceberg.ledger_store import summary_of
from dev.services.flink import FlinkDaemon
from dev.stack import Stack
from tests.support.engine_kills.killed_stream import Blow, KilledStream
from tests.support.engine_kills.stream_task import StreamTask
from tests.support.flink import FlinkLanding, kill

OPERATOR = "airflow_lakestream.operators.flink_sql.FlinkSqlOperator"


class FlinkUnderKills(KilledStream):
    """A stream of FlinkSqlOperator."""

    def __init__(self, landing: FlinkLanding, counts: dict[int, int], task: StreamTask, stack: Stack) -> None:
        super().__init__(landing.lake, landing.topic, counts, task)
        self._landing = landing
        self._stack = stack

    @property
    def blows(self) -> Mapping[str, Blow]:
        flink = self._landing.flink
        return {
            "TaskManager": lambda _: _killed(flink.worker),
            "JobManager": lambda _: _killed(flink.manager),
            "SQL Gateway": self._kill_gateway,
            "driver": lambda _: self._kill_driver(),
            "task": self.kill_task,
            "triggerer": self.kill_triggerer,
            "TaskManager, between a checkpoint and its commit": self._kill_before_commit,
            "driver, in a publication": lambda chance: self.kill_in_publication(chance, self._kill_driver),
        }

    def mend(self) -> None:
        self._landing.flink = self._stack.up_flink()

    def ask_to_stop(self) -> None:
        request_stop(self._landing.location, "the play")

    def kill_task(self, chance: Random) -> bool:
        """Do so; while it is deferred its machine is lost, and the driver with it."""
        if self.task.state == "deferred":
            self._kill_driver()
        return super().kill_task(chance)

    def kill_triggerer(self, chance: Random) -> bool:
        """Do so, and sometimes the driver while nobody looks."""
        super().kill_triggerer(chance)
        return chance.random() < 0.5 and self._kill_driver()

    def _kill_gateway(self, chance: Random) -> bool:
        # A job needs it for its start alone: sometimes there has to be a start.
        if needs_it := chance.random() < 0.5:
            kill(self._landing.flink.manager.pid)
        kill(self._landing.flink.gateway.pid)
        return needs_it

    def _kill_driver(self) -> bool:
        lease: LeaseRecord | None = None

        def has_one() -> bool:
            nonlocal lease
            lease = self._landing.lease
            return lease is not None and lease.state() is LeaseState.HELD

        self.task.until(has_one, "a driver", every=0.002)
        assert lease is not None
        kill_process(lease.process)
        return True

    def _kill_before_commit(self, chance: Random) -> bool:
        """Kill the TaskManager, where the sink's committer is, once the JobManager has completed a checkpoint."""
        metadata = self.await_new("checkpoint/checkpoints/*/chk-*/_metadata", "a checkpoint")
        kill(self._landing.flink.worker.pid)
        job, number = metadata.parts[-3], int(metadata.parts[-2].removeprefix("chk-"))
        branch = self.lake.table().refs()[self._landing.configured().on_branch]
        head = self.lake.table().metadata.snapshot_by_id(branch.snapshot_id)
        said = summary_of(head) if head is not None else {}
        return said.get(JOB) != job or int(said.get(CHECKPOINT, -1)) < number


def _killed(daemon: FlinkDaemon) -> bool:
    kill(daemon.pid)
    return True
