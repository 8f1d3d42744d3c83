"""What others have written into Airflow's database: it is shown, or it is named, and it ends nothing."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from airflow.models.xcom import XComModel
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from airflow_lakestream.ui.page.landings import landing_of
from airflow_lakestream.ui.page.shapes import Odd
from airflow_lakestream.ui.page.states import StateFacts, state_of, with_advice
from airflow_lakestream.ui.page.streams import offsets_of
from airflow_lakestream.ui.page.supervision import _CONTENTS, SupervisionResult, _open_rejects, look_value
from tests.unit.page.test_states import AT, ended

NUMBERS = st.one_of(st.integers(), st.sampled_from([10**400, -(2**70), 2**63]), st.floats())
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(st.characters(exclude_categories=[])))
KEYS = ["read", "rows_in", "rows", "rows_out", "tables", "rejected", "skipped", "remaining_lag", "lag", "snapshot_ids"]
KEYS += ["schema_changes", "ranges", "lost", "topic", "table", "consumer_group", "topics", "reasons", "time_left"]
KEYS += ["files", "snapshots", "rejects", "count", "newest", "samples", "cause", "text"]
NAMES = st.one_of(st.sampled_from(KEYS), st.text(max_size=3))
ANY = st.recursive(
    SCALARS, lambda one: st.lists(one, max_size=4) | st.dictionaries(NAMES, one, max_size=4), max_leaves=20
)
REPORT: dict[str, Any] = {
    **{"read": 1, "rows": 1, "tables": {"lake.t": 1}, "rejected": 0, "skipped": 0, "remaining_lag": 0},
    **{
        "topic": "t",
        "table": "lake.t",
        "consumer_group": "g",
        "snapshot_ids": ["1"],
        "ranges": [[0, 0, 1]],
        "lost": [],
    },
    **{"schema_changes": ["a column"]},
}


def sent(value: Any) -> str:
    """Return what a server sends of it: strict JSON, in UTF-8."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False).encode().decode()


@given(st.sampled_from(KEYS), ANY)
def test_any_value_in_a_report_is_shown_or_named(name: str, value: Any) -> None:
    landing = landing_of(AT, "new", -1, {**REPORT, "rows_in": 1, name: value})
    assert landing is not None
    state, why = state_of(StateFacts(False, False, ended("success"), landing, None))
    sent([landing.to_dict(), dict(landing.names), offsets_of([landing]), state, with_advice(why)])
    assert any(landing.problem in one.text for one in why) or not landing.problem


@given(ANY)
def test_any_value_is_no_report_or_shown_or_named(value: Any) -> None:
    if (landing := landing_of(AT, "new", None, value)) is not None:
        sent([landing.to_dict(), offsets_of([landing])])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("rejected", one) for one in ("many", True, 0.5, [], {}, 2**63, float("nan"))),
        *(("tables", one) for one in ("many", ["lake.t"], {"lake.t": "many"})),
        *(("remaining_lag", one) for one in ("many", {"0": 5})),
        *(("snapshot_ids", one) for one in (5, "5", [None, {}])),
        *(("ranges", one) for one in ([[0, 1]], [1, 2, 3], [["a", 0, 1]], [[0, None, 1]], {"0": [0, 1]})),
        ("schema_changes", [5]),
        ("lost", 5),
        *(("read", one) for one in ("many", "", False, [], {})),
        ("rows_in", "many"),
        ("topic", ["t"]),
        ("topics", {"t": {"ranges": "all"}}),
    ],
)
def test_a_value_of_another_kind_is_named(name: str, value: Any) -> None:
    landing = landing_of(AT, "r", -1, {**REPORT, name: value})
    assert landing is not None
    assert landing.problem.startswith(name)
    assert landing.rows == 0


@pytest.mark.parametrize("value", ["many", "", "5", 3, False, [], [{"read": 1}]])
def test_what_is_no_report_is_named(value: Any) -> None:
    landing = landing_of(AT, "r", -1, value)
    assert landing is not None
    assert landing.problem.endswith("not a mapping")


def test_an_odd_report_is_of_the_stream_of_its_table() -> None:
    landing = landing_of(AT, "r", -1, {**REPORT, "table": "lake.other", "rejected": "many"})
    assert landing is not None
    assert dict(landing.names) == {"table": "lake.other"}


@given(ANY, st.sampled_from(["lag", "retention", "freshness"]))
def test_any_value_of_a_look_is_shown_or_odd(value: Any, what: str) -> None:
    said = SupervisionResult("s", "r", AT)
    try:
        shown = look_value(value)
    except Odd as odd:
        shown, said.problems[what] = None, str(odd)
    said.looks[what] = {"well": False, "value": shown}
    _, why = state_of(StateFacts(False, False, ended("success"), None, said))
    sent([said.to_dict(), with_advice(why)])
    assert all(any(problem in one.text for one in why) for problem in said.problems.values())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"rejects": {"count": 60, "reasons": [{"samples": ["long"]}]}}, 60),
        ({"rejects": {"count": 0}}, 0),
        *(
            (one, None)
            for one in ({"rejects": {"count": "60"}}, {"rejects": {"count": 0.5}}, {"rejects": [1]}, [1], "", 5)
        ),
        *((one, None) for one in ({}, None, {"rejects": {"count": [[]]}})),
    ],
)
def test_open_rejects_are_a_number_or_unknown(value: Any, expected: int | None) -> None:
    engine = create_engine("sqlite://")
    XComModel.__table__.create(engine)
    row = {"dag_run_id": 7, "key": "return_value", "dag_id": "s", "run_id": "r", "timestamp": AT}
    with Session(engine) as session:
        for task_id, run in (("looks_inside", 7), ("is_fresh", 7), ("looks_inside", 8)):
            session.execute(
                XComModel.__table__.insert(),
                [{**row, "dag_run_id": run, "task_id": task_id, "map_index": n, "value": value} for n in range(2)],
            )
        found = _open_rejects(session, 7, {"looks_inside"})
        assert _open_rejects(session, 7, set()) == {}
    assert {**dict.fromkeys(found, expected)} == found
    assert set(found) == (set() if expected is None else {("looks_inside", n) for n in range(2)})


@given(ANY)
def test_any_contents_are_shown_or_odd(value: Any) -> None:
    with suppress(Odd):
        sent(_CONTENTS("", value))
