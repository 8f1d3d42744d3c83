"""Positions of other tools: consumer groups, sinks of Kafka Connect, Flink's savepoints, Spark's checkpoints."""

from __future__ import annotations

import json
import re
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace

from airflow_lakestream.adopt.claim import CannotAdopt, PositionClaim, StillRunning
from airflow_lakestream.adopt.filled import FilledTable, newest_with
from airflow_lakestream.connect.client import ConnectClient, ConnectorState, NoSuchConnector
from airflow_lakestream.connect.configuration import ICEBERG_SINK
from airflow_lakestream.connect.publishing import ends_below, events_of
from airflow_lakestream.driver.lease import read_lease
from airflow_lakestream.driver.lease_record import LeaseState
from airflow_lakestream.flink.checkpoints import CHECKPOINT, JOB, read_savepoint
from airflow_lakestream.kafka.errors import TopicMissing
from airflow_lakestream.kafka.groups import KafkaGroups
from airflow_lakestream.spark.checkpoint import Offsets, QueryCheckpoint, read_checkpoint

# The default control topic of Connect's Iceberg sink, and the prefix of a key of snapshot summaries, which has the
# sink's position in its control topic.
_CONTROL, _OFFSETS = "control-iceberg", "kafka.connect.offsets."


@dataclass(frozen=True)
class SinkConnector:
    """A sink of Kafka Connect: configuration, and consumer group of the tasks."""

    client: ConnectClient
    groups: KafkaGroups
    name: str

    @property
    def text(self) -> str:
        """The connector in words."""
        return f"connect {self.name}"

    def config(self) -> Mapping[str, str]:
        """Return the configuration. Raises NoSuchConnector."""
        config = self.client.config(self.name)
        if config is None:
            raise NoSuchConnector(f"Kafka Connect at {self.client.where} knows no connector {self.name!r}.")
        return config

    def group(self, config: Mapping[str, str]) -> str:
        """Return the consumer group of the tasks: the connector's own setting, or Connect's default."""
        return config.get("consumer.override.group.id") or f"connect-{self.name}"

    def check_stopped(self, config: Mapping[str, str]) -> None:
        """Raise StillRunning unless the connector is stopped, and all tasks have left the group."""
        status = self.client.status(self.name)
        if status.state is not ConnectorState.STOPPED:
            raise StillRunning(self.text, f"it is {status}. Stop it (PUT /connectors/{self.name}/stop)")
        if members := self.groups.watch.group(self.group(config)).members:
            raise StillRunning(self.text, f"its group has {members} members")


def check_config(connector: str, config: Mapping[str, str], topic: str) -> None:
    """Refuse a sink of other topics, or of a branch. Raises CannotAdopt.

    :param connector: the connector in words.
    :param config: the connector's configuration.
    """
    # A connector has either topics or topics.regex.
    topics, pattern = config.get("topics", ""), config.get("topics.regex", "")
    if pattern and not _matches(connector, pattern, topic):
        raise CannotAdopt(f"{connector} reads the topics of topics.regex {pattern!r}, which does not match {topic}.")
    if topics and topic not in [name.strip() for name in topics.split(",")]:
        raise CannotAdopt(f"{connector} reads {topics}, not {topic}.")
    branch = config.get("iceberg.tables.default-commit-branch")
    if branch and branch != "main":
        raise CannotAdopt(
            f"{connector} writes the branch {branch!r}, not main: its rows are not in what readers see. "
            "KafkaConnectOperator publishes such a branch with its ledger."
        )


def _matches(connector: str, pattern: str, topic: str) -> bool:
    """Return whether a pattern of Java matches the whole topic. Raises CannotAdopt for syntax unlike Python's."""
    try:
        with warnings.catch_warnings(action="error", category=FutureWarning):
            # Python warns of nested sets and of intersections of sets, which mean something else in Java.
            return re.fullmatch(pattern, topic, re.ASCII) is not None
    except (re.error, FutureWarning) as e:
        problem = f"its topics.regex {pattern!r} can't be checked here ({e})"
        raise CannotAdopt(f"{connector}: {problem}. Set topics={topic} in its place, if it reads {topic}.") from None


