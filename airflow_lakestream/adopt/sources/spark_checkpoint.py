"""The position of a query of Spark Structured Streaming: the checkpoint, and the table's commits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from airflow_lakestream.adopt.claim import CannotAdopt, PositionClaim, StillRunning
from airflow_lakestream.adopt.filled import FilledTable, newest_with
from airflow_lakestream.driver.lease import read_lease
from airflow_lakestream.driver.lease_record import LeaseState
from airflow_lakestream.spark.checkpoint import Offsets, QueryCheckpoint, read_checkpoint

# Written by Spark's Iceberg sink into the summary of each batch's snapshot.
_QUERY, _EPOCH = "spark.sql.streaming.queryId", "spark.sql.streaming.epochId"


@dataclass(frozen=True)
class SparkCheckpoint:
    """`adopt.claim.ToolPosition` of a query's checkpoint.

    Spark's sinks write query and batch into their commits: Iceberg's into the snapshot, Delta's as a transaction. This
    is the position of the table itself. Only for a table without such commits (foreachBatch) the checkpoint is trusted.
    """

    location: str
    filled: FilledTable
    properties: Mapping[str, str] | None = None
    has_sign_of_life: bool = False

    def read(self, topic: str) -> PositionClaim:
        """Return the end of the query's rows: by the table's own commits, or else by the checkpoint.

        Raises StillRunning, CannotAdopt, and a checkpoint's read errors.
        """
        lease = read_lease(self.location, self.properties)
        if lease is not None and lease.state() is LeaseState.HELD:
            raise StillRunning(self._source, f"it is in use by {lease}")
        checkpoint = read_checkpoint(self.location, self.properties)
        if checkpoint is None or not checkpoint.planned:
            raise CannotAdopt(f"{self.location} has no checkpoint with a batch in it, so the position is unknown.")
        checkpoint.check_topics([topic])
        in_table = self._batch_in_table(checkpoint.query_id)
        if in_table is not None:
            return self._claim(checkpoint, topic, in_table)
        return self._by_checkpoint(checkpoint, topic)

    def _batch_in_table(self, query_id: str) -> int | None:
        """Return the query's last batch in the table's own commits, or None if no commit has a batch."""
        if (batch := self.filled.transaction(query_id)) is not None:
            return batch
        of_query = (one for one in self.filled.marks() if one.get(_QUERY) == query_id)
        found = newest_with(of_query, (_EPOCH,))
        return None if found is None else int(found[_EPOCH])

    def _claim(self, checkpoint: QueryCheckpoint, topic: str, batch: int) -> PositionClaim:
        proved = [f"the table's own commits have the query {checkpoint.query_id} up to batch {batch}"]
        if checkpoint.committed and batch < checkpoint.committed[-1]:
            proved.append(
                f"batches up to {checkpoint.committed[-1]} are in the checkpoint, but not in the table (rolled back, "
                "or without rows): the next run lands what they read"
            )
        return PositionClaim(
            source=self._source,
            ends=_of(topic, checkpoint.ends(batch)),
            starts=_of(topic, checkpoint.start or {}),
            proved=tuple(proved),
            trusted=(self._stopped_assumption(checkpoint),),
        )

    def _by_checkpoint(self, checkpoint: QueryCheckpoint, topic: str) -> PositionClaim:
        # A batch that was begun and not ended leaves the end open.
        replayed = checkpoint.replayed
        if not checkpoint.committed:
            ends: Mapping[int, int] = _of(topic, checkpoint.starts(checkpoint.planned[-1]))
        else:
            ends = _of(topic, checkpoint.ends(checkpoint.committed[-1]))
        trusted = [
            "that a batch in the checkpoint is in the table: the table's commits name no batch of the query "
            f"{checkpoint.query_id} (foreachBatch, or these snapshots have expired)",
            self._stopped_assumption(checkpoint),
        ]
        claim = PositionClaim(
            source=self._source, ends=ends, starts=_of(topic, checkpoint.start or {}), trusted=tuple(trusted)
        )
        if replayed is None:
            return claim
        open_batch = (
            f"batch {replayed} of {self.location} was begun and not ended: it is unknown whether its rows are in the "
            "table. Start the query once more, and stop it when it has ended a batch"
        )
        return replace(claim, maybe=_of(topic, checkpoint.ends(replayed)), open_end=open_batch)

    @property
    def _source(self) -> str:
        return f"spark-checkpoint {self.location}"

    def _stopped_assumption(self, checkpoint: QueryCheckpoint) -> str:
        begun = checkpoint.started_at(checkpoint.planned[-1])
        age = "" if begun is None else f"; its last batch began {time.time() - begun:,.0f} s ago"
        return f"that the query was stopped: a checkpoint shows no sign of life{age}"


def _of(topic: str, offsets: Offsets) -> dict[int, int]:
    return {partition: offset for (name, partition), offset in offsets.items() if name == topic}
