"""LandingEventTrigger in Airflow's own shared stream: what is told through kills at each place where one may come."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.execution_time.context import AssetStateStoreAccessor, AssetStateStoreAccessors
from airflow.triggers.shared_stream import AdvanceItem, AdvanceOutcome, SharedStreamManager

from airflow_lakestream.core.event_cursor import EventCursor
from airflow_lakestream.exceptions import AirflowTooOld, InvalidArgument, LakestreamError
from airflow_lakestream.triggers import landing_event
from airflow_lakestream.triggers.landing_cursor import AssetCursors, StreamSubscription
from airflow_lakestream.triggers.landing_event import LandingEventTrigger
from airflow_lakestream.triggers.landing_stream import LandingProducer
from tests.support.event_loop import in_loop
from tests.support.told import GROUP, TABLE, TOPIC, ToldTable

POLL = 0.02
LOOKS = 20


@dataclass
class State:
    """Airflow's state of assets, as rows; a killed triggerer writes nothing any more."""

    rows: dict[tuple[str, str], Any] = field(default_factory=dict)
    is_killed: bool = False


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> State:
    """Give what `AssetStateStoreAccessor` writes to instead of a database."""
    given = State()

    async def aget(self: Any, key: str, default: Any = None) -> Any:
        await asyncio.sleep(0)
        return given.rows.get((self._name, key), default)

    async def aset(self: Any, key: str, value: Any) -> None:
        await asyncio.sleep(0)
        if not given.is_killed:
            given.rows[self._name, key] = value

    monkeypatch.setattr(AssetStateStoreAccessor, "aget", aget)
    monkeypatch.setattr(AssetStateStoreAccessor, "aset", aset)
    return given


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToldTable:
    given = ToldTable(tmp_path, random.Random(1))

    class Places:
        def catalog(self, conn_id: str) -> Any:
            return given.catalog()

    monkeypatch.setattr("airflow_lakestream.hooks.places.AirflowPlaces", Places)
    return given


@dataclass
class Triggerer:
    """Runs one trigger as Airflow 3.3's triggerer does; `stored` is what reached the database.

    :param chance: of an end at each place where one may come.
    :param graceful: ends by cancelling the trigger, as a triggerer that is shut down does, not by a kill.
    """

    state: State
    rng: random.Random
    chance: float = 0.0
    graceful: bool = False
    assets: tuple[str, ...] = ("a",)
    stored: list[dict[str, Any]] = field(default_factory=list)

    def live(self, until: str | None = None, **arguments: Any) -> None:
        """Tell until a landing's event is stored and acknowledged, or some looks after it has begun, or it dies."""
        asyncio.run(self.telling(until, 30, arguments))

    @property
    def ids(self) -> list[str]:
        return [one["landing_id"] for one in self.stored]

    async def telling(self, until: str | None, seconds: float, arguments: dict[str, Any]) -> None:
        trigger = LandingEventTrigger(table=TABLE, poll_interval=POLL, **arguments)
        trigger.asset_state_store = AssetStateStoreAccessors(inlets=[Asset(name) for name in self.assets])
        manager, key = SharedStreamManager(), trigger.shared_stream_key()
        stream = trigger.filter_shared_stream(manager.subscribe(trigger_id=1, trigger=trigger, key=key))
        telling = asyncio.create_task(self._tell(manager, key, stream))
        clock = asyncio.get_running_loop().time
        end, begun = clock() + seconds, None
        while not telling.done() and clock() < end and not self._acknowledged(until):
            if until is None and begun is None and len(self.state.rows) == len(self.assets):
                begun = clock()
                end = begun + LOOKS * POLL
            await asyncio.sleep(0.01)
        telling.cancel()
        with suppress(asyncio.CancelledError):
            await telling
        await manager.unsubscribe(1, key)
        await manager.stop_all()
        await stream.aclose()
        self.state.is_killed = False

    def _acknowledged(self, until: str | None) -> bool:
        if until not in self.ids:
            return False
        told = next(one for one in self.stored if one["landing_id"] == until)
        return all(EventCursor.parse(one).sequence >= told["sequence"] for one in self.state.rows.values())

    async def _tell(self, manager: SharedStreamManager, key: Any, stream: Any) -> None:
        async for event in stream:
            # The runner logs an event before it binds it to its answer, and may be cancelled there.
            if self._dies():
                return
            seq = manager.bind_pending_event(trigger_id=1, key=key)
            if self._dies():
                return
            self.stored.append(event.payload)
            await asyncio.sleep(0)
            if self._dies():
                return
            manager.confirm_persisted([seq])

    def _dies(self) -> bool:
        dies = self.rng.random() < self.chance
        self.state.is_killed = dies and not self.graceful
        return dies


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("graceful", [False, True], ids=["killed", "cancelled"])
def test_each_landing_is_told_through_kills_and_nothing_else(
    state: State, table: ToldTable, seed: int, graceful: bool
) -> None:
    rng = random.Random(seed)
    triggerer = Triggerer(state, rng, chance=0.15, graceful=graceful)
    triggerer.live()
    taken_back: set[str] = set()
    for _ in range(6):
        for _ in range(rng.randint(1, 4)):
            if rng.random() < 0.7:
                table.land()
            elif rng.random() < 0.7:
                table.other()
            else:
                taken_back |= set(table.roll_back())
        triggerer.live()
    last = table.land()
    triggerer.chance = 0.0
    triggerer.live(last)
    assert set(table.landed) - taken_back <= set(triggerer.ids) <= set(table.landed)
    in_order = [one for one in dict.fromkeys(triggerer.ids) if one not in taken_back]
    assert in_order == [one for one in table.landed if one not in taken_back]


