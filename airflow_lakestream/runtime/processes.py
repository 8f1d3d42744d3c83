"""Child processes forked from this process for parallel work, connected by pipes.

Children are forked, not spawned: a new interpreter takes a second of processor time for imports alone, more than half
the time of reading a million records, and a copy of all modules in memory. A forked child has the parent's data,
secrets included, in memory, and not in arguments, the environment or files.

A fork is safe only if no other thread holds a lock, since no thread would release the lock in the child. So children
are forked before this package makes any client, and not at all while other Python threads run. Native threads of a
BLAS library are allowed, since the library handles forks itself.

PyArrow's client of Azure shares its connections with processes that are forked later: the answers mix, and both
processes fail. After a use of this client, `forbid_forks` prevents forks.
"""

from __future__ import annotations

import ctypes
import logging
import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any

from airflow_lakestream.exceptions import LakestreamError, Transient
from airflow_lakestream.runtime.interpreter import frozen

log = logging.getLogger(__name__)

# Seconds that a child may take to end after a request; then the child is killed.
PATIENCE = 10.0
# Seconds between two looks for the end of a child. Each run waits for it, so a longer interval would be noticed.
_LOOK_INTERVAL = 0.002


# Reasons why this process must not fork any more; its children have a list of their own.
_forbidden: list[str] = []


class ProcessDied(LakestreamError, Transient):
    """A child process ended without a request of its parent.

    :param status: the exit status, as from `os.waitpid`.
    """

    def __init__(self, number: int, pid: int, status: int) -> None:
        self.number, self.status = number, status
        killed = os.WIFSIGNALED(status)
        how = f"was killed by signal {os.WTERMSIG(status)}" if killed else f"ended with {os.WEXITSTATUS(status)}"
        reason = (
            " (the kernel does that when memory runs out)" if killed and os.WTERMSIG(status) == signal.SIGKILL else ""
        )
        self.ending = f"process {number} (pid {pid}) {how}{reason}"
        super().__init__(
            f"reader {self.ending}. What was not committed yet was discarded. Retry; if "
            "memory is short, set a smaller max_batch_bytes, or parallelism=1."
        )


class FailedInChild(LakestreamError, Transient):
    """A child's error that can't be pickled, as its text."""


def forbid_forks(reason: str) -> None:
    """Forbid forks from now on, with a reason for the debug log."""
    if reason not in _forbidden:
        _forbidden.append(reason)


def can_fork(idle_threads: Sequence[str] = ()) -> bool:
    """Return whether forking is safe now; if not, the debug log has the reason.

    :param idle_threads: parts of names of threads that only wait, and hold no lock that a child needs.
    """
    if not sys.platform.startswith("linux"):
        # macOS frameworks do not survive a fork; Windows has none.
        return False
    if _forbidden:
        log.debug("One process reads: forking is unsafe after the use of %s.", ", ".join(_forbidden))
        return False
    names = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
    busy_threads = [name for name in names if not any(idle in name for idle in idle_threads)]
    if busy_threads:
        log.debug("One process reads: forking is unsafe while other threads run (%s).", ", ".join(busy_threads[:5]))
    return not busy_threads


def processors() -> int:
    """Return the number of processors available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ChildFailure:
    """A child's error, to be raised in the parent."""

    def __init__(self, error: Exception) -> None:
        text = "In a reader process:\n" + "".join(traceback.format_exception(error))
        error.add_note(text)
        # Class, arguments and attributes, not the error itself: pickle would call the constructor with the text alone.
        self._parts: Any = (type(error), error.args, error.__dict__)
        try:
            pickle.loads(pickle.dumps(self._parts))  # noqa: S301  # written in the same line
        except Exception:  # noqa: BLE001  # for any error of pickling, the text gets through
            self._parts = (FailedInChild, (f"{type(error).__name__}: {error}\n{text}",), {})

    @property
    def error(self) -> Exception:
        """The child's error, or FailedInChild with its text if the error can't be pickled."""
        kind, args, state = self._parts
        error: Exception = kind.__new__(kind, *args)
        error.__dict__.update(state)
        return error


class ChildPipe:
    """A child process's side of the pipe: requests come in, answers go out."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._requests: list[Any] = []
        self._changed = threading.Condition()
        self._is_over = False
        self._hear: Callable[[Any], bool] | None = None

    def send(self, message: Any) -> None:
        """Send a message to the parent."""
        with self._sending:
            self._connection.send(message)

    def requests(self, hear: Callable[[Any], bool]) -> Iterator[Any]:
        """Yield the parent's requests until the end.

        :param hear: called in another thread with each message as soon as the message comes, and with None when the
            parent is gone or this process has to end; a message for which `hear` returns True is not yielded.
        """
        self._hear = hear
        threading.Thread(target=self._listen, name="lakestream-listen", daemon=True).start()
        while True:
            with self._changed:
                while not self._requests and not self._is_over:
                    # A signal handler sets the flag without notifying: check it now and then.
                    self._changed.wait(0.5)
                if self._is_over:
                    return
                request = self._requests.pop(0)
            yield request

    def give_up(self) -> None:
        """Stop all work and yield no more requests. Takes no lock, since signal handlers call this method."""
        self._is_over = True
        if self._hear is not None:
            self._hear(None)

    def _listen(self) -> None:
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                # EOF comes even if the parent was killed: no other process has the parent's end of the pipe.
                break
            if self._hear is not None and not self._hear(message):
                with self._changed:
                    self._requests.append(message)
                    self._changed.notify_all()
        self.give_up()
        with self._changed:
            self._changed.notify_all()


class _ChildHandle:
    """The parent's side of a child process; `status` is the exit status, or None before the end was noticed."""

    def __init__(self, number: int, pid: int, connection: Connection) -> None:
        self.number, self.pid, self.connection = number, pid, connection
        self.status: int | None = None

    def join(self, timeout: float) -> None:
        """Wait for the child's end after the pipe was closed; kill the child after `timeout` seconds."""
        if self.status is not None:
            return
        waited = threading.Event()
        for _ in range(int(timeout / _LOOK_INTERVAL)):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
                return
            waited.wait(_LOOK_INTERVAL)
        log.warning("Reader process %s (pid %s) does not end. It is killed.", self.number, self.pid)
        os.kill(self.pid, signal.SIGKILL)
        self.status = os.waitpid(self.pid, 0)[1]


