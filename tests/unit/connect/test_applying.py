"""How a connector comes to run, on a model of Connect and Kafka: what is sent, in what order, and after any crash."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_lakestream.connect.client import (
    ConnectClient,
    ConnectorState,
    ConnectorStatus,
    NoSuchConnector,
    TaskStatus,
)
from airflow_lakestream.connect.configuration import ICEBERG_SINK, ConfigRefused, complete_config
from airflow_lakestream.connect.connector import ConnectorKind, ConnectorSpec, OnKillConnector
from airflow_lakestream.connect.driving import ConnectorSetup, ConnectorSupervision, stop_connector
from airflow_lakestream.connect.publishing import BranchPublisher
from airflow_lakestream.core.publishing.branch import ValueDifference
from airflow_lakestream.core.publishing.refusals import (
    LandedAhead,
    PublicationRefused,
    RecordDoubted,
    RowsDiffer,
    RowsOnMain,
    RowsTwice,
)
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.driver.supervisor import SupervisionHistory, SupervisionLimits, SupervisorAction
from airflow_lakestream.exceptions import BadRecord
from airflow_lakestream.kafka.groups import KafkaGroups

GIVEN = {"topics": "orders", "iceberg.tables": "a.b", "iceberg.catalog.type": "rest"}
LEDGER_END = {0: 7, 1: 9}
CONTROL_END = {0: 40}


class Crash(Exception):
    """The process dies here."""


@dataclass
class Model:
    """Connect, and the groups at Kafka. `calls` are those that change something; before number `dies_at` it dies."""

    config: dict[str, str] | None = None
    state: ConnectorState = ConnectorState.STOPPED
    topics: set[str] = field(default_factory=set)
    offsets: dict[str, Mapping[int, int]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    dies_at: int = -1
    # What its tasks found when they began to run.
    began_at: list[dict[str, Mapping[int, int]]] = field(default_factory=list)
    failed: bool = False
    # The ledger has offsets above the first one that it lacks.
    ahead: bool = False
    # By the tasks' group.
    committed: Mapping[int, int] = field(default_factory=dict)

    def did(self, what: str) -> None:
        if len(self.calls) == self.dies_at:
            raise Crash
        self.calls.append(what)

    def client(self) -> ConnectClient:
        known = SimpleNamespace(
            config=lambda _: None if self.config is None else {**self.config, "name": "c"},
            status=self._status,
            plugins=lambda: {ICEBERG_SINK, "x.Source"},
            validate=lambda config: (set(config), {}),
            create_stopped=self._create,
            configure=self._configure,
            resume=self._resume,
            stop=lambda _: self._set("stop", ConnectorState.STOPPED),
            pause=lambda _: self._set("pause", ConnectorState.PAUSED),
            restart=self._restart,
            set_offsets=self._set_offsets,
        )
        return cast(ConnectClient, known)

    def groups(self) -> KafkaGroups:
        marks = {p: SimpleNamespace(low=0, end=end) for p, end in CONTROL_END.items()}
        watch = SimpleNamespace(topic=lambda topic: self._topic(topic, marks))
        known = SimpleNamespace(
            watch=watch,
            make_topic=self._make_topic,
            set_committed=self._set_committed,
            await_empty=lambda _: None,
            committed=lambda *_: self.committed,
        )
        return cast(KafkaGroups, known)

    def _topic(self, topic: str, marks: Any) -> Any:
        assert topic in self.topics, "asked for before it was made"
        return SimpleNamespace(marks=marks)

    def _status(self, _: str) -> ConnectorStatus:
        if self.config is None:
            raise NoSuchConnector("c")
        task = ConnectorState.FAILED if self.failed else ConnectorState.RUNNING
        tasks = () if self.state is ConnectorState.STOPPED else (TaskStatus(0, task),)
        return ConnectorStatus(self.state, tasks)

    def _create(self, _: str, config: Mapping[str, str]) -> None:
        self.did("create")
        assert self.config is None
        self.config, self.state = dict(config), ConnectorState.STOPPED

    def _configure(self, _: str, config: Mapping[str, str]) -> None:
        self.did("configure")
        self.state = ConnectorState.RUNNING if self.config is None else self.state
        self.config = dict(config)

    def _resume(self, _: str) -> None:
        self.did("resume")
        if self.state is ConnectorState.STOPPED:
            self.began_at.append(dict(self.offsets))
        self.state = ConnectorState.RUNNING

    def _restart(self, _: str, only_failed: bool) -> None:
        self.did(f"restart {only_failed}")
        self.failed = False

    def _set(self, what: str, state: ConnectorState) -> None:
        if self.config is None:
            raise NoSuchConnector("c")
        self.did(what)
        self.state = state

    def _set_offsets(self, _: str, topic: str, offsets: Mapping[int, int]) -> None:
        self.did(f"offsets of {topic}")
        assert self.state is ConnectorState.STOPPED
        self.offsets["tasks"] = dict(offsets)

    def _set_committed(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        self.did(f"offsets of {topic}")
        assert self.state is ConnectorState.STOPPED
        assert group.endswith("-coord")
        self.offsets["coordinator"] = dict(offsets)

    def _make_topic(self, topic: str) -> bool:
        self.did("topic")
        self.topics.add(topic)
        return True


def spec(interval: float = 5, **settings: str) -> ConnectorSpec:
    given = {**GIVEN, **{key.replace("_", "."): value for key, value in settings.items()}}
    sink = complete_config("c", given, "lake", interval)
    return ConnectorSpec(
        "c", ConnectorKind.ICEBERG_SINK, sink.config, SupervisionLimits(), 0.01, 5, sink, sink.coordinator_group
    )


def applying(
    model: Model, wanted: ConnectorSpec | None = None, publish: Callable[[bool], None] = lambda _: None
) -> ConnectorSetup:
    def begin_again() -> Mapping[int, int]:
        assert model.state is ConnectorState.STOPPED
        if model.ahead:
            raise LandedAhead("a.b", "g", RangeSet.of("orders", 0, 8, 9))
        return LEDGER_END

    publisher = cast(BranchPublisher, SimpleNamespace(begin=lambda: LEDGER_END, begin_again=begin_again))
    return ConnectorSetup(wanted or spec(), model.client(), model.groups(), publisher, publish, lambda _: None)


STARTED = {"tasks": LEDGER_END, "coordinator": CONTROL_END}


def test_a_sink_is_made_stopped_and_begins_where_the_ledger_ends() -> None:
    model = Model()
    applying(model).apply()
    assert model.calls == ["create", "topic", "offsets of lakestream-control-c", "offsets of orders", "resume"]
    assert model.began_at == [STARTED]
    assert model.config == spec().config


@pytest.mark.parametrize("dies_at", range(5))
@pytest.mark.parametrize("again", range(4))
def test_whenever_its_start_dies_tasks_run_only_once_all_offsets_are_set(dies_at: int, again: int) -> None:
    model = Model(dies_at=dies_at)
    with pytest.raises(Crash):
        applying(model).apply()
    model.dies_at = len(model.calls) + again
    try:
        applying(model).apply()
    except Crash:
        model.dies_at = -1
        applying(model).apply()
    assert model.began_at == [STARTED]
    assert model.state is ConnectorState.RUNNING
    assert model.calls.count("create") == 1


def test_what_is_as_it_is_wanted_gets_nothing_sent() -> None:
    model = Model(dict(spec().config), ConnectorState.RUNNING)
    assert "it is configured as required" in applying(model).apply()
    assert model.calls == []


def test_a_difference_is_sent_once_and_another_topic_is_refused() -> None:
    model = Model(dict(spec().config), ConnectorState.RUNNING)
    assert "tasks.max" in applying(model, spec(tasks_max="3")).apply()
    applying(model, spec(tasks_max="3")).apply()
    assert model.calls == ["configure"]
    for settings in ({"topics": "other"}, {"iceberg.tables": "a.c"}):
        sink = complete_config("c", GIVEN | settings, "lake", 5)
        other = ConnectorSpec("c", ConnectorKind.ICEBERG_SINK, sink.config, SupervisionLimits(), 1, 5, sink)
        with pytest.raises(ConfigRefused, match=f"another {next(iter(settings))}"):
            applying(model, other).apply()
    # One that writes main itself.
    direct = Model({**spec().config, "iceberg.tables.default-commit-branch": "main"}, ConnectorState.RUNNING)
    with pytest.raises(ConfigRefused, match="commit-branch"):
        applying(direct).apply()
    assert direct.calls == []


def test_a_stopped_sink_is_published_first_and_starts_where_the_ledger_ends() -> None:
    model = Model(dict(spec().config), ConnectorState.STOPPED)
    seen: list[list[str]] = []
    applying(model, publish=lambda is_stopped: seen.append([str(is_stopped), *model.calls])).apply()
    assert seen == [["True", "stop", "topic"]]
    assert model.began_at == [STARTED]


REFUSALS = (
    RowsOnMain("a.b", "b", RangeSet.of("orders", 0, 8, 9)),
    RowsDiffer("a.b", "b", RangeSet.of("orders", 0, 8, 9), [ValueDifference("orders", 0, 8, ("id",))]),
    RecordDoubted("a.b", "b", BadRecord("orders", 0, 8, "it is bad")),
)


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("state", [ConnectorState.RUNNING, ConnectorState.STOPPED])
def test_what_nobody_may_land_is_read_again_from_where_the_ledger_ends(
    refusal: PublicationRefused, state: ConnectorState
) -> None:
    model = Model(dict(spec().config), state)

    def publish(_: bool) -> None:
        raise refusal

    applying(model, publish=publish).apply()
    assert model.calls[:2] == ["stop", "topic"]
    assert model.began_at == [STARTED]


def test_other_refusals_are_a_persons_matter() -> None:
    model = Model(dict(spec().config), ConnectorState.RUNNING)

    def publish(_: bool) -> None:
        raise RowsTwice("a.b", "b", 2, "orders[0] 8")

    with pytest.raises(RowsTwice):
        applying(model, publish=publish).apply()
    assert model.calls == []


def test_a_sink_does_not_begin_below_what_the_ledger_has_and_does_once_the_hole_is_filled() -> None:
    model = Model(dict(spec().config), ConnectorState.STOPPED, ahead=True)
    with pytest.raises(LandedAhead, match="Run KafkaExtractOperator once"):
        applying(model).apply()
    assert (model.state, model.began_at) == (ConnectorState.STOPPED, [])
    model.ahead = False
    applying(model).apply()
    assert model.began_at == [STARTED]


def test_a_failed_sink_behind_the_ledger_begins_anew_where_that_ends() -> None:
    for committed, calls in (({0: 7, 1: 9}, []), ({0: 7}, []), ({0: 7, 1: 8}, ["stop", "topic"])):
        model = Model(config=dict(spec().config), state=ConnectorState.RUNNING, failed=True, committed=committed)
        applying(model).apply()
        assert model.calls[:2] == calls
        assert model.began_at == ([STARTED] if calls else [])


def test_a_paused_one_goes_on_where_it_was() -> None:
    model = Model(dict(spec().config), ConnectorState.PAUSED)
    applying(model).apply()
    assert (model.calls, model.state) == (["resume"], ConnectorState.RUNNING)


def test_a_connector_without_a_ledger_is_made_running() -> None:
    model = Model()
    wanted = ConnectorSpec("c", ConnectorKind.SOURCE, {"connector.class": "x.Source"}, SupervisionLimits(), 1, 5)
    ConnectorSetup(wanted, model.client(), None, None, lambda _: None, lambda _: None).apply()
    assert (model.calls, model.state) == (["configure"], ConnectorState.RUNNING)
    unknown = ConnectorSpec("d", ConnectorKind.SOURCE, {"connector.class": "x.Sink"}, SupervisionLimits(), 1, 5)
    with pytest.raises(ConfigRefused, match="is not installed on the workers"):
        ConnectorSetup(unknown, Model().client(), None, None, lambda _: None, lambda _: None).apply()


def test_failed_tasks_that_are_found_are_restarted_and_what_another_process_knew_stays_known() -> None:
    model = Model({"connector.class": "x.Source"}, ConnectorState.RUNNING, failed=True)
    wanted = ConnectorSpec("c", ConnectorKind.SOURCE, {"connector.class": "x.Source"}, SupervisionLimits(), 0.01, 5)
    driving = ConnectorSupervision(wanted, model.client(), None, None, lambda _: None)
    driving.begin()
    assert model.calls == ["restart True"]
    driving.begin(SupervisionHistory(submitted_at=0, restarts=1))
    assert model.calls == ["restart True", "restart False"]
    handed = driving.to_hand_on()
    taken = ConnectorSupervision(wanted, model.client(), None, None, lambda _: None, handed)
    taken.resume(SupervisionHistory(submitted_at=time.time(), restarts=3))
    decision = taken.follow(lambda _: None, until_started=True)
    assert (decision.action, decision.history.restarts) == (SupervisorAction.WAIT, 3)


@pytest.mark.parametrize(
    ("action", "calls"),
    [(OnKillConnector.STOP, ["stop"]), (OnKillConnector.PAUSE, ["pause"]), (OnKillConnector.LEAVE, [])],
)
def test_what_a_kill_does(action: OnKillConnector, calls: list[str]) -> None:
    model = Model({"connector.class": "x.Source"}, ConnectorState.RUNNING)
    stop_connector(model.client(), "c", action)
    assert model.calls == calls
    assert "there is no connector" in stop_connector(Model().client(), "c", OnKillConnector.STOP)
