"""Avro and raw records by a real Flink: the table equals the extract's, and no bad record gets on main unseen."""

from __future__ import annotations

import base64
import json
import random
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dev.ports import LOOPBACK
from dev.services.registry import Registry
from tests.support.avro_records import record, written
from tests.support.broker import Producing
from tests.support.certificates import KEY_PASSWORD, Authority
from tests.support.flink import PATIENCE, FlinkLanding
from tests.support.lake import GROUP, TABLE

pytestmark = pytest.mark.integration

PASSWORD = "p4ss'w:rd-of-the-registry"
OTHER = "lake.extracted"
COLUMNS = (
    "id bigint, n int, f float, d double, s string, b binary, ok boolean, amount decimal(12, 2), day date, "
    "at_ms timestamp, at_us timestamp, wall_ms timestamp_ntz, wall_us timestamp_ntz, clock bigint, wide bigint, "
    "day_no int, kind string, tags array<string>, scores map<string, double>, maybe double, note string, "
    "who struct<name: string, born: date, seen: timestamp, kind: string>, "
    "lines array<struct<sku: string, price: decimal(9, 2), kind: string>>"
)
KIND = {"type": "enum", "name": "Kind", "namespace": "shop", "symbols": ["NEW", "PAID"]}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}


def logical(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "logicalType": name}


ORDER = record(
    "shop.Order",
    id="long",
    n="int",
    f="float",
    d="double",
    s="string",
    b="bytes",
    ok="boolean",
    amount=["null", {**MONEY, "precision": 12}],
    day=logical("int", "date"),
    at_ms=logical("long", "timestamp-millis"),
    at_us=["null", logical("long", "timestamp-micros")],
    wall_ms=["null", logical("long", "local-timestamp-millis")],
    wall_us=logical("long", "local-timestamp-micros"),
    clock=logical("long", "time-micros"),
    wide="int",
    day_no=logical("int", "date"),
    kind=["null", KIND],
    no_column="string",
    tags={"type": "array", "items": ["null", "string"]},
    scores={"type": "map", "values": "double"},
    maybe=["null", "float"],
    who=[
        "null",
        record(
            "shop.Person",
            name="string",
            born=["null", logical("int", "date")],
            seen=["null", logical("long", "timestamp-micros")],
            kind="shop.Kind",
        ),
    ],
    lines={"type": "array", "items": record("shop.Line", sku="string", price=["null", MONEY], kind="shop.Kind")},
)
# Days, milliseconds and microseconds: 1970, before it, the first and the last ones that a table holds.
DAYS = (0, -1, 20_000, -719_162, 2_932_896)
MILLIS = (0, -1, 1_500, -62_135_596_800_000, 253_402_300_799_999, 1_763_615_100_123)
MICROS = (0, -1, 1_500, -62_135_596_800_000_000, 253_402_300_799_999_999, 1_763_615_100_123_456, -1_001)
TEXTS = ("", "é", "a'b\"c", "\U0001f600", "x" * 300)


def order(number: int) -> dict[str, Any]:
    """Return an order of numbers and texts that have borders."""
    some = random.Random(number)

    def pick(*values: Any) -> Any:
        return values[number % len(values)] if number < 40 else some.choice(values)

    def cents() -> bytes:
        return some.randint(-(10**9) + 1, 10**9 - 1).to_bytes(5, "big", signed=True)

    return {
        "id": pick(number, -(2**63), 2**63 - 1),
        "n": pick(0, -(2**31), 2**31 - 1),
        "f": pick(0.5, -0.0, 3.4028234663852886e38, float("inf")),
        "d": pick(0.1, -5e-324, 1.7976931348623157e308, float("-inf")),
        "s": pick(*TEXTS),
        "b": pick(b"", b"\x00\xff", bytes(range(256))),
        "ok": pick(True, False),
        "amount": pick(b"\x00", b"\x30\x39", b"\xff\xf6", (10**12 - 1).to_bytes(6, "big"), None),
        "day": pick(*DAYS),
        "at_ms": pick(*MILLIS),
        "at_us": pick(*MICROS, None),
        "wall_ms": pick(*MILLIS, None),
        "wall_us": pick(*MICROS),
        "clock": pick(0, 86_399_999_999),
        "wide": pick(-7, 2**31 - 1),
        "day_no": pick(*DAYS),
        "kind": pick("NEW", "PAID", None),
        "no_column": "left out",
        "tags": pick([], ["a"], ["a", None, "é"]),
        "scores": pick({}, {"a": 0.5}, {"a": 1.0, "": -1.0}),
        "maybe": pick(0.25, None),
        "who": pick(
            None,
            {"name": "Ann", "born": None, "seen": some.choice(MICROS), "kind": "NEW"},
            {"name": "", "born": some.choice(DAYS), "seen": None, "kind": "PAID"},
        ),
        "lines": pick([], [{"sku": "a", "price": None, "kind": "PAID"}, {"sku": "b", "price": cents(), "kind": "NEW"}]),
    }