class ChildProcesses:
    """Context manager of forked processes, which end with the context or with this process.

    After a death or a kill, `are_broken` is true, and the processes must not be used any more.

    :param main: runs in each process, until the parent closes its end of the pipe.
    """

    def __init__(self, count: int, main: Callable[[ChildPipe], None]) -> None:
        self._count = count
        self._main = main
        self._children: list[_ChildHandle] = []
        self.are_broken = False

    def __enter__(self) -> ChildProcesses:
        try:
            # Freeze: existing objects must not be touched in a child, since touched pages are copied.
            with frozen():
                for number in range(self._count):
                    self._children.append(self._fork(number))
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def __len__(self) -> int:
        return len(self._children)

    def send(self, number: int, message: Any) -> None:
        """Send a message to a child. Raises nothing for a dead child: `receive` notices the death."""
        try:
            self._children[number].connection.send(message)
        except OSError:
            log.debug("Reader process %s took no message.", number)

    def receive(self, numbers: Sequence[int], timeout: float) -> list[tuple[int, Any]]:
        """Wait for messages of these children; return each with the child's number, or [] after `timeout` seconds.

        The children's log records are passed on to this process' handlers, and not returned. Raises ProcessDied if one
        of these children has ended.
        """
        numbers_by_pipe: dict[Any, int] = {self._children[number].connection: number for number in numbers}
        messages = list[tuple[int, Any]]()
        for ready in wait(list(numbers_by_pipe), timeout):
            number = numbers_by_pipe[ready]
            try:
                message = self._children[number].connection.recv()
            except (EOFError, OSError):
                if messages:
                    # The next call notices the death, and no message is lost.
                    continue
                raise self._death_error(number) from None
            if isinstance(message, logging.LogRecord):
                logging.getLogger(message.name).handle(message)
            else:
                messages.append((number, message))
        return messages

    def kill(self, number: int) -> None:
        """Kill an unresponsive child. All processes then count as broken."""
        self.are_broken = True
        child = self._children[number]
        if child.status is None:
            os.kill(child.pid, signal.SIGKILL)
        child.join(PATIENCE)

    def _death_error(self, number: int) -> ProcessDied:
        self.are_broken = True
        child = self._children[number]
        child.connection.close()
        child.join(PATIENCE)
        return ProcessDied(number, child.pid, child.status or 0)

    def _fork(self, number: int) -> _ChildHandle:
        parent_end, child_end = Pipe()
        with warnings.catch_warnings():
            # Python 3.12 and later warn of native threads, too, such as BLAS threads.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid:
            child_end.close()
            return _ChildHandle(number, pid, parent_end)
        # Never return into the caller's frames: they belong to the parent.
        try:
            parent_end.close()
            for sibling in self._children:
                # The siblings would not notice the parent's end while this child has copies of their pipes.
                sibling.connection.close()
            _run(ChildPipe(child_end), self._main, number)
        finally:
            os._exit(0)

    def _end(self) -> None:
        for child in self._children:
            child.connection.close()
        for child in self._children:
            child.join(PATIENCE)
        self._children = []


def _run(child: ChildPipe, main: Callable[[ChildPipe], None], number: int) -> None:
    """Run `main` in a forked child, with signal and log handlers of the child's own."""
    # The parent's handler of SIGTERM would report to Airflow that the task ends; a child deletes its unfinished files
    # instead. Ctrl-C reaches both processes, and the parent decides.
    signal.signal(signal.SIGTERM, lambda *_: child.give_up())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in list(logging.Logger.manager.loggerDict):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [], True
    logging.getLogger().handlers = [_ParentLogHandler(child, number)]
    try:
        main(child)
    except BaseException:  # noqa: BLE001  # the last place to report the error
        sys.stderr.write(traceback.format_exc())
        sys.stderr.flush()
        os._exit(1)


class _ParentLogHandler(logging.Handler):
    """Handler to send log records to the parent, whose handlers mask secrets."""

    def __init__(self, child: ChildPipe, number: int) -> None:
        super().__init__()
        self._child = child
        self._number = number

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + "".join(traceback.format_exception(*record.exc_info))
        attributes = ("name", "levelno", "levelname", "pathname", "filename", "lineno", "funcName", "created")
        plain = {name: getattr(record, name) for name in attributes}
        try:
            self._child.send(logging.makeLogRecord(plain | {"msg": f"[reader {self._number}] {text}"}))
        except OSError:
            # The parent is gone, and its log with it.
            return


# Parameters of glibc's mallopt(), from malloc.h.
TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8


def tune_allocation(parameters: Mapping[int, int]) -> None:
    """Set mallopt() parameters of this process and later children, if the C library has mallopt()."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for parameter, value in parameters.items():
            libc.mallopt(parameter, value)
