"""Records in the order of columns of any type that compares, in both table formats."""

from __future__ import annotations

import json
import math
import tempfile
from base64 import b64encode
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from airflow_lakestream.cdc.events.sequence import place_bytes, place_numbers
from tests.support.keyed import Follower, Record
from tests.support.mirroring import HandDeltaMirror, HandMirror

FEW = settings.get_profile(settings.get_current_profile_name()).max_examples // 2
MIRRORS = {"iceberg": HandMirror, "delta": HandDeltaMirror}
BYTES = [b"", b"\x00", b"\x00\x00", b"\x00\xff", b"\x01", b"\xff"]
# Six values of each type, in their order.
VALUES: dict[str, Callable[[int], Any]] = {
    "string": lambda n: ["", "a", "a\x00", "a\x00\x01", "b", "\u00e9"][n],
    "binary": lambda n: b64encode(BYTES[n]).decode(),
    "decimal(38,2)": lambda n: ["-9" + "9" * 30, "-1", "-0.01", "0", "7.25", "9" * 36][n],
    "double": lambda n: [-1e300, -2.5, -0.5, 0.0, 3.5, 1e300][n],
    "uuid": lambda n: f"{n * 40:02x}8a35a7-17ad-35b3-af2a-ae46edb4545a",
    "date": lambda n: f"202{n}-01-01",
}
RECORDS = st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 2), st.sampled_from([None, "D"]))


@settings(max_examples=FEW, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    st.data(),
    st.sampled_from(sorted(VALUES)),
    st.sampled_from([["at"], ["at", "n"], ["n", "at"], ["in.at"]]),
    st.lists(RECORDS, min_size=1, max_size=12),
    st.booleans(),
)
def test_the_record_with_the_greatest_value_is_the_row_for_any_type_of_the_value(
    data: st.DataObject, kind: str, by: Sequence[str], records: list[tuple[int, int, int, str | None]], marks: bool
) -> None:
    table_format = "iceberg" if kind == "uuid" else data.draw(st.sampled_from(sorted(MIRRORS)))
    ends = sorted(data.draw(st.sets(st.integers(1, len(records)), max_size=3)) | {len(records)})
    asked: dict[str, Any] = {"envelope": None, "key": ["id"], "sequence_by": by, "delete_when": "op = 'D'"}
    asked["schema"] = f"id bigint, text string, op string, at {kind}, n bigint, in struct<at: {kind}>"
    newest: dict[int, tuple[tuple[Any, ...], str | None]] = {}
    with tempfile.TemporaryDirectory() as folder:
        mirror = MIRRORS[table_format](Path(folder), executors=data.draw(st.sampled_from([0, 1])))
        follower = Follower(mirror, asked | {"soft_delete": marks})
        for start, end in pairwise([0, *ends]):
            batch = []
            for number in range(start, end):
                key, rank, n, op = records[number]
                value = VALUES[kind](rank)
                row = {"id": key, "text": f"v{number}", "op": op, "at": value, "n": n, "in": {"at": value}}
                batch.append(Record(None, json.dumps(row).encode()))
                parts = {"at": rank, "n": n, "in.at": rank}
                place = (*(parts[name] for name in by), number)
                if key not in newest or place > newest[key][0]:
                    newest[key] = place, None if op == "D" else f"v{number}"
            follower.land(batch)
            found = {row["id"]: row["text"] for row in follower.rows()}
            assert found == {key: text for key, (_, text) in newest.items() if text is not None}


def test_bytes_have_the_order_of_decimals_of_any_scale_and_of_unsigned_numbers() -> None:
    some = [pa.array([-1, 0, 5], pa.decimal128(5, 2)), pa.array([-2, 1, 6], pa.decimal128(20, 0))]
    found = [value for one in some for value in place_bytes([one]).to_pylist()]
    assert [found[at] for at in (3, 0, 1, 4, 2, 5)] == sorted(found)
    numbers = place_bytes([pa.array([0, 1, 2**64 - 1, None], pa.uint64())]).to_pylist()
    assert numbers[:3] == sorted(numbers[:3])
    assert numbers[3] is None


def test_floats_have_the_order_of_integers_and_nan_has_no_place() -> None:
    some = [-math.inf, -1.5, -0.0, 0.0, 1e-300, math.inf, math.nan, None]
    numbers, without = place_numbers(pa.array(some, pa.float64()))
    found = numbers.to_pylist()
    assert found[:6] == sorted(found[:6])
    assert found[2] == found[3]
    assert without.tolist() == [False] * 6 + [True, False]
