"""Any values at all, against a model: a record lands in a table of its own fan-out or is rejected; no other changes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.exceptions import NoSuchTableError

from airflow_lakestream.core.routing import MIRROR
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.run.job import ExtractConfig
from airflow_lakestream.run.topics import land_run
from dev.services.kafka import Kafka
from tests.support.broker import Producing, Topics
from tests.support.lake import GROUP, QUICK_RETRIES, Lake

pytestmark = pytest.mark.integration

SCHEMA = "n bigint, kind string"
HOME, REJECTS = "lake.home", "lake.home__rejected"
# Tables of the lake that are made by others, and one that is there for the fan-out.
STRANGERS = ("plain", "plain__rejected", "same_group", "other_target", "other_home", "tool", "a_mirror", "odd")
EMPTY = "made"
ORIGINS = ("lake.{kind}", "lake.{key}", "lake.{header:h}", "lake.p_{kind}")

# What is written to reach further than it should; the rest is up to chance.
NASTY = [
    *STRANGERS,
    *("Plain", "PLAIN", " plain", "plain ", "plain\n", "plain\x00", "pl\x00ain", "plain\u200b", "\u202eplain"),
    *(
        "'plain'",
        "lake.plain",
        "../plain",
        "plain/..",
        "plain.snapshots",
        "plain$files",
        '"plain"',
        "`plain`",
        "%70lain",
    ),
    *("home", "HOME", "home__rejected", "p_home", "x__home", "x__deleted", "x__rejected", "x--Rejected", "__rejected"),
    *(
        "a",
        "A",
        "\u00e1",
        "a\u0301",
        "\u212a",
        "k",
        "\u017f",
        "\u0130",
        "\u0131",
        "\u00df",
        "\ufb01",
        "\u0661",
        "\u65e5",
    ),
    *("a-b", "a_b", "a.b", "a b", "", " ", "_", "__", "-", ".", "..", "null", "0", "nan", "1e5", "true", "\U0001f642"),
    *("x" * 193, "x" * 195, "x" * 196, "x" * 5000, "{a}", "[a]", " {a}", "{kind}", "a\x1fb", "\x1f", "made", "Made"),
]
TEXTS = st.one_of(st.sampled_from(NASTY), st.text(st.characters(exclude_categories=["Cs"]), max_size=12))


class Filled(Lake):
    """A lake with tables of other streams; what a fan-out adds to it can be taken away again."""

    def __init__(self, folder: Any, kafka: Mapping[str, Any], topic: Topics, produce: Producing) -> None:
        super().__init__(folder, kafka)
        self.topic, self.produce = topic, produce
        for table, group in (("plain", "another-dag"), ("same_group", GROUP)):
            self.run(['{"n": 1, "kind": "x"}', "broken", '{"n": 2}'], f"lake.{table}", consumer_group=group)
        other = {"consumer_group": "another-dag", "home_table": "lake.other_home", "new_tables": "create"}
        self.run(['{"n": 1, "kind": "other_target"}'], "lake.{kind}", **other)
        catalog = self.catalog()
        columns = pa.schema([("n", pa.int64())])
        catalog.create_table("lake.tool", columns).append(pa.table({"n": [1]}, columns))
        self.columns = self.table("lake.plain").schema()
        catalog.create_table("lake.a_mirror", self.columns, properties={MIRROR: "{}"})
        catalog.create_table("lake.odd", columns)
        self.strangers = self.heads()
        self.empty()

    def run(self, values: Sequence[Any], table: str, records: Any = None, **config: Any) -> Any:
        """Land records of a topic of their own."""
        name = self.topic(1)
        self.produce(name, 0, values, **(records or {}))
        given = {"consumer_group": GROUP, "schema": SCHEMA, "table_properties": QUICK_RETRIES, **config}
        return land_run(ExtractConfig(topic=name, table=table, **given), self.kafka, self.catalog(), run_id=name)

    def heads(self) -> dict[str, str]:
        """Return where the metadata of each table lies."""
        names = [name for _, name in self.catalog().list_tables("lake")]
        return {name: self.table(f"lake.{name}").metadata_location for name in names}

    def empty(self) -> None:
        """Take away what is not the strangers', and make the table that is there for the fan-out."""
        catalog = self.catalog()
        for namespace, name in catalog.list_tables("lake"):
            if name not in self.strangers:
                catalog.drop_table(f"{namespace}.{name}")
        catalog.create_table(f"lake.{EMPTY}", self.columns)

    def rows(self) -> dict[int, str]:
        """Return the table of each record, by its number; fails for one that is in two of them."""
        found: dict[int, str] = {}
        for name in self.heads():
            if name not in self.strangers and f"lake.{name}" not in (HOME, REJECTS):
                for n in self.table(f"lake.{name}").scan().to_arrow()["_kafka_offset"].to_pylist():
                    assert n not in found, f"record {n} is in {found[n]} and in {name}"
                    found[n] = name
        return found

    def rejected(self) -> list[int]:
        """Return the numbers of the rejected records."""
        try:
            rows = self.table(REJECTS).scan().to_arrow()
        except NoSuchTableError:
            return []
        found: list[int] = sorted(rows["_kafka_offset"].to_pylist())
        return found


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, kafka: Kafka, topic: Topics, produce: Producing) -> Filled:
    """Give the lake; each example takes its own tables away again."""
    return Filled(tmp_path_factory.mktemp("hostile"), kafka.client_config(), topic, produce)


