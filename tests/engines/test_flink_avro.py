"""Avro and raw records by a real Flink: the table equals the extract's, and no bad record gets on main unseen."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dev.ports import LOOPBACK
from dev.services.registry import Registry
from tests.support.avro_orders import COLUMNS, ORDER, order
from tests.support.avro_records import record, written
from tests.support.broker import Producing
from tests.support.certificates import KEY_PASSWORD, Authority
from tests.support.flink import PATIENCE, FlinkLanding
from tests.support.lake import GROUP, TABLE
from tests.support.loopback import LoopbackHandler, LoopbackServer

pytestmark = pytest.mark.integration

PASSWORD = "p4ss'w:rd-of-the-registry"
OTHER = "lake.extracted"


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

    class Door(LoopbackHandler):
        def respond(self, _: bytes) -> None:
            if self.headers.get("Authorization") != wanted:
                made.refused.append(self.path)
                self._say(401, b'{"error_code": 401, "message": "who are you?"}')
                return
            try:
                with urllib.request.urlopen(f"{registry.url}{self.path}", timeout=30) as answer:
                    self._say(answer.status, answer.read())
            except urllib.error.HTTPError as e:
                self._say(e.code, e.read())

        def _say(self, status: int, body: bytes) -> None:
            self.reply(status, body, Content_Type="application/vnd.schemaregistry.v1+json")

    authority = Authority(tmp_path / "authority")
    pair = authority.sign("registry", address=LOOPBACK)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key, KEY_PASSWORD)
    server = LoopbackServer(Door)
    server.scheme, server.socket = "https", context.wrap_socket(server.socket, server_side=True)
    made = Guarded(server.url, authority.certificate)
    with server:
        yield made


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
