"""Observation of a connector: tasks by Connect, offsets by Kafka, commits by the table."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import islice

from airflow_lakestream.connect.client import (
    ConnectClient,
    ConnectorState,
    ConnectorStatus,
    ConnectUnknown,
    NoSuchConnector,
)
from airflow_lakestream.connect.connector import ConnectorSpec, HeadUnknown
from airflow_lakestream.connect.judging import ConnectorLook, culprit_of
from airflow_lakestream.core.landing.plan import DamagedBatch
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.decode.header_ids import VALUE, named_by_header
from airflow_lakestream.exceptions import LakestreamError
from airflow_lakestream.kafka.damage import MOST_LOOKED_AT, JavaDamage, find_damage, first_offsets
from airflow_lakestream.kafka.errors import KafkaUnavailable
from airflow_lakestream.kafka.groups import KafkaGroups
from airflow_lakestream.kafka.watch import KafkaWatch

log = logging.getLogger(__name__)

# The error of Confluent's converters for a value that does not begin with a schema id.
_WITHOUT_ID = "magic byte"


class ConnectorObserver:
    """Looks at a connector, without decisions.

    :param kafka: Kafka's consumer groups; None for a source, or without a Kafka connection: then no lag is known.
    :param head: see `BranchPublisher.head`; None for a connector without a ledger.
    """

    def __init__(
        self, spec: ConnectorSpec, client: ConnectClient, kafka: KafkaGroups | None, head: Callable[[], str] | None
    ) -> None:
        self._spec = spec
        self._client = client
        self._kafka = kafka
        self._head = head

    def look(self) -> ConnectorLook:
        """Look at the connector. Raises ConnectRefused.

        If Connect, Kafka or the catalog gives no answer, the look has no status, and `problem` has the reason.
        """
        try:
            status = self._status()
            if status is None:
                return ConnectorLook(is_gone=True)
            if self._kafka is None or not self._spec.topics:
                return ConnectorLook(status)
            return self._with_offsets(status, self._kafka)
        except (ConnectUnknown, KafkaUnavailable, HeadUnknown) as e:
            return ConnectorLook(problem=str(e))

    def _status(self) -> ConnectorStatus | None:
        """Return the connector's status; None if the connector does not exist."""
        try:
            return self._client.status(self._spec.name)
        except NoSuchConnector:
            # A new connector has no status yet.
            exists = self._client.config(self._spec.name) is not None
            return ConnectorStatus(ConnectorState.UNASSIGNED) if exists else None

    def _with_offsets(self, status: ConnectorStatus, groups: KafkaGroups) -> ConnectorLook:
        """Return a look with offsets and lag of a sink. Raises KafkaUnavailable, HeadUnknown."""
        kafka = groups.watch
        group = kafka.group(self._spec.group)
        lag, committed = 0, dict[str, int]()
        for topic in self._spec.topics:
            offsets = group.offsets.get(topic, {})
            committed |= {f"{topic}[{p}]": offset for p, offset in offsets.items()}
            lag += self._lag(kafka, topic, offsets)
        coordinator_group = self._spec.coordinator_group
        coordinators = kafka.group(coordinator_group).members if coordinator_group else 0
        return ConnectorLook(
            status,
            committed=committed,
            lag=lag,
            commits=self._head() if self._head else "",
            coordinators=coordinators,
            unreadable=self._unreadable(status, groups, group.offsets),
            has_ledger=bool(coordinator_group),
        )

    def _unreadable(
        self, status: ConnectorStatus, groups: KafkaGroups, offsets: Mapping[str, Mapping[int, int]]
    ) -> str:
        """Return the position of the record that a converter can't read, if the trace does not contain the position.

        Return an empty text for other failures, and if no such record is found. The first records after the group's
        offsets are searched. JSON's converter fails at a value that is not JSON. A converter that misses the schema id
        in a value fails at a record with the id in a header.
        """
        culprits = {culprit_of(task.trace) for task in status.failed}
        errors = " ".join(culprit.error for culprit in culprits if culprit is not None and not culprit.is_placed)
        is_json = self._spec.config.get("value.converter", "").endswith(".JsonConverter")
        if not errors or not (is_json or _WITHOUT_ID in errors):
            return ""
        for topic in self._spec.topics:
            with closing(groups.records(topic, offsets.get(topic, {}))) as records:
                for message in islice(records, MOST_LOOKED_AT):
                    has_id_header = dict(message.headers() or ()).get(f"__{VALUE}_schema_id") is not None
                    if is_json:
                        is_unreadable = not _is_json(message.value())
                    else:
                        is_unreadable = has_id_header and message.value() is not None
                    if is_unreadable:
                        header_note = f" ({named_by_header(VALUE)})" if has_id_header else ""
                        return f"{topic}[{message.partition()}] offset {message.offset()}{header_note}"
        return ""

    def damaged_batch(self, look: ConnectorLook) -> DamagedBatch | None:
        """Return the damaged batch at which tasks fail or stall; None for another reason, or if the search fails."""
        failed = look.status.failed if look.status is not None else ()
        damage = JavaDamage.of("\n".join(task.trace for task in failed))
        if self._kafka is None or look.status is None or (failed and damage is None):
            return None
        try:
            return self._find_damage(damage, self._kafka)
        except LakestreamError as e:
            log.warning("Whether tasks of %s are at a damaged batch is not known: %s", self._spec.name, e)
            return None

    def _find_damage(self, damage: JavaDamage | None, groups: KafkaGroups) -> DamagedBatch | None:
        """Search the records that the tasks' group has not read yet; return the first damaged batch, or None.

        :param damage: the damage in a trace, whose partition bounds the search; None: search the first records of each
            partition.
        """
        offsets = groups.watch.group(self._spec.group).offsets
        for topic in self._spec.topics:
            state, ranges = groups.watch.topic(topic), RangeSet()
            for p, marks in state.marks.items():
                begin = max(marks.low, offsets.get(topic, {}).get(p, 0))
                ranges |= RangeSet.of(topic, p, begin, marks.end)
            ranges = first_offsets(ranges) if damage is None else damage.within(ranges)
            if ranges and (batch := find_damage(groups.reader(), state, ranges)) is not None:
                return batch
        return None

    @staticmethod
    def _lag(kafka: KafkaWatch, topic: str, offsets: Mapping[int, int]) -> int:
        """Return the number of offsets that a group has not read yet; `offsets` are the group's next offsets."""
        state = kafka.topic(topic)
        starts = {p: max(offsets.get(p, 0), marks.low) for p, marks in state.marks.items()}
        behind = {p: start for p, start in starts.items() if start < state.marks[p].end}
        if not behind:
            return 0
        # The ends of transactions are not records: a group that has read all records before them is not behind.
        first_records = kafka.firsts(state, behind)
        return sum(state.marks[p].end - start for p, start in behind.items() if first_records.get(p) is not None)


def _is_json(value: bytes | None) -> bool:
    try:
        json.loads(value or b"null")
    except (ValueError, RecursionError):
        return False
    return True
