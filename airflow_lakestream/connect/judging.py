"""The watch over a connector: looks, and the judgement of a look by pure functions, without requests.

A connector is judged by its tasks: its own state stays RUNNING while task after task fails.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from airflow_lakestream.connect.client import ConnectorState, ConnectorStatus
from airflow_lakestream.core.publishing.refusals import BY_THE_EXTRACT
from airflow_lakestream.driver.progress import DriverProgress
from airflow_lakestream.driver.supervisor import (
    DriverLook,
    DriverSight,
    DriverState,
    SupervisionHistory,
    SupervisionLimits,
    decide,
)
from airflow_lakestream.kafka.damage import JavaDamage

log = logging.getLogger(__name__)


# The forms in which traces name a record: of Iceberg's sink, of Connect's own messages, and of most other sinks.
_POSITION_PATTERNS = (
    re.compile(
        r"topic:? '?(?P<topic>[\w.-]+)'?, partition:?,? '?(?P<partition>\d+)'?,?"
        r"(?: and| at)? offset:? '?(?P<offset>\d+)"
    ),
    re.compile(
        r"topic '(?P<topic>[\w.-]+)',? (?:in )?partition (?P<partition>\d+),? (?:and|at) offset (?P<offset>\d+)"
    ),
    re.compile(r"\b(?P<topic>[\w.-]+)-(?P<partition>\d+)(?:@| at offset )(?P<offset>\d+)"),
)
_NESTED = re.compile(r"^Caused by: ", re.MULTILINE)
# Connect's message if a converter or a transformation failed at a record.
_RECORD_FAILED = "Tolerance exceeded in error handler"
# A converter that can't reach its schema registry fails at any record.
_TEMPORARY = re.compile(
    r"RestClientException|IOException|ConnectException: Connection|Socket|Timeout|Retriable|UnknownHost"
)


@dataclass(frozen=True, order=True)
class TraceRecord:
    """A record at which a task failed: its position, or the error if the trace does not contain the position."""

    topic: str = ""
    partition: int = -1
    offset: int = -1
    error: str = ""

    @property
    def is_placed(self) -> bool:
        """Whether the record's position is known."""
        return self.offset >= 0

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] offset {self.offset}" if self.is_placed else self.error


def culprit_of(trace: str) -> TraceRecord | None:
    """Return the record at which a task failed; None if the failure is not about a record.

    A damaged batch is not, and neither is an error that may pass, such as a registry without an answer.
    """
    if (damage := JavaDamage.of(trace)) is not None and damage.topic:
        return None
    for pattern in _POSITION_PATTERNS:
        if match := pattern.search(trace):
            return TraceRecord(match["topic"], int(match["partition"]), int(match["offset"]))
    if _RECORD_FAILED in trace and not _TEMPORARY.search(trace):
        return TraceRecord(error=cause_of(trace))
    return None


def cause_of(trace: str) -> str:
    """Return the innermost error of a trace, in a single line."""
    innermost = _NESTED.split(trace)[-1].strip()
    return innermost.splitlines()[0].strip()[:300] if innermost else ""


# Number of failures at the same record, each after a restart, after which a further restart would not help.
_FINAL_FAILURES = 2
# Remedies by whether the connector is a sink with a ledger.
_REMEDIES = {
    True: BY_THE_EXTRACT.removesuffix("."),
    False: (
        "Correct or skip it: let a transformation or another converter take it, or move the connector's offset behind "
        "it, while it is stopped"
    ),
}


