"""The position of a consumer group: the committed offsets in Kafka."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_lakestream.adopt.claim import CannotAdopt, PositionClaim, StillRunning
from airflow_lakestream.kafka.groups import KafkaGroups


@dataclass(frozen=True)
class GroupPosition:
    """`adopt.claim.ToolPosition` of any tool with offsets committed in Kafka after the rows."""

    groups: KafkaGroups
    group: str
    has_sign_of_life: bool = True

    def read(self, topic: str) -> PositionClaim:
        """Return the committed offsets. Raises StillRunning, CannotAdopt and the errors of requests."""
        if members := self.groups.watch.group(self.group).members:
            raise StillRunning(f"group {self.group}", f"it has {members} members")
        ends = self.groups.committed(self.group, topic)
        if not ends:
            raise CannotAdopt(
                f"consumer group {self.group!r} has no committed offset on {topic}: it read another topic, its offsets "
                "have expired, or the name is wrong. Nothing was written."
            )
        return PositionClaim(
            source=f"group {self.group}",
            ends=ends,
            proved=(f"no consumer is in the group {self.group}",),
            trusted=("that the tool commits an offset only after its rows are in the table",),
        )
