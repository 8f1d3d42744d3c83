"""Exclusive launch of a driver: one driver at a time, also between launch and lease.

A submitter creates `submit-<generation>-<attempt>.json` in the driver's folder; only one process can create each file.
A submitter that finds a file whose driver may still start waits for that driver.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from airflow_lakestream.driver.backend import DriverHandle
from airflow_lakestream.driver.driver_folder import DriverFolder
from airflow_lakestream.driver.lease import OtherInputs, check_inputs, is_stop_requested, read_lease
from airflow_lakestream.driver.lease_record import LeaseRecord, LeaseState
from airflow_lakestream.exceptions import LakestreamError, Transient

_NAME = "submit-"


class SubmitAction(StrEnum):
    """Action of a submitter: adopt the running driver, wait for a stopping driver, or submit."""

    ADOPT = "adopt"
    WAIT = "wait"
    SUBMIT = "submit"


@dataclass(frozen=True)
class FoundDriver:
    """A driver found by a submitter. `generation` is to be watched; `handle` and `lease` are set if known."""

    action: SubmitAction
    generation: int
    attempt: int = 0
    handle: DriverHandle | None = None
    lease: LeaseRecord | None = None


class Overtaken(LakestreamError, Transient):
    """Error of a driver just being submitted by another task."""

    def __init__(self, location: str) -> None:
        super().__init__(
            f"checkpoint {location}: another task is submitting its driver right now. A retry adopts that driver."
        )


class DriverSubmissions:
    """The submissions of a checkpoint.

    :param fingerprint: identifies the submit's configuration.
    :param inputs: the permanent inputs of the checkpoint.
    :param start_timeout: seconds within which a launched driver takes its lease.
    """

    def __init__(
        self,
        location: str,
        fingerprint: str,
        inputs: Mapping[str, str],
        start_timeout: float,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self._location = location
        self._fingerprint = fingerprint
        self._inputs = inputs
        self._start_timeout = start_timeout
        self._properties = properties
        self._folder = DriverFolder(location, properties)

    def lease(self) -> LeaseRecord | None:
        """Return the newest lease; None without a lease."""
        return read_lease(self._location, self._properties)

    def find(self) -> FoundDriver:
        """Find a driver. Raises OtherInputs if a driver with other inputs or another configuration runs."""
        lease = self.lease()
        check_inputs(self._location, lease, self._inputs)
        if lease and lease.state() is LeaseState.HELD:
            attempt, record = self._newest(lease.generation)
            if is_stop_requested(self._location, lease, self._properties):
                return FoundDriver(SubmitAction.WAIT, lease.generation, attempt, _handle(record), lease)
            self._check_same(lease.fingerprint, str(lease))
            return FoundDriver(SubmitAction.ADOPT, lease.generation, attempt, _handle(record), lease)
        generation = lease.generation + 1 if lease else 1
        attempt, record = self._newest(generation)
        handle = _handle(record)
        if record is None or not self._may_still_start(record, handle):
            return FoundDriver(SubmitAction.SUBMIT, generation, attempt)
        self._check_same(str(record.get("fingerprint")), str(record.get("by")))
        return FoundDriver(SubmitAction.ADOPT, generation, attempt, handle)

    def current(self) -> FoundDriver:
        """Return the last driver with a submit or a lease, even if it has ended."""
        lease = self.lease()
        generation = lease.generation if lease else 0
        attempt, record = self._newest(generation + 1)
        if record is not None:
            return FoundDriver(SubmitAction.ADOPT, generation + 1, attempt, _handle(record))
        attempt, record = self._newest(generation)
        return FoundDriver(SubmitAction.ADOPT, generation, attempt, _handle(record), lease)

    def claim(self, driver: FoundDriver, by: str) -> FoundDriver:
        """Claim the right to launch. Raises Overtaken if another submitter has the right."""
        claimed = replace(driver, attempt=driver.attempt + 1)
        if not self._folder.create(self._file(claimed), self._record(by, None)):
            raise Overtaken(self._location)
        for name in self._folder.names():
            if name.startswith(_NAME) and name < self._file(claimed):
                self._folder.remove(name)
        return claimed

    def launched(self, claimed: FoundDriver, by: str, handle: DriverHandle) -> FoundDriver:
        """Record the handle of the launched driver."""
        self._folder.write(self._file(claimed), self._record(by, handle))
        return replace(claimed, handle=handle)

    def failed(self, claimed: FoundDriver) -> None:
        """Return the right to launch after a failed launch."""
        self._folder.remove(self._file(claimed))

    def _may_still_start(self, record: Mapping[str, Any], handle: DriverHandle | None) -> bool:
        if handle is not None and handle.is_over:
            return False
        return time.time() - float(record.get("at", 0)) < self._start_timeout

    def _check_same(self, fingerprint: str, driver: str) -> None:
        if fingerprint != self._fingerprint:
            raise OtherInputs(
                self._location,
                f"its driver, {driver}, runs with another configuration",
                "Let it end, or stop it (mark its task failed); a retry then goes on where it stopped.",
            )

    def _record(self, by: str, handle: DriverHandle | None) -> dict[str, Any]:
        entry = {"fingerprint": self._fingerprint, "by": by, "at": time.time()}
        return {**entry, "handle": handle.to_dict() if handle else None}

    def _newest(self, generation: int) -> tuple[int, dict[str, Any] | None]:
        prefix = f"{_NAME}{generation:08d}-"
        names = [name for name in self._folder.names() if name.startswith(prefix)]
        if not names:
            return 0, None
        attempt = names[-1].removeprefix(prefix).removesuffix(".json")
        return int(attempt), self._folder.read(names[-1])

    def _file(self, driver: FoundDriver) -> str:
        return f"{_NAME}{driver.generation:08d}-{driver.attempt:04d}.json"


def _handle(record: Mapping[str, Any] | None) -> DriverHandle | None:
    try:
        return DriverHandle.parse(record["handle"]) if record and record.get("handle") else None
    except (KeyError, TypeError, ValueError):
        return None