@dataclass(frozen=True)
class ConnectorLook:
    """The facts about a connector from a look.

    :param status: None if no worker answered; `problem` is the reason.
    :param is_gone: whether the connector does not exist any more.
    :param committed: offsets of the tasks' consumer group, by topic and partition, such as `orders[0]`.
    :param lag: number of offsets left to read; None if unknown.
    :param commits: id of the head of the sink's branch, which changes with each commit.
    :param coordinators: number of the sink's coordinators at work.
    :param unreadable: position of a record that a converter can't read, from a look into the topic; empty if unknown.
    :param has_ledger: whether the connector is Iceberg's sink, which begins at the ledger's end.
    """

    status: ConnectorStatus | None = None
    problem: str = ""
    is_gone: bool = False
    committed: Mapping[str, int] = field(default_factory=dict)
    lag: int | None = None
    commits: str = ""
    coordinators: int = 0
    unreadable: str = ""
    has_ledger: bool = False


@dataclass(frozen=True)
class ConnectorMemory:
    """State for the next look, as plain values. Times are seconds since 1970.

    :param has_run: whether all tasks have run since the last start.
    :param moves: number of signs of life.
    :param mark: text of offsets and commits at the last sign of life.
    :param blamed: by record at which tasks failed, the number of restarts after such failures.
    :param published_at: time of the last publication.
    :param published: `ConnectorLook.commits` at the last publication.
    :param crowded_since: time since which there is more than one coordinator; 0 for one coordinator, negative once the
        warning was logged.
    """

    has_run: bool = False
    moves: int = 0
    mark: str = ""
    blamed: Mapping[str, int] = field(default_factory=dict)
    published_at: float = 0.0
    published: str = ""
    crowded_since: float = 0.0

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> ConnectorMemory:
        """Read the result of `to_dict`; unknown keys of a later version are ignored."""
        return cls(**{name: value[name] for name in cls.__dataclass_fields__ if name in value})

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return asdict(self)

    def restarted(self, look: ConnectorLook) -> ConnectorMemory:
        """Return the memory after a restart of failed tasks; `look` is the look before the restart."""
        counts = dict(self.blamed)
        for name in culprit_names(look):
            counts[name] = counts.get(name, 0) + 1
        return replace(self, blamed=counts)


def judge(look: ConnectorLook, memory: ConnectorMemory) -> tuple[DriverSight, ConnectorMemory]:
    """Return the connector's state by a look, and the memory for the next look.

    A stopped connector is done, and a paused connector runs. Once all tasks have run, the connector counts as running,
    even if a task is unassigned for a while. Only a connector that runs or starts changes the memory.
    """
    if look.is_gone:
        return DriverSight(DriverState.FAILED, memory.moves, "it is gone: somebody has deleted it"), memory
    if look.status is None:
        return DriverSight(DriverState.UNKNOWN, memory.moves, look.problem, doing=look.problem), memory
    doing = str(look.status) if look.lag is None else f"{look.status}; {look.lag:,} behind"
    if look.status.state is ConnectorState.STOPPED:
        return DriverSight(DriverState.DONE, memory.moves, doing=doing), memory
    if look.status.state is ConnectorState.FAILED or look.status.failed:
        return _failed(look, look.status, memory, doing), memory
    memory = _moved(look, memory)
    has_run = look.status.all_run or look.status.state is ConnectorState.PAUSED or memory.has_run
    memory = replace(memory, has_run=has_run)
    return DriverSight(DriverState.RUNNING if has_run else DriverState.STARTING, memory.moves, doing=doing), memory


def culprit_names(look: ConnectorLook) -> set[str]:
    """Return a text for each record at which a task failed; empty if no task failed at a record.

    The text is the record's position by the trace, or else by the look into the topic, or else the error with the
    offsets of the tasks' group.
    """
    culprits = (culprit_of(task.trace) for task in (look.status.failed if look.status else ()))
    return {_name(culprit, look) for culprit in culprits if culprit is not None}


def _name(culprit: TraceRecord, look: ConnectorLook) -> str:
    if culprit.is_placed:
        return str(culprit)
    if look.unreadable:
        return look.unreadable
    # The record is at or behind the group's offsets: while these do not change, it counts as the same record.
    offsets = ", ".join(f"{partition} {offset}" for partition, offset in sorted(look.committed.items()))
    return f"a record at or behind {offsets or 'the beginning'} ({culprit.error})"


