"""The end of a driver after a user has cleared or marked its task."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from airflow_lakestream.driver.detached import kill_process
from airflow_lakestream.driver.lease import read_lease, request_stop
from airflow_lakestream.driver.lease_record import LeaseState
from airflow_lakestream.driver.supervisor import OnKill


def stop_driver(
    location: str,
    action: OnKill,
    by: str,
    *,
    within: float | None = None,
    kill: Callable[[], None] | None = None,
    properties: Mapping[str, str] | None = None,
) -> str:
    """Carry out `action` on a checkpoint's driver; return the result in words.

    :param by: the person or task that stops the driver, in words.
    :param within: seconds after which a driver that was asked to end is killed; None: never.
    :param kill: ends the driver by its backend; without it, a driver of this machine is killed by its pid.

    GRACEFUL asks the driver to end. A driver that has not begun to work has no batch to end, and is killed. KILL kills
    the driver; a driver of another machine, without `kill`, is asked to end instead. LEAVE does nothing.
    """
    if action is OnKill.LEAVE:
        return f"on_kill_action is {OnKill.LEAVE.value!r}: the driver goes on"
    request = "asked to end after its current batch" + ("" if within is None else f", within {within:g} s")
    if action is OnKill.GRACEFUL and request_stop(location, by, properties, within):
        return f"the driver was {request}"
    lease = read_lease(location, properties)
    held = lease is not None and lease.state() is LeaseState.HELD
    if kill is not None:
        kill()
        return "the driver was killed"
    if lease is not None and held and lease.process.is_local:
        kill_process(lease.process)
        return "the driver was killed"
    if request_stop(location, by, properties, within):
        return f"the driver can't be killed from here; it was {request}"
    return "there was no driver"
