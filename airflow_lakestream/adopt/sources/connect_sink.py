"""The position of a sink of Kafka Connect: the group's offsets, and the control topic of Iceberg's sink."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_lakestream.adopt.claim import CannotAdopt, PositionClaim, StillRunning
from airflow_lakestream.adopt.filled import FilledTable, newest_with
from airflow_lakestream.connect.client import ConnectClient, NoSuchConnector
from airflow_lakestream.connect.configuration import ICEBERG_SINK
from airflow_lakestream.connect.events import ends_below, events_of
from airflow_lakestream.connect.status import ConnectorState
from airflow_lakestream.kafka.errors import TopicMissing
from airflow_lakestream.kafka.groups import KafkaGroups

# The sink's own default, and the prefix of the summary's key with the sink's position in that topic.
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
        found = self.client.config(self.name)
        if found is None:
            raise NoSuchConnector(f"Kafka Connect at {self.client.where} knows no connector {self.name!r}.")
        return found

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
    # A connector has either of the two.
    topics, pattern = config.get("topics", ""), config.get("topics.regex", "")
    if pattern and not _matches(connector, pattern, topic):
        raise CannotAdopt(f"{connector} reads the topics of topics.regex {pattern!r}, which does not match {topic}.")
    if topics and topic not in [one.strip() for one in topics.split(",")]:
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
            # Python warns of sets in sets, and of the intersection of sets, which Java has.
            return re.fullmatch(pattern, topic, re.ASCII) is not None
    except (re.error, FutureWarning) as e:
        problem = f"its topics.regex {pattern!r} can't be checked here ({e})"
        raise CannotAdopt(f"{connector}: {problem}. Set topics={topic} in its place, if it reads {topic}.") from None


@dataclass(frozen=True)
class ConnectSinkPosition:
    """`adopt.claim.ToolPosition` of a connector.

    The group's offsets are committed before the table is: an upper bound, never proof. Iceberg's sink notes in its
    snapshots its position in its control topic; events below that position have the offsets that its tasks had reached.
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
        # The ends that the sink has reported in its control topic, or None if these events do not prove the position.
        control = config.get("iceberg.control.topic") or _CONTROL
        group = config.get("iceberg.connect.group-id") or f"connect-{self.connector.name}"
        key = f"{_OFFSETS}{control}.{group}"
        if (last := newest_with(self.filled.marks(), (key,))) is None:
            return None
        try:
            until = {int(p): int(offset) for p, offset in json.loads(last[key]).items()}
            events = events_of(self.connector.groups.records(control))
        except (ValueError, TypeError, AttributeError, TopicMissing):
            return None
        event_positions = {(one.partition, one.offset) for one in events}
        if any((p, offset - 1) not in event_positions for p, offset in until.items()):
            # The control topic was emptied, or created again: its events are not the snapshot's.
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