def _failed(look: ConnectorLook, status: ConnectorStatus, memory: ConnectorMemory, doing: str) -> DriverSight:
    """Return the state of a failed connector; a terminal failure if its tasks failed at the same record before."""
    # Plus one: the memory has the failures before earlier restarts, and this failure is new.
    repeated = sorted(name for name in culprit_names(look) if memory.blamed.get(name, 0) + 1 >= _FINAL_FAILURES)
    if repeated:
        error = f"its tasks fail at the same record again and again: {repeated[0]}. {_REMEDIES[look.has_ledger]}"
        return DriverSight(DriverState.FAILED, memory.moves, error, terminal=True, doing=doing)
    traces = {task.task: task.trace for task in status.failed}
    causes = dict.fromkeys(cause_of(trace) for trace in (*traces.values(), status.trace) if trace)
    failed_part = f"task {', '.join(map(str, sorted(traces)))}" if traces else "the connector"
    error = f"{failed_part} failed: {'; '.join(causes) or 'the reason is unknown'}"
    return DriverSight(DriverState.FAILED, memory.moves, error[:1000], doing=doing)


def _moved(look: ConnectorLook, memory: ConnectorMemory) -> ConnectorMemory:
    """Return the memory, with a further sign of life if the connector has made progress or is idle.

    Progress is a changed offset of the group, or a commit to the branch. A paused connector is idle, and so is a
    connector without lag. An unknown lag counts as no lag, so a source never stalls.
    """
    mark = f"{sorted(look.committed.items())} {look.commits}"
    is_idle = not look.lag or (look.status is not None and look.status.state is ConnectorState.PAUSED)
    if is_idle or mark != memory.mark:
        return replace(memory, mark=mark, moves=memory.moves + 1)
    return memory


# `ConnectorMemory.crowded_since` once the warning was logged.
_WARNED = -1.0


class ConnectorWatch:
    """The watch over a connector.

    :param observe: see `ConnectorObserver.look`.
    :param history: history of earlier looks, perhaps of another process.
    :param memory: memory of earlier looks, perhaps of another process.
    :param session: seconds for which an ended coordinator stays in its group.
    """

    def __init__(
        self,
        observe: Callable[[], ConnectorLook],
        limits: SupervisionLimits,
        history: SupervisionHistory,
        memory: ConnectorMemory,
        session: float,
    ) -> None:
        self._observe = observe
        self._limits = limits
        self.history = history
        self.memory = memory
        self._session = session
        self.last_look = ConnectorLook()

    def look(self) -> DriverLook:
        """Look at the connector, update history and memory, and return the look with its decision.

        More than one coordinator, for longer than two sessions, is logged once.
        """
        now = time.time()
        self.last_look = self._observe()
        sight, self.memory = judge(self.last_look, self.memory)
        since = self.memory.crowded_since
        if self.last_look.coordinators <= 1:
            self.memory = replace(self.memory, crowded_since=0.0)
        elif not since:
            # A restarted coordinator leaves its old member in the group until that member's session is over.
            self.memory = replace(self.memory, crowded_since=now)
        elif 0 < since < now - 2 * self._session:
            self.memory = replace(self.memory, crowded_since=_WARNED)
            log.warning(
                "%s coordinators of the sink are at work at once: a worker did not answer for a while, and another one "
                "took over. Rows that both commit are found when the branch is published.",
                self.last_look.coordinators,
            )
        decision = decide(self.history, self._limits, sight, now)
        self.history = decision.history
        return DriverLook(decision, sight, None, DriverProgress(doing=sight.doing), ())

    def is_due(self, publish_interval: float) -> bool:
        """Return whether the sink has an unpublished commit, and the interval between publications is over."""
        is_new = bool(self.last_look.commits) and self.last_look.commits != self.memory.published
        return is_new and time.time() - self.memory.published_at >= publish_interval