def test_a_stream_ends_when_it_is_cancelled_as_an_event_is_stored(state: State, table: ToldTable) -> None:
    table.land()
    trigger = LandingEventTrigger(table=TABLE, since="earliest", poll_interval=600)
    subscription = StreamSubscription(
        AssetCursors(AssetStateStoreAccessors(inlets=[Asset("a")]), trigger.cursor_key), last_taken=1
    )
    producer = LandingProducer(trigger.serialize()[1], subscription)
    told: list[Any] = []

    async def tell() -> None:
        async for item in producer.open_stream():
            told.append(item)

    async def store_and_cancel() -> bool:
        telling = asyncio.create_task(tell())
        while not told or subscription.events_stored.is_set():
            await asyncio.sleep(0.01)
        await producer.advance([AdvanceItem(told[0][1], AdvanceOutcome(acked=1, failed=0))])
        telling.cancel()
        await asyncio.wait({telling}, timeout=30)
        return telling.cancelled()

    assert asyncio.run(store_and_cancel())


def test_an_event_has_its_proof(state: State, table: ToldTable) -> None:
    triggerer = Triggerer(state, table.rng)
    landing_id = table.land(covered=True)
    triggerer.live(landing_id, since="earliest")
    [told] = triggerer.stored
    snapshot = table.table.current_snapshot()
    assert snapshot is not None
    assert told == {
        "table": TABLE,
        "consumer_group": GROUP,
        "landing_id": landing_id,
        "run_id": "run-0",
        "engine": None,
        "sequence": 1,
        "snapshot_id": str(snapshot.snapshot_id),
        "at": told["at"],
        "rows": 1,
        "rejected": 0,
        "ranges": {TOPIC: [[0, 0, 1]]},
        "lost": {},
        "replaces": False,
        "covered": [["1970-01-01T00:00:00+00:00", "1970-01-01T01:00:00+00:00"]],
        "complete_through": None,
        "schema_changes": [],
        "earlier_expired": False,
    }


