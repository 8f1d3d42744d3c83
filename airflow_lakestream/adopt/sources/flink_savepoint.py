"""The position of a Flink job: a savepoint or checkpoint, compared with the table's snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_lakestream.adopt.claim import CannotAdopt, PositionClaim, StillRunning
from airflow_lakestream.adopt.filled import FilledTable, newest_with
from airflow_lakestream.flink.checkpoints import CHECKPOINT, JOB
from airflow_lakestream.flink.savepoint import read_savepoint


@dataclass(frozen=True)
class FlinkSavepoint:
    """`adopt.claim.ToolPosition` of a stopped job's savepoint, or of the last checkpoint.

    Flink's Iceberg sink writes the checkpoint of each snapshot into the snapshot's summary.
    """

    location: str
    filled: FilledTable
    properties: Mapping[str, str] | None = None
    has_sign_of_life: bool = False

    def read(self, topic: str) -> PositionClaim:
        """Return the position of the job's sources. Raises StillRunning, CannotAdopt and SavepointUnreadable.

        The table's last snapshot of Flink must be of the same job, and not newer than the savepoint.
        """
        source = f"flink-savepoint {self.location}"
        found = read_savepoint(self.location, topic, self.properties)
        if not found.ends:
            raise CannotAdopt(f"{source} has no position of {topic}: the job reads other topics, or by another source.")
        proved: list[str] = []
        trusted = [
            "that the job was stopped: a savepoint shows no sign of life",
            f"that the job fills this table from {topic}, and from no other topic: a savepoint does not say",
        ]
        last = newest_with(self.filled.marks(), (JOB, CHECKPOINT))
        if last is None:
            trusted.append("that the job's rows are in this table: no snapshot names a Flink job")
        else:
            committed, job = int(last[CHECKPOINT]), last[JOB]
            if found.job and found.job != job:
                raise CannotAdopt(
                    f"{source} is of job {found.job}, and the table's last snapshot of Flink is of job {job}, "
                    f"checkpoint {committed}. Job {found.job} may have written to another table: "
                    "the records that it read would never be landed here. Nothing was written. Take the savepoint of "
                    f"{job}; or the rows or ranges (--from rows, --from ranges)."
                )
            if committed > found.number:
                raise StillRunning(
                    source,
                    f"the table has the job {job} up to its checkpoint {committed}, and this is {found.number}. "
                    "Either the job went on, or this is not its last savepoint",
                )
            if not found.job:
                trusted.append(f"that it is of job {job}, as the table's last snapshot of Flink is: it names none")
            if committed == found.number and found.job:
                proved.append(f"the table's last snapshot of Flink is of job {job}, checkpoint {committed}: this one")
            elif committed < found.number:
                trusted.append(
                    f"that checkpoints {committed + 1} to {found.number} of job {job} brought no rows, or that "
                    "these are in the table: its last snapshot of Flink is older than the savepoint"
                )
        return PositionClaim(source=source, ends=found.ends, proved=tuple(proved), trusted=tuple(trusted))
