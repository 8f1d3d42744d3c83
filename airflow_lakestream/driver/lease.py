"""The single writer of a checkpoint: a lease with a heartbeat, in the driver's folder.

Each holder has a generation (a number) and a file `lease-<generation>.json`. Only one process can create that file; the
holder rewrites the file with each heartbeat. The newest generation holds the lease: a holder that sees a newer file has
lost the lease. The ledger's compare-and-set still decides which offsets are landed; the lease saves work that the
ledger would refuse.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

from airflow_lakestream.driver.driver_folder import DriverFolder
from airflow_lakestream.driver.lease_record import (
    TTL_SECONDS,
    DriverOutcome,
    LeaseDamaged,
    LeaseRecord,
    LeaseState,
    ProcessIdentity,
)
from airflow_lakestream.exceptions import LakestreamError, Terminal, Transient

log = logging.getLogger(__name__)


def exit_code_of(work: Callable[[], None], what: str) -> int:
    """Do a program's work; return 0, or 1 after an error, with the reason in the last line of the log.

    The log goes to the standard error.

    :param what: the program, for the log, such as `The app`.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # Both log too much: each call into Java, and each read of a table.
    for name in ("py4j", "pyiceberg"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        work()
    except LakestreamError as e:
        log.error("%s: %s", type(e).__name__, " ".join(str(e).split()))
        return 1
    except Exception as e:  # any error ends the program, with the reason in its last line, which supervisors read
        log.exception("%s failed.", what)
        log.error("%s: %s", type(e).__name__, next(iter(str(e).splitlines()), ""))
        return 1
    return 0


class DriverTerminated(LakestreamError, Transient):
    """Error of a driver ended by its cluster or machine."""

    def __init__(self) -> None:
        super().__init__("ended by SIGTERM, as from a pod that is deleted. Its commits stay landed.")


def raise_on_sigterm() -> Callable[[], object]:
    """Let SIGTERM raise DriverTerminated in the main thread from now on; return a function for undoing.

    In another thread nothing is done: only the main thread receives signals.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    before = signal.signal(signal.SIGTERM, _terminated)
    return lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise DriverTerminated


_BEATS_PER_TTL = 6
_FILE_PREFIX, _STOP_FILE = "lease-", "stop.json"
# Most characters of an error in a lease: errors of checks quote rows.
_MOST_CHARACTERS = 4_000


class LeaseHeld(LakestreamError, Transient):
    """Error of a checkpoint in use by a driver.

    :param record: the driver's lease; None if unreadable.
    :param damaged: addition to the message if the lease's file is cut or empty.
    """

    def __init__(self, location: str, record: LeaseRecord | None, damaged: str = "") -> None:
        self.record = record
        super().__init__(
            f"checkpoint {location}: in use by {record or 'a driver that is just starting'}. One driver at a "
            f"time: wait until it ends, or stop it.{damaged}"
        )


class OtherInputs(LakestreamError, Terminal):
    """Error of a checkpoint of another app, topic, table or group, or of a driver with another configuration."""

    def __init__(self, location: str, problem: str, remedy: str) -> None:
        super().__init__(f"checkpoint {location}: {problem}. {remedy}")


class LeaseLost(LakestreamError, Transient):
    """Error of a lease taken over by another driver, since heartbeats were late."""

    def __init__(self, location: str, generation: int, newest: int) -> None:
        super().__init__(
            f"checkpoint {location}: lease {generation} was taken over by {newest}, since no heartbeat came. This "
            "driver stops; the other driver lands the records that this one has not committed."
        )


def read_lease(location: str, properties: Mapping[str, str] | None = None) -> LeaseRecord | None:
    """Return the newest lease of a checkpoint, held or not; None if missing or unreadable."""
    return _newest(DriverFolder(location, properties))[1]


def request_stop(
    location: str, by: str, properties: Mapping[str, str] | None = None, within: float | None = None
) -> bool:
    """Ask the holder of the lease to end after the current batch; return False without a holder.

    :param by: the person or task that asks, in words.
    :param within: seconds after which the driver kills itself if that batch has not ended; None: no limit.
    """
    folder = DriverFolder(location, properties)
    generation, record = _newest(folder)
    if record is None or record.state() is not LeaseState.HELD:
        return False
    # The request names the generation, so that an old request does not stop a later driver.
    folder.write(_STOP_FILE, {"generation": generation, "by": by, "at": time.time(), "within": within})
    return True


def is_stop_requested(location: str, record: LeaseRecord, properties: Mapping[str, str] | None = None) -> bool:
    """Return whether the lease's holder was asked to end."""
    return _is_stop_for(DriverFolder(location, properties).read(_STOP_FILE), record)


def check_inputs(location: str, record: LeaseRecord | None, inputs: Mapping[str, str]) -> None:
    """Refuse a checkpoint that was used for another app, topic, table or group. Raises OtherInputs.

    :param record: the newest lease of the checkpoint, held or not; None allows any inputs.
    """
    used = record.inputs if record else {}
    if other := [name for name in inputs if name in used and used[name] != inputs[name]]:
        difference = ", ".join(f"{name} {used[name]!r}, not {inputs[name]!r}" for name in other)
        raise OtherInputs(
            location,
            f"it belongs to {difference}",
            f"Give this stream a checkpoint_location of its own, or delete the checkpoint and {location}.lakestream: "
            "the table's ledger knows what has landed.",
        )


class HeldLease:
    """A lease held by this process; as a context manager with heartbeats, released at the end or at SIGTERM."""

    def __init__(self, folder: DriverFolder, location: str, record: LeaseRecord) -> None:
        self._folder = folder
        self._location = location
        self._record = record
        self._lock = threading.Lock()
        self._ended = threading.Event()
        # The generation of the driver that has taken the lease over; 0 while this process holds the lease.
        self._lost_to = 0
        self._stopped = False
        # When this process read a stop request with a time limit (monotonic clock), and the limit in seconds.
        self._stop_limit: tuple[float, float] | None = None
        self._thread: threading.Thread | None = None
        self._restore_signal: Callable[[], object] = lambda: None

    @classmethod
    def take(
        cls,
        location: str,
        fingerprint: str,
        holder: str,
        *,
        inputs: Mapping[str, str] | None = None,
        application_id: str = "",
        ui_url: str = "",
        ttl: float = TTL_SECONDS,
        properties: Mapping[str, str] | None = None,
    ) -> Self:
        """Take the lease of a checkpoint, and delete the files of old leases.

        :param location: the checkpoint's location.
        :param fingerprint: fingerprint of the submit's configuration, see `fingerprint_of`.
        :param holder: person or task that started this driver, in words.
        :param inputs: the inputs that the checkpoint keeps for ever: app, topic, table, group.
        :param application_id: the engine's id of the application, for people.
        :param ui_url: the engine's page of the application, for people.
        :param ttl: seconds without a heartbeat after which the driver counts as vanished.
        :param properties: properties of the checkpoint's object store, see `open_folder`.

        Raises LeaseHeld if a driver holds the lease or takes it at the same moment, OtherInputs if the checkpoint
        belongs to another stream, and errors of `DriverFolder.create`.
        """
        folder = DriverFolder(location, properties)
        newest, last = _newest(folder)
        if last is None and newest:
            last = _lease_before_damaged(folder, location, newest, ttl)
        check_inputs(location, last, inputs or {})
        if last and last.state() is LeaseState.HELD:
            raise LeaseHeld(location, last)
        now = time.time()
        record = LeaseRecord(
            generation=newest + 1,
            fingerprint=fingerprint,
            holder=holder,
            process=ProcessIdentity.of(os.getpid()),
            inputs=dict(inputs or {}),
            application_id=application_id,
            ui_url=ui_url,
            taken_at=now,
            beat_at=now,
            ttl=ttl,
        )
        # Check both: the file may have been created, and then deleted by a newer holder.
        if not folder.create(_file(record.generation), asdict(record)) or _newest(folder)[0] != record.generation:
            raise LeaseHeld(location, _newest(folder)[1])
        # The file of the lease before stays, in case the new file is damaged: see `_lease_before_damaged`.
        for old in range(max(1, newest - 1), newest):
            folder.remove(_file(old))
        return cls(folder, location, record)

    @property
    def record(self) -> LeaseRecord:
        """The record of this holder."""
        return self._record

    def beat(self, **changes: str) -> None:
        """Send a heartbeat. Raises LeaseLost if another driver has taken the lease over.

        :param changes: new values of the record's `application_id` and `ui_url`.
        """
        with self._lock:
            self.check()
            newest = _newest_generation(self._folder)
            if newest > self._record.generation:
                self._lost_to = newest
                self.check()
            self._record = replace(self._record, beat_at=time.time(), **changes)  # type: ignore[arg-type]  # of fields that are text
            self._folder.write(_file(self._record.generation), asdict(self._record))

    def check(self) -> None:
        """Raise LeaseLost if a heartbeat has seen another holder. Without I/O, so that each commit can check."""
        if self._lost_to:
            raise LeaseLost(self._location, self._record.generation, self._lost_to)

    def stop_requested(self) -> bool:
        """Return whether this driver was asked to end after the current batch; a request is final.

        The time limit of the request begins when this method sees the request.
        """
        if not self._stopped:
            request = self._folder.read(_STOP_FILE)
            self._stopped = _is_stop_for(request, self._record)
            if self._stopped and request is not None and request.get("within") is not None:
                self._stop_limit = time.monotonic(), float(request["within"])
        return self._stopped

    def release(self, outcome: DriverOutcome, error: str = "", terminal: bool = False) -> None:
        """End the heartbeats, and release the lease, unless it was lost or is released already.

        :param error: the reason of a failure, without secrets, since people see it.
        :param terminal: whether a restart would fail again.
        """
        self._ended.set()
        if self._thread and self._thread is not threading.current_thread():
            self._thread.join()
        with self._lock:
            if self._lost_to or self._record.outcome:
                return
            self._record = replace(
                self._record, beat_at=time.time(), outcome=outcome, error=error[:_MOST_CHARACTERS], terminal=terminal
            )
            self._folder.write(_file(self._record.generation), asdict(self._record))

    def __enter__(self) -> Self:
        self._restore_signal = raise_on_sigterm()
        self._thread = threading.Thread(target=self._beat_until_end, name="lakestream-lease", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._restore_signal()
        if error is None:
            self.release(DriverOutcome.STOPPED if self._stopped else DriverOutcome.DONE)
        else:
            # Messages of foreign errors may hold secrets: only the error's type is recorded.
            message = str(error) if isinstance(error, LakestreamError) else type(error).__name__
            self.release(DriverOutcome.FAILED, message, isinstance(error, Terminal))

    def _beat_until_end(self) -> None:
        while not self._ended.wait(self._record.ttl / _BEATS_PER_TTL):
            try:
                self.beat()
                self._end_if_overdue()
            except LeaseLost:
                return
            except Exception as e:  # noqa: BLE001  # a store that is away for a moment; the next beat tries again
                log.warning("The lease of %s could not be renewed: %s: %s", self._location, type(e).__name__, e)

    def _end_if_overdue(self) -> None:
        """Kill this driver if the batch outlasts the time limit of the stop request: a batch may hang forever."""
        if not self.stop_requested() or self._stop_limit is None:
            return
        requested_at, limit = self._stop_limit
        if time.monotonic() - requested_at < limit:
            return
        reason = f"killed: its batch did not end within {limit:g} s after it was asked to"
        log.error("The driver of %s is %s. Its commits stay landed.", self._location, reason)
        self.release(DriverOutcome.STOPPED, reason)
        self.end_process()

    def end_process(self) -> NoReturn:
        """End this process at once, without waiting for anything."""
        os._exit(1)


def _is_stop_for(stop: Mapping[str, Any] | None, record: LeaseRecord) -> bool:
    return stop is not None and stop.get("generation") == record.generation


def _file(generation: int) -> str:
    return f"{_FILE_PREFIX}{generation:08d}.json"


def _newest_generation(folder: DriverFolder) -> int:
    numbers = [
        name.removeprefix(_FILE_PREFIX).removesuffix(".json")
        for name in folder.names()
        if name.startswith(_FILE_PREFIX)
    ]
    return max((int(number) for number in numbers if number.isdigit()), default=0)


def _newest(folder: DriverFolder) -> tuple[int, LeaseRecord | None]:
    """Return the newest generation, or 0, with the generation's record, or None if unreadable."""
    generation = _newest_generation(folder)
    return generation, _record(folder, generation)


def _record(folder: DriverFolder, generation: int) -> LeaseRecord | None:
    """Return the lease of a generation; None if missing or unreadable."""
    content = folder.read(_file(generation)) if generation else None
    try:
        record = LeaseRecord.parse(content) if content else None
    except LeaseDamaged:
        return None
    return record if record and record.generation == generation else None


def _lease_before_damaged(folder: DriverFolder, location: str, generation: int, ttl: float) -> LeaseRecord | None:
    """Return the lease before a damaged lease, as ended, or None if unreadable.

    A living holder rewrites its file within `ttl` seconds. Raises LeaseHeld until then.

    :param generation: generation of the damaged lease.
    """
    name = _file(generation)
    written_at = folder.modified(name)
    # `abs`: a time far in the future comes from a wrong clock, and would never pass.
    if written_at is None or abs(time.time() - written_at) < ttl:
        damaged = f" Its lease file {name} is damaged; it can be taken over {ttl:g} s after it was last written."
        raise LeaseHeld(location, None, damaged)
    log.warning("checkpoint %s: %s is damaged and no longer renewed. It is taken over.", location, name)
    before = _record(folder, generation - 1)
    # Without an outcome, its holder has lost the lease to the holder of the damaged lease.
    return before and replace(before, outcome=before.outcome or DriverOutcome.FAILED)