@dataclass(frozen=True)
class ConnectSinkPosition:
    """`adopt.claim.ToolPosition` of a connector.

    The group's offsets are committed before the table: they are an upper bound, and prove nothing. Iceberg's sink notes
    in its snapshots its position in its control topic; events below that position have the offsets of its tasks.
    """

    connector: SinkConnector
    filled: FilledTable
    has_sign_of_life: bool = True

    def read(self, topic: str) -> PositionClaim:
        """Return the position of the sink.

        Raises StillRunning, CannotAdopt, ConnectUnknown and ConnectRefused, and the errors of requests.
        """
        config = self.connector.config()
        self.connector.check_stopped(config)
        check_config(self.connector.text, config, topic)
        upper = self.connector.groups.committed(self.connector.group(config), topic)
        if not upper:
            raise CannotAdopt(f"{self.connector.text} has never read {topic}: its group has no offset of it.")
        proved = f"{self.connector.text} is stopped, and nobody is in its group"
        if config.get("connector.class") != ICEBERG_SINK:
            return PositionClaim(
                source=self.connector.text,
                ends=upper,
                proved=(proved,),
                trusted=("that the connector commits an offset only after its rows are in the table",),
            )
        exact = self._by_events(config, topic)
        if exact is None:
            # Only rows can prove more: nothing below the bound is certain.
            reason = (
                f"{self.connector.text}: no snapshot of the table and no event in the control topic has the sink's "
                "position in the table. The offsets of its group are committed before the table is, so they prove "
                "nothing"
            )
            return PositionClaim(source=self.connector.text, ends={}, maybe=upper, open_end=reason, proved=(proved,))
        account = "the last snapshot of the sink names the events in its control topic that have its position"
        lost = "that no round of the sink was lost: killed before the first commit of its life, it loses one silently"
        return PositionClaim(
            source=self.connector.text, ends=exact, maybe=upper, proved=(proved, account), trusted=(lost,)
        )

    def _by_events(self, config: Mapping[str, str], topic: str) -> dict[int, int] | None:
        """Return the ends by partition that the sink's events prove, or None if the events prove no position."""
        control = config.get("iceberg.control.topic") or _CONTROL
        group = config.get("iceberg.connect.group-id") or f"connect-{self.connector.name}"
        key = f"{_OFFSETS}{control}.{group}"
        if (summary := newest_with(self.filled.marks(), (key,))) is None:
            return None
        try:
            until = {int(partition): int(offset) for partition, offset in json.loads(summary[key]).items()}
            events = events_of(self.connector.groups.records(control))
        except (ValueError, TypeError, AttributeError, TopicMissing):
            return None
        event_positions = {(event.partition, event.offset) for event in events}
        if any((partition, offset - 1) not in event_positions for partition, offset in until.items()):
            # The control topic was emptied, or created again: its events do not belong to the snapshot.
            return None
        return ends_below(events, group, topic, until) or None


@dataclass(frozen=True)
class ConnectorTarget:
    """`adopt.hand_over.PositionTarget` of a stopped sink."""

    connector: SinkConnector

    @property
    def name(self) -> str:
        """The tool in words."""
        return self.connector.text

    def check_at_rest(self) -> None:
        """Raise StillRunning unless the connector is stopped."""
        self.connector.check_stopped(self.connector.config())

    def set(self, topic: str, offsets: Mapping[int, int]) -> Mapping[int, int]:
        """Set the sink's next offsets; return the group's offsets afterwards."""
        self.connector.client.set_offsets(self.connector.name, topic, offsets)
        return self.connector.groups.committed(self.connector.group(self.connector.config()), topic)


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
        savepoint = read_savepoint(self.location, topic, self.properties)
        if not savepoint.ends:
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
            in_table, job = int(last[CHECKPOINT]), last[JOB]
            if savepoint.job and savepoint.job != job:
                raise CannotAdopt(
                    f"{source} is of job {savepoint.job}, and the table's last snapshot of Flink is of job {job}, "
                    f"checkpoint {in_table}. Job {savepoint.job} may have written to another table: "
                    "the records that it read would never be landed here. Nothing was written. Take the savepoint of "
                    f"{job}; or the rows or ranges (--from rows, --from ranges)."
                )
            if in_table > savepoint.number:
                raise StillRunning(
                    source,
                    f"the table has the job {job} up to its checkpoint {in_table}, and this is {savepoint.number}. "
                    "Either the job went on, or this is not its last savepoint",
                )
            if not savepoint.job:
                trusted.append(f"that it is of job {job}, as the table's last snapshot of Flink is: it names none")
            if in_table == savepoint.number and savepoint.job:
                proved.append(f"the table's last snapshot of Flink is of job {job}, checkpoint {in_table}: this one")
            elif in_table < savepoint.number:
                trusted.append(
                    f"that checkpoints {in_table + 1} to {savepoint.number} of job {job} brought no rows, or that "
                    "these are in the table: its last snapshot of Flink is older than the savepoint"
                )
        return PositionClaim(source=source, ends=savepoint.ends, proved=tuple(proved), trusted=tuple(trusted))


# Written by Spark's Iceberg sink into the summary of each batch's snapshot.
_QUERY, _EPOCH = "spark.sql.streaming.queryId", "spark.sql.streaming.epochId"


@dataclass(frozen=True)
class SparkCheckpoint:
    """`adopt.claim.ToolPosition` of a query's checkpoint.

    Spark's sinks write query and batch into their commits: Iceberg's into the snapshot, Delta's as a transaction. These
    prove the position. Only for a table without such commits (foreachBatch) the checkpoint is trusted.
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
        of_query = (summary for summary in self.filled.marks() if summary.get(_QUERY) == query_id)
        newest = newest_with(of_query, (_EPOCH,))
        return None if newest is None else int(newest[_EPOCH])

    def _claim(self, checkpoint: QueryCheckpoint, topic: str, batch: int) -> PositionClaim:
        """Return the claim up to a batch that the table's own commits have."""
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
        """Return the claim up to the last committed batch; a batch that has not ended leaves an open end."""
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
        """Return the assumption, for people, that the query has stopped."""
        begun = checkpoint.started_at(checkpoint.planned[-1])
        age = "" if begun is None else f"; its last batch began {time.time() - begun:,.0f} s ago"
        return f"that the query was stopped: a checkpoint shows no sign of life{age}"


def _of(topic: str, offsets: Offsets) -> dict[int, int]:
    """Return a topic's offsets by partition."""
    return {partition: offset for (name, partition), offset in offsets.items() if name == topic}
