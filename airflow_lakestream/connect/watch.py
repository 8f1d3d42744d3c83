"""A connector watched: looked at, judged, and what to do about it. Its looks are those of `driver.watch`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from airflow_lakestream.connect.judging import Memory, Seen, judge
from airflow_lakestream.driver.progress import Progress
from airflow_lakestream.driver.supervisor import History, Limits, decide
from airflow_lakestream.driver.watch import Look

log = logging.getLogger(__name__)


class ConnectorWatch:
    """Watches one connector.

    :param see: see `Observer.see`.
    :param history: what earlier looks left, perhaps in another process; so is `memory`.
    """

    def __init__(self, see: Callable[[], Seen], limits: Limits, history: History, memory: Memory) -> None:
        self._see = see
        self._limits = limits
        self.history = history
        self.memory = memory
        self.seen = Seen()

    def look(self) -> Look:
        """Look, and decide."""
        before = self.memory.coordinators
        self.seen = self._see()
        sight, self.memory = judge(self.seen, self.memory)
        if self.seen.coordinators > 1 >= before:
            log.warning(
                "%s coordinators of the sink are at work at once: a worker did not answer for a while, and another one "
                "took over. Rows that both commit are found when the branch is published.",
                self.seen.coordinators,
            )
        decision = decide(self.history, self._limits, sight, time.time())
        self.history = decision.history
        return Look(decision, sight, None, Progress(doing=sight.doing), ())

    def is_due(self, publish_interval: float) -> bool:
        """Tell whether the sink has committed something that was not published yet, and the time for it has come."""
        is_new = bool(self.seen.commits) and self.seen.commits != self.memory.published
        return is_new and time.time() - self.memory.published_at >= publish_interval