@dataclass
class Guarded:
    """A registry by TLS that wants a name and a password; `refused` has who came without."""

    url: str
    authority: Path
    refused: list[str] = field(default_factory=list)

    @property
    def config(self) -> dict[str, Any]:
        login = {"username": "me", "password": PASSWORD}
        return {"url": self.url, "ca_file": str(self.authority), "retries": 0, **login}


@pytest.fixture
def guarded(registry: Registry, tmp_path: Path) -> Iterator[Guarded]:
    """Give the session's registry behind a door."""
    wanted = "Basic " + base64.b64encode(f"me:{PASSWORD}".encode()).decode()

    class Door(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Authorization") != wanted:
                made.refused.append(self.path)
                self._answer(401, b'{"error_code": 401, "message": "who are you?"}')
                return
            try:
                with urllib.request.urlopen(f"{registry.url}{self.path}", timeout=30) as answer:
                    self._answer(answer.status, answer.read())
            except urllib.error.HTTPError as e:
                self._answer(e.code, e.read())

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *told: object) -> None:
            """Say nothing."""

    authority = Authority(tmp_path / "authority")
    pair = authority.sign("registry", address=LOOPBACK)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key, KEY_PASSWORD)
    server = ThreadingHTTPServer((LOOPBACK, 0), Door)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    made = Guarded(f"https://{LOOPBACK}:{server.server_port}", authority.certificate)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()


def rows_of(landing: FlinkLanding, table: str) -> list[dict[str, Any]]:
    found = landing.lake.table(table).scan().to_arrow().to_pylist()
    for row in found:
        # The entries of a map have no order.
        row["scores"] = sorted(row.get("scores") or ())
    return sorted(found, key=lambda row: (row["_kafka_partition"], row["_kafka_offset"]))


def extract(landing: FlinkLanding, **config: Any) -> Any:
    """Land the topic by the extract."""
    return landing.lake.land(landing.topic, schema=landing.config["columns"], **({"tombstones": "skip"} | config))


def test_the_table_equals_the_extract_s_whatever_the_types_also_after_another_schema(
    landing: FlinkLanding, produce: Producing, registry: Registry, guarded: Guarded
) -> None:
    subject = f"{landing.topic}-value"
    first = registry.register(subject, json.dumps(ORDER))
    landing.config = {"columns": COLUMNS, "format": "avro", "registry": guarded.config}
    produce(landing.topic, 0, [written(ORDER, first, order(n)) for n in range(200)])
    produce(landing.topic, 1, [written(ORDER, first, order(n)) for n in range(200, 250)])
    driver = landing.start()
    landing.await_landed({0: 200, 1: 50})
    job = landing.await_running()
    # A column that no schema had so far. The job would have read over it.
    newer = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}
    second = registry.register(subject, json.dumps(newer))
    produce(landing.topic, 0, [written(newer, second, order(n) | {"note": f"note {n}"}) for n in range(250, 300)])
    produce(landing.topic, 1, [None, written(ORDER, first, order(300))])
    assert driver.wait(PATIENCE) == 1, landing.log
    assert f"Records have schema {second} of the registry: note is written as string, and the job reads none" in (
        landing.log
    )
    landing.start()
    landing.await_landed({0: 250, 1: 52})
    assert landing.await_running() != job
    _assert_nothing_shows(landing)
    landing.stop()
    landing.assert_once({0: [*range(250)], 1: [*range(50), 51]})
    counts = landing.lake.entry(landing.topic).counts

    report = extract(landing, table=OTHER, consumer_group="other", format="avro", schema_registry=guarded.config)
    assert (report.counts.read, report.counts.written, report.counts.skipped) == (302, 301, 1)
    assert (counts.read, counts.written, counts.skipped) == (302, 301, 1)
    by_flink, by_extract = rows_of(landing, TABLE), rows_of(landing, OTHER)
    assert len(by_flink) == len(by_extract) == 301
    different = [
        (row["_kafka_partition"], row["_kafka_offset"], name, row[name], other[name])
        for row, other in zip(by_flink, by_extract, strict=True)
        for name in {**row, **other}
        if row[name] != other[name]
    ]
    assert different == []
    assert not guarded.refused


