"""Decorator for tasks of DAGs that landings start: a landing reported twice belongs to a single run, too."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS
from airflow.sdk import get_current_context

from airflow_lakestream.core.names import state_key
from airflow_lakestream.exceptions import AirflowTooOld, InvalidArgument
from airflow_lakestream.operators.base import airflow_errors

log = logging.getLogger(__name__)

# Landings remembered for each task and asset. A second report of a landing comes within minutes, if at all.
MOST_KEPT = 1_000
_ARGUMENT = "landings"

Function = TypeVar("Function", bound=Callable[..., Any])
Event = Mapping[str, Any]
# Name of a landing: id of the run that the landing belongs to. The newest landing is the last.
Owners = dict[str, str]


def once_per_landing(function: Function) -> Function:
    """Give a task's function `landings`: the landings that started the run, except landings of another run.

    A landing belongs to the first run that gets the landing, also in that run's retries and after a clear. The task is
    skipped if all landings belong to other runs. The DAG needs `max_active_runs=1`, and the task needs the watched
    assets as its `inlets`.

    .. seealso:: docs/events.md
    """
    signature = inspect.signature(function)
    if _ARGUMENT not in signature.parameters:
        raise InvalidArgument(_ARGUMENT, f"{function.__name__} does not take it.", "Write def roll_up(landings): ...")

    @functools.wraps(function)
    def with_landings(*args: Any, **kwargs: Any) -> Any:
        with airflow_errors():
            landings = _landings_of(get_current_context())
        if not landings:
            raise AirflowSkipException("Each landing that started this run belongs to another run: nothing to do.")
        return function(*args, landings=landings, **kwargs)

    own_parameters = [parameter for name, parameter in signature.parameters.items() if name != _ARGUMENT]
    # TaskFlow binds the arguments when the DAG is parsed: there are no landings yet.
    shown_signature = signature.replace(parameters=own_parameters)
    with_landings.__signature__ = shown_signature  # type: ignore[attr-defined]  # mypy does not know this attribute
    return with_landings  # type: ignore[return-value]  # it takes the function's arguments except the landings


def claim_landings(owners: Owners, run_id: str, landings: list[Event]) -> tuple[list[Event], Owners]:
    """Return a run's own landings, and the owner of each landing from now on.

    A landing without an owner gets this run as the owner. The oldest owners beyond `MOST_KEPT` are forgotten.

    :param owners: the owner of each landing until now, the newest last.
    :param landings: the landings that started the run, maybe repeated.
    """
    own: dict[str, Event] = {}
    after = dict(owners)
    for landing in landings:
        if after.setdefault(name_of(landing), run_id) == run_id:
            own.setdefault(name_of(landing), landing)
    kept = list(after.items())[-max(MOST_KEPT, len(landings)) :]
    return list(own.values()), dict(kept)


def name_of(landing: Event) -> str:
    """Return the unique name of a landing; the tables of a fan-out may share an id."""
    return f"{landing['landing_id']} of {landing['table']}"


def _landings_of(context: Any) -> list[Event]:
    """Return the landings of all assets that belong to this run."""
    if not AIRFLOW_V_3_3_PLUS:
        raise AirflowTooOld("once_per_landing needs Airflow 3.3 or newer, like LandingEventTrigger.")
    max_active_runs = context["dag"].max_active_runs
    if max_active_runs != 1:
        raise InvalidArgument(
            "max_active_runs",
            f"is {max_active_runs}: two runs at the same time could both take a landing.",
            "Give the DAG max_active_runs=1.",
        )
    landings_by_name: dict[str, Event] = {}
    for asset, events in context["triggering_asset_events"].items():
        landings = [landing for event in events if (landing := _landing_of(event.extra)) is not None]
        if landings:
            landings_by_name |= {name_of(landing): landing for landing in _claimed(context, asset, landings)}
    return list(landings_by_name.values())


def _landing_of(extra: Mapping[str, Any] | None) -> Event | None:
    """Return the landing of an event of `LandingEventTrigger`, or None for another event."""
    payload = (extra or {}).get("payload")
    return payload if isinstance(payload, Mapping) and {"landing_id", "table"} <= set(payload) else None


def _claimed(context: Any, asset: Any, landings: list[Event]) -> list[Event]:
    """Return the landings of an asset that belong to this run, and store the owners with the asset."""
    ti = context["ti"]
    try:
        store = context["asset_state_store"][asset]
    except KeyError as e:
        raise InvalidArgument(
            "inlets",
            f"the asset {asset.name!r} is not among them.",
            "Write @task(inlets=[...]): the asset keeps the landings that are done.",
        ) from e
    key = state_key(f"lakestream.landings/{ti.dag_id}/{ti.task_id}")
    owners: Owners = dict(store.get(key, []))
    own, after = claim_landings(owners, ti.run_id, landings)
    if dropped := set(map(name_of, landings)) - set(map(name_of, own)):
        log.info("Other runs have these landings: %s", ", ".join(sorted(dropped)))
    if after != owners:
        # Stored before the function is called: a run killed inside keeps its landings, and no other run gets them.
        store.set(key, [[name, owner] for name, owner in after.items()])
    return own
