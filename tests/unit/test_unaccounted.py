"""Rows that no ledger accounts for are found by statistics and by reading alike; in Delta, deletion vectors apply."""

from __future__ import annotations

import json
import shutil
import struct
import uuid
import zlib
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog

from airflow_lakestream.core.landing.unaccounted import ForeignRowQuery, RowBounds, UnaccountedRows
from airflow_lakestream.core.ports import HeadMoved
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.delta.takeout import look_for_rows
from airflow_lakestream.iceberg.replace.takeout import look_for_rows as look_for_rows_of_iceberg
from airflow_lakestream.tables.unaccounted import CandidateFile, FileUnreadable, find

SCHEMA = pa.schema([("_kafka_topic", pa.string()), ("_kafka_partition", pa.int32()), ("_kafka_offset", pa.int64())])
GREATEST = 2**63 - 1
ROWS = st.tuples(
    st.sampled_from(["t", "t", "u", None]),
    st.none() | st.integers(-1, 3),
    st.none() | st.integers(-1, 12) | st.sampled_from([-(2**63), GREATEST - 1, GREATEST]),
)
OFFSETS = st.sets(st.tuples(st.integers(0, 3), st.integers(0, 12)))


def ranges(positions: Iterable[tuple[int, int]]) -> RangeSet:
    return RangeSet(OffsetRange("t", p, o, o + 1) for p, o in positions)


def table(rows: list) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else ([], [], [])
    return pa.table(dict(zip(SCHEMA.names, map(list, columns), strict=True)), schema=SCHEMA)


def file(rows: list, *, with_bounds: bool) -> CandidateFile:
    columns = [[value for value in column if value is not None] for column in zip(*rows, strict=True)]
    bounds = [(min(values), max(values)) if values and with_bounds else None for values in columns]
    whole = all(None not in row for row in rows) and with_bounds
    return CandidateFile("f", len(rows), bounds[0], bounds[1], bounds[2], whole, lambda: [table(rows)])


@given(
    files=st.lists(st.tuples(st.lists(ROWS, min_size=1, max_size=6), st.booleans()), max_size=4),
    known=OFFSETS,
    begins=st.dictionaries(st.integers(0, 3), st.integers(0, 12)),
    given_ranges=st.none() | OFFSETS,
)
def test_what_is_in_the_way_is_what_a_look_at_each_row_says(
    files: list, known: set, begins: dict[int, int], given_ranges: set | None
) -> None:
    asked = ForeignRowQuery("t", ranges(known), begins, None if given_ranges is None else ranges(given_ranges))

    found = find("lake.t", [file(rows, with_bounds=bounds) for rows, bounds in files], asked)

    positions = [row[1:] for rows, _ in files for row in rows if row[0] == "t" and None not in row]
    strange = [(p, o) for p, o in positions if p >= 0 and 0 <= o < GREATEST and (p, o) not in known]
    if given_ranges is None:
        wanted = [(p, o) for p, o in strange if o >= begins.get(p, 0)]
    else:
        wanted = [one for one in strange if one in given_ranges]
    assert sum(box.rows for box in found.in_the_way) == len(wanted)
    assert found.foreign_rows == len(strange) - len(wanted)
    for p, o in wanted:
        assert any(
            b.partitions[0] <= p <= b.partitions[1] and b.offsets[0] <= o <= b.offsets[1] for b in found.in_the_way
        )


def test_rows_that_a_deletion_vector_takes_do_not_count(tmp_path: Path) -> None:
    place = tmp_path / "with space"
    write_deltalake(str(place), table([("t", 0, n) for n in range(10)]))
    delete_by_vector(place, [0, 1, 7])

    found = look_for_rows(DeltaStorage().open(str(place)), ForeignRowQuery("t", begins={0: 5}))

    assert found == UnaccountedRows((RowBounds((0, 0), (5, 9), 4),), (RowBounds((0, 0), (2, 4), 3),))


def test_a_deletion_vector_is_of_one_file_whatever_others_are_called(tmp_path: Path) -> None:
    place = tmp_path / "a"
    write_deltalake(str(place), table([("t", 0, n) for n in range(10)]))
    delete_by_vector(place, [0, 1, 7])
    # The file once more, in a folder below that has the name of the table's own.
    log = place / "_delta_log" / f"{1:020}.json"
    [add] = [action["add"] for action in map(json.loads, log.read_text().splitlines()) if "add" in action]
    (place / "a").mkdir()
    shutil.copy(place / add["path"], place / "a")
    twin = {name: value for name, value in add.items() if name != "deletionVector"} | {"path": f"a/{add['path']}"}
    log.with_name(f"{2:020}.json").write_text(json.dumps({"add": twin}) + "\n")

    found = look_for_rows(DeltaStorage().open(str(place)), ForeignRowQuery("t"))

    assert sum(box.rows for box in found.in_the_way) == 17


def test_a_head_whose_files_went_while_it_was_looked_at_is_looked_at_anew(tmp_path: Path) -> None:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("lake")
    catalog.create_table("lake.t", SCHEMA).append(table([("t", 0, 1)]))
    seen = catalog.load_table("lake.t")
    manifests = Path(seen.current_snapshot().manifest_list.removeprefix("file://"))

    catalog.load_table("lake.t").append(table([("t", 0, 2)]))
    manifests.unlink()
    with pytest.raises(HeadMoved):
        look_for_rows_of_iceberg(seen, ForeignRowQuery("t"))

    now = catalog.load_table("lake.t")
    Path(now.current_snapshot().manifest_list.removeprefix("file://")).unlink()
    with pytest.raises(FileUnreadable, match=r"lakestream audit"):
        look_for_rows_of_iceberg(now, ForeignRowQuery("t"))


def delete_by_vector(place: Path, positions: list[int]) -> None:
    """Take rows of the table's one file out, as Spark does where deletion vectors are enabled."""
    log = place / "_delta_log"
    actions = [json.loads(line) for line in (log / f"{0:020}.json").read_text().splitlines()]
    [add] = [action["add"] for action in actions if "add" in action]
    [metadata] = [action["metaData"] for action in actions if "metaData" in action]
    # A 64-bit Roaring bitmap in its portable form, of one array container.
    cookie = struct.pack("<IIHHI", 12346, 1, 0, len(positions) - 1, 16)
    bitmap = struct.pack("<iqi", 1681511377, 1, 0) + cookie + b"".join(struct.pack("<H", n) for n in positions)
    name = uuid.uuid4()
    content = b"\x01" + struct.pack(">i", len(bitmap)) + bitmap + struct.pack(">i", _signed(zlib.crc32(bitmap)))
    (place / f"deletion_vector_{name}.bin").write_bytes(content)
    vector = {
        "storageType": "p",
        "pathOrInlineDv": (place / f"deletion_vector_{name}.bin").as_uri(),
        "offset": 1,
        "sizeInBytes": len(bitmap),
        "cardinality": len(positions),
    }
    features = ["deletionVectors"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    metadata["configuration"]["delta.enableDeletionVectors"] = "true"
    remove = {"path": add["path"], "deletionTimestamp": 0, "dataChange": True}
    new = [
        {"protocol": protocol},
        {"metaData": metadata},
        {"remove": remove},
        {"add": {**add, "deletionVector": vector}},
    ]
    (log / f"{1:020}.json").write_text("\n".join(map(json.dumps, new)) + "\n")


def _signed(value: int) -> int:
    return value - 2**32 if value >= 2**31 else value
