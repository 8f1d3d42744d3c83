"""The watch over a connector: looks, judgements and decisions, with the looks of `driver.watch`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from airflow_lakestream.connect.judging import ConnectorLook, ConnectorMemory, judge
from airflow_lakestream.driver.progress import DriverProgress
from airflow_lakestream.driver.supervisor import DriverLook, SupervisionHistory, SupervisionLimits, decide

log = logging.getLogger(__name__)

_WARNED = -1.0


class ConnectorWatch:
    """The watch over a connector.

    :param observe: see `ConnectorObserver.look`.
    :param history: history of earlier looks, perhaps of another process; likewise `memory`.
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
        """Look at the connector, judge the look, and return the decision.

        History and memory are updated. More than one coordinator, for longer than two sessions, is logged once.
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