def model(template: str, values: Sequence[Any], new_tables: str, max_tables: int) -> dict[int, str] | None:
    """Return the table of each record that lands; None where the run is refused, since no table is there at all."""
    found: dict[int, str] = {}
    owner: dict[str, Any] = {}
    lacking = False
    for number, value in enumerate(values):
        name = _name(template, value)
        if name is None or name in STRANGERS or name == "home":
            continue
        if name in owner and owner[name] != value:
            continue
        if name not in owner and len(owner) >= max_tables:
            continue
        if new_tables == "fail" and name != EMPTY:
            lacking = True
            continue
        owner[name] = value
        found[number] = name
    return None if lacking and not found else found


def _name(template: str, value: Any) -> str | None:
    if value is None or (isinstance(value, bytes) and _text(value) is None):
        return None
    text = value if isinstance(value, str) else _text(value)
    assert text is not None
    if "kind" in template and re.match(r"[\t\n\f\r ]*[\[{]", text):
        return None
    name = "".join(c if c in "abcdefghijklmnopqrstuvwxyz0123456789_" else "_" for c in text.lower())
    has_none = not any(c.isalnum() for c in name)
    name = template.removeprefix("lake.").partition("{")[0] + name
    if has_none or "\x1f" in text or len(f"lake.{name}") > 200 or name.endswith(("__rejected", "__deleted", "__home")):
        return None
    return name


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


@st.composite
def cases(draw: Callable[..., Any]) -> tuple[str, list[Any], str, int]:
    template = draw(st.sampled_from(ORIGINS))
    values = st.one_of(TEXTS, st.none())
    if "kind" not in template:
        values = st.one_of(TEXTS.map(str.encode), st.none(), st.binary(max_size=4))
    new_tables = draw(st.sampled_from(["create", "create", "fail"]))
    return template, draw(st.lists(values, min_size=1, max_size=60)), new_tables, draw(st.sampled_from([1, 3, 100]))


@settings(max_examples=settings.default.max_examples // 3, suppress_health_check=list(HealthCheck))
@given(cases())
def test_a_record_lands_in_a_table_of_its_own_fan_out_or_is_rejected(
    filled: Filled, case: tuple[str, list[Any], str, int]
) -> None:
    template, values, new_tables, max_tables = case
    of_field = "kind" in template
    payloads = [json.dumps({"n": n, "kind": v if of_field else "x"}) for n, v in enumerate(values)]
    records: dict[str, Any] = {}
    if "key" in template:
        records["keys"] = values
    elif "header" in template:
        records["headers"] = [[("h", value)] for value in values]
    config = {"home_table": HOME, "new_tables": new_tables, "max_tables": max_tables, "max_rejected": 1.0}
    expected = model(template, values, new_tables, max_tables)
    try:
        if expected is None:
            with pytest.raises(InvalidArgument, match="new_tables"):
                filled.run(payloads, template, records, **config)
            assert filled.rows() == {}
        else:
            report = filled.run(payloads, template, records, **config)
            assert filled.rows() == expected
            assert filled.rejected() == [n for n in range(len(values)) if n not in expected]
            assert (report.counts.written, report.counts.read) == (len(expected), len(values))
        assert filled.strangers.items() <= filled.heads().items()
    finally:
        filled.empty()