def _assert_nothing_shows(landing: FlinkLanding) -> None:
    """Assert that the registry's password is in no log, and in nothing that Flink tells of a job."""
    told = landing.all_told()
    secrets = (PASSWORD, PASSWORD.replace("'", "''"), base64.b64encode(f"me:{PASSWORD}".encode()).decode())
    assert [secret for secret in secrets if secret in told] == []


def test_a_bad_record_is_named_and_never_on_main_until_the_extract_has_rejected_it(
    landing: FlinkLanding, produce: Producing, registry: Registry
) -> None:
    schema = record("Small", id="long", name="string")
    schema_id = registry.register(f"{landing.topic}-value", json.dumps(schema))
    columns = "id bigint, name string"
    landing.config = {"columns": columns, "format": "avro", "registry": {"url": registry.url}}

    def good(*numbers: int) -> list[bytes]:
        return [written(schema, schema_id, {"id": n, "name": f"n{n}"}) for n in numbers]

    # Flink takes what is left over for the beginning of the next record.
    spoilt = written(schema, schema_id, {"id": 3, "name": "x"}, behind=b"\x02")
    produce(landing.topic, 0, [*good(0, 1, 2), spoilt, *good(4, 5)])
    assert landing.start().wait(PATIENCE) == 1
    # What a checkpoint had before is good.
    assert set(landing.lake.offsets()) <= {(0, 0), (0, 1), (0, 2)}
    named = f"{landing.topic}[0] offset 3: bytes are left over behind the value"
    assert named in landing.log
    report = extract(landing, format="avro", schema_registry=registry.url)
    assert (report.counts.rejected, len(landing.lake.offsets())) == (1, 5)
    # One that Flink does not decode fails the job.
    produce(landing.topic, 0, [*good(6), b"\x07", *good(8)])
    assert landing.start().wait(PATIENCE) == 1
    assert f"{landing.topic}[0] offset 7: the value begins neither as Confluent's wire format" in landing.log
    report = extract(landing, format="avro", schema_registry=registry.url)
    assert report.counts.rejected == 1
    produce(landing.topic, 0, good(9, 10))
    landing.start()
    landing.await_landed({0: 11})
    landing.stop()
    assert [(row["id"], row["name"]) for row in rows_of(landing, TABLE)] == [
        (n, f"n{n}") for n in range(11) if n not in (3, 7)
    ]
    assert landing.lake.landed(landing.topic, GROUP) == {0: [(0, 11)]}


def test_raw_records_equal_the_extract_s_and_text_that_is_none_is_named(
    landing: FlinkLanding, produce: Producing
) -> None:
    landing.config = {"columns": "key binary, value string", "format": "raw"}
    produce(landing.topic, 0, ["a", "é", "", "x\n", None, "z"], keys=[b"\xff", None, b"", b"k", b"k", None])
    driver = landing.start()
    landing.await_landed({0: 6})
    extract(landing, table=OTHER, consumer_group="other", format="raw", tombstones="keep")
    assert rows_of(landing, TABLE) == rows_of(landing, OTHER)
    produce(landing.topic, 0, ["good", b"a\xff"])
    assert driver.wait(PATIENCE) == 1
    assert f"{landing.topic}[0] offset 7: value: invalid UTF-8" in landing.log
    assert landing.lake.offsets()[-1] <= (0, 6)