def test_nothing_blocks_the_triggerers_loop(state: State, table: ToldTable) -> None:
    triggerer = Triggerer(state, table.rng)
    table.land()
    table.append()
    last = table.land()
    _, blocked = in_loop(lambda: triggerer.telling(last, 30, {"since": "earliest"}))
    assert triggerer.ids == table.landed
    assert blocked == []


def test_it_begins_now_and_keeps_that_even_if_it_is_killed_before_the_first_landing(
    state: State, table: ToldTable
) -> None:
    table.land()
    triggerer = Triggerer(state, table.rng)
    triggerer.live()
    [kept] = state.rows.values()
    assert EventCursor.parse(kept).sequence == 1
    second = table.land()
    triggerer.live(second)
    assert triggerer.ids == [second]


def test_two_assets_of_one_trigger_keep_their_cursors(state: State, table: ToldTable) -> None:
    triggerer = Triggerer(state, table.rng, assets=("a", "b"))
    triggerer.live()
    first = table.land()
    triggerer.live(first)
    cursors = {name: value for (name, _), value in state.rows.items()}
    assert set(cursors) == {"a", "b"}
    assert cursors["a"] == cursors["b"]
    state.rows[next(key for key in state.rows if key[0] == "a")] = EventCursor(0, None, cursors["a"]["table"]).to_json()
    second = table.land()
    triggerer.live(second)
    # What one asset lacks is told again.
    assert triggerer.ids[-2:] == [first, second]


def test_a_table_that_comes_later_is_told_from_its_first_landing(state: State, table: ToldTable) -> None:
    table.catalog().drop_table(TABLE)
    triggerer = Triggerer(state, table.rng)
    triggerer.live()
    table.__init__(Path(table.where["warehouse"].removeprefix("file://")).parent, table.rng)
    landing_id = table.land()
    triggerer.live(landing_id)
    assert triggerer.ids == [landing_id]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"table": "orders"}, "not of the form namespace.table"),
        ({"table": "{{ params.table }}"}, "is a template"),
        ({"table": TABLE, "since": "yesterday"}, "'now', 'earliest'"),
        ({"table": TABLE, "consumer_group": "a b"}, "consumer_group"),
        ({"table": TABLE, "poll_interval": 0}, "above 0"),
        ({"table": "s3://bucket/orders", "kafka_conn_id": "kafka_default"}, "are for Iceberg tables"),
    ],
)
def test_what_can_not_work_is_refused_where_the_dag_is_parsed(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        LandingEventTrigger(**arguments)


def test_an_older_airflow_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landing_event, "AIRFLOW_V_3_3_PLUS", False)
    with pytest.raises(AirflowTooOld, match=r"needs Airflow 3.3.*would lose landings"):
        LandingEventTrigger(table=TABLE)


def test_without_an_asset_it_says_why_it_does_nothing() -> None:
    trigger = LandingEventTrigger(table=TABLE)
    assert trigger.shared_stream_key() is None

    async def first() -> Any:
        return await anext(aiter(trigger.run()))

    with pytest.raises(LakestreamError, match="give it to an AssetWatcher"):
        asyncio.run(first())


def test_it_is_made_again_from_what_airflow_keeps() -> None:
    path, given = LandingEventTrigger(table=TABLE, poll_interval="30s").serialize()
    assert path == f"{LandingEventTrigger.__module__}.LandingEventTrigger"
    assert LandingEventTrigger(**given).serialize() == (path, given)


def test_tables_with_long_names_that_begin_alike_have_cursors_of_their_own() -> None:
    table = "s3://bucket/" + "folder/" * 80
    keys = {LandingEventTrigger(table=f"{table}{name}").cursor_key for name in ("a", "b")}
    assert len(keys) == 2
    assert {len(key) for key in keys} == {512}
    # A key that is short enough is what earlier versions have stored.
    assert LandingEventTrigger(table="s3://bucket/a").cursor_key == "lakestream.told/iceberg_default/s3://bucket/a/"
