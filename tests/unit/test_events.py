"""Which run a landing belongs to, through random histories of events that come twice, retries and cleared runs."""

from __future__ import annotations

import inspect
import random
from typing import Any

import pytest

from airflow_lakestream import events
from airflow_lakestream.events import MOST_KEPT, claim_landings, once_per_landing
from airflow_lakestream.exceptions import AirflowTooOld, InvalidArgument


def landing(number: int, table: str = "lake.t") -> dict[str, Any]:
    return {"landing_id": f"id-{number}", "table": table}


@pytest.mark.parametrize("seed", range(50))
def test_each_landing_has_one_run_whatever_comes_twice(seed: int) -> None:
    rng = random.Random(seed)
    owners: dict[str, str] = {}
    runs: dict[str, list[dict[str, Any]]] = {}
    done: dict[str, set[str]] = {}
    told = 0
    for step in range(40):
        if runs and rng.random() < 0.4:
            # A retry, or a cleared run: the same events again.
            run_id = rng.choice(list(runs))
        else:
            run_id = f"run-{step}"
            new = [landing(told + n) for n in range(rng.randint(0, 3))]
            again = [landing(n) for n in range(told) if rng.random() < 0.2]
            told += len(new)
            runs[run_id] = [*again, *new, *new[:1]]
        own, owners = claim_landings(owners, run_id, runs[run_id])
        for one in own:
            done.setdefault(one["landing_id"], set()).add(run_id)
        assert len(own) == len({one["landing_id"] for one in own})
    assert {f"id-{n}" for n in range(told)} == set(done)
    assert all(len(of) == 1 for of in done.values())


def test_tables_of_a_fan_out_may_share_an_id() -> None:
    own, _ = claim_landings({}, "run", [landing(1, "lake.a"), landing(1, "lake.b")])
    assert len(own) == 2


def test_the_newest_are_remembered_and_all_of_one_run() -> None:
    _, owners = claim_landings({}, "run", [landing(n) for n in range(MOST_KEPT + 5)])
    assert len(owners) == MOST_KEPT + 5
    _, owners = claim_landings(owners, "next", [landing(-1)])
    assert (len(owners), list(owners)[-1]) == (MOST_KEPT, "id--1 of lake.t")


def test_a_task_is_bound_without_its_landings() -> None:
    @once_per_landing
    def roll_up(landings: Any, table: str, ti: Any = None) -> None:
        """Count."""

    assert list(inspect.signature(roll_up).parameters) == ["table", "ti"]
    assert (roll_up.__name__, roll_up.__doc__) == ("roll_up", "Count.")


def test_a_function_that_takes_no_landings_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="roll_up does not take it"):

        @once_per_landing
        def roll_up(events: Any) -> None: ...


class Dag:
    max_active_runs = 16


def test_runs_at_the_same_time_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"max_active_runs: is 16.*max_active_runs=1"):
        events._landings_of({"dag": Dag()})


def test_an_older_airflow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "AIRFLOW_V_3_3_PLUS", False)
    with pytest.raises(AirflowTooOld):
        events._landings_of({})


def test_an_asset_that_is_no_inlet_is_named() -> None:
    class Told:
        extra = {"payload": landing(1)}

    class Orders:
        name = "orders"

    class One:
        max_active_runs = 1

    class Task:
        dag_id, task_id, run_id = "d", "t", "r"

    context = {"dag": One(), "ti": Task(), "triggering_asset_events": {Orders(): [Told()]}}
    with pytest.raises(InvalidArgument, match=r"inlets: the asset 'orders' is not among them"):
        events._landings_of(context)


def test_tasks_with_long_ids_that_begin_alike_each_have_the_landings() -> None:
    class Orders:
        name = "orders"

    class Kept(dict[str, Any]):
        set = dict.__setitem__

    class One:
        max_active_runs = 1

    asset, kept = Orders(), Kept()
    told = type("Told", (), {"extra": {"payload": landing(1)}})()
    for number, task_id in enumerate(("t" * 249 + "a", "t" * 249 + "b")):
        ti = type("Task", (), {"dag_id": "d" * 250, "task_id": task_id, "run_id": f"r{number}"})()
        context = {
            "dag": One(),
            "ti": ti,
            "triggering_asset_events": {asset: [told]},
            "asset_state_store": {asset: kept},
        }
        assert events._landings_of(context) == [landing(1)]
