"""Odd characters in the places of tables: rows land where the place says, and are read back, or the run is refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.core.names import check_location
from airflow_lakestream.core.ports import RecordChunk
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.fitness import check_place
from airflow_lakestream.stores.folders import LocalFolder, open_folder
from tests.support.given_records import FORMATS, GivenLake

FINE = (
    *(
        "a b",
        " a",
        "a ",
        "50%",
        "100%",
        "a+b",
        "üñ漢😀",
        "a:b",
        "a=b",
        "a'b",
        'a"b',
        ".a",
        "a.",
        "..a",
        "a,b;c",
        "[x]*",
    ),
    *("a@b", "~a", "a&b", "$a", "a!b", "a|b", "<a>", "a^b", "`a`", "(a)"),
)
ENCODED = ("50%25", "a%2Fb", "%20")
BACKSLASH = ("a\\b",)
CUT = ("a#b", "a?b", "#", "?")
CONTROL = ("a\nb", "a\tb", "a\rb", "a\x00b", "a\x7fb")


def nested(*names: str, last: str) -> str:
    """Return a folder for each name, one in the other; an end of a place may mean something else than its middle."""
    return "/".join([*(name for name in names if name != last), last])


@dataclass(frozen=True)
class OddLake(GivenLake):
    """A lake below folders with odd names; as a URI, or as a path."""

    odd: str = ""
    as_uri: bool = False
    # The names as the URI has them, if not as they are.
    given: str = ""

    @property
    def place(self) -> str:
        """Where its tables lie."""
        return f"{'file://' if self.as_uri else ''}{self.folder / (self.given or self.odd)}"

    @property
    def name(self) -> str:
        return "lake.events" if self.table_format == "iceberg" else f"{self.place}/events"

    def catalog(self) -> SqlCatalog:
        return SqlCatalog("lake", uri=f"sqlite:///{self.folder}/catalog.db", warehouse=self.place)


class Unread:
    """`core.ports.Reader` of a run that reads nothing."""

    def read(self, plan: Plan, cancelled: threading.Event) -> Generator[RecordChunk, None, None]:
        raise AssertionError("nothing was to be read")


def assert_lands(lake: OddLake) -> None:
    records = [json.dumps({"v": at, "p": "ab"[at % 2]}).encode() for at in range(4)]
    for count in (2, 4):
        lake.land([b"{", *records[:count]], schema="v int, p string", partition_by=["p"], max_rejected=1.0)
    if lake.table_format == "iceberg":
        assert [row["v"] for row in lake.rows()] == [0, 1, 2, 3]
        assert len(lake.by_pyiceberg(f"{lake.name}__rejected")) == 1
    else:
        assert sorted(DeltaTable(lake.name).to_pyarrow_table()["v"].to_pylist()) == [0, 1, 2, 3]
        assert DeltaTable(f"{lake.name}__rejected").to_pyarrow_table().num_rows == 1
    # Nothing lies beside it.
    there = {f"{path.relative_to(lake.folder)}/" for path in lake.folder.rglob("*")} - {"catalog.db/"}
    place = f"{lake.odd}/"
    assert place in there
    assert [name for name in there if not name.startswith(place) and not place.startswith(name)] == []


def assert_refused(lake: OddLake, error: str) -> None:
    before = sorted(lake.folder.iterdir())
    with pytest.raises(InvalidArgument, match=error):
        land(replace(lake.job([b'{"v": 1}'], schema="v int"), reader=Unread()))
    assert sorted(path for path in lake.folder.iterdir() if path.name != "catalog.db") == before
    if lake.table_format == "iceberg":
        assert not lake.catalog().list_namespaces()


@pytest.mark.parametrize("as_uri", [False, True])
@pytest.mark.parametrize("table_format", FORMATS)
@pytest.mark.parametrize("last", ["a ", "a.", "50%"])
def test_tables_and_their_reject_tables_land_where_their_place_says(
    tmp_path: Path, last: str, table_format: str, as_uri: bool
) -> None:
    assert_lands(OddLake(tmp_path, table_format, odd=nested(*FINE, last=last), as_uri=as_uri))


@pytest.mark.parametrize("as_uri", [False, True])
def test_an_iceberg_table_is_where_its_catalog_says_and_nothing_is_decoded(tmp_path: Path, as_uri: bool) -> None:
    assert_lands(OddLake(tmp_path, odd=nested(*ENCODED, *BACKSLASH, last="%20"), as_uri=as_uri))


def test_of_a_uri_of_delta_characters_are_decoded_once(tmp_path: Path) -> None:
    encoded = nested(*ENCODED, last="%20")
    assert check_location(f"file:///lake/{encoded}/t") == f"file:///lake/{encoded}/t"
    assert_lands(OddLake(tmp_path, "delta", odd=unquote(encoded), given=encoded, as_uri=True))


@pytest.mark.parametrize(
    ("odd", "error"),
    [
        *((odd, "is in it") for odd in (*ENCODED, *BACKSLASH, *CONTROL)),
        *((odd, r"'\?' or '#'") for odd in CUT),
        ("{a}", "tables that records choose"),
    ],
)
def test_a_place_that_readers_of_delta_look_for_elsewhere_is_refused(tmp_path: Path, odd: str, error: str) -> None:
    assert_refused(OddLake(tmp_path, "delta", odd=odd), rf"^table: .*{error}")


@pytest.mark.parametrize("place", ["s3://b/{}/t", "file:///lake/{}/t", "abfss://c@a.dfs.core.windows.net/{}/t"])
@pytest.mark.parametrize("odd", [*(one for one in ENCODED if "%25" in one), *BACKSLASH, *CUT, *CONTROL])
def test_a_uri_that_readers_of_delta_look_for_elsewhere_is_refused(place: str, odd: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^table: .*(is in it|'\?' or '#'|not a place of a Delta)"):
        check_location(place.format(odd.replace("%25", "%2525") if place.startswith("file") else odd))


@pytest.mark.parametrize("odd", [*CUT, *(one for one in CONTROL if "\0" not in one)])
def test_a_warehouse_that_clients_of_stores_cut_is_refused(tmp_path: Path, odd: str) -> None:
    assert_refused(OddLake(tmp_path, odd=odd, as_uri=True), r"^table: lake\.events: its place would be .* leave ")


@pytest.mark.parametrize("odd", CUT)
def test_a_name_that_clients_of_stores_cut_is_refused_in_a_place_that_is_a_uri(tmp_path: Path, odd: str) -> None:
    lake = GivenLake(tmp_path)
    for name in (f"lake.{odd}", f"{odd}.events"):
        with pytest.raises(InvalidArgument, match=rf"^table: {name.replace('?', '[?]')}: its place would be"):
            land(replace(lake.job([b'{"v": 1}'], schema="v int", table=name), reader=Unread()))
    assert not lake.catalog().list_namespaces()
    assert [path.name for path in tmp_path.iterdir()] == ["catalog.db"]


@pytest.mark.parametrize("key", ["write.data.path", "write.metadata.path", "location"])
def test_a_table_whose_place_clients_of_stores_cut_is_refused(tmp_path: Path, key: str) -> None:
    lake = GivenLake(tmp_path)
    lake.land([b'{"v": 1}'], schema="v int")
    file = Path(lake.iceberg().metadata_location.removeprefix("file://"))
    metadata = json.loads(file.read_text())
    (metadata if key == "location" else metadata["properties"])[key] = f"file://{tmp_path}/a#b"
    file.write_text(json.dumps(metadata))
    with pytest.raises(InvalidArgument, match=r"^table: lake\.events: its place would be .*a#b"):
        land(replace(lake.job([b'{"v": 1}'] * 2), reader=Unread()))


@pytest.mark.parametrize("place", ["s3://b/{}/t", "s3a://b/{}", "gs://b/{}", "abfss://c@a.dfs.core.windows.net/{}/t"])
@pytest.mark.parametrize("odd", [*FINE, *ENCODED, *BACKSLASH])
def test_places_in_object_stores_are_as_they_are(place: str, odd: str) -> None:
    check_place("lake.t", place.format(odd))


@pytest.mark.parametrize(
    "place", ["s3://b/{}/cp", "s3a://b/{}/cp", "gs://b/{}/cp", "abfss://c@a.dfs.core.windows.net/{}/cp"]
)
@pytest.mark.parametrize("last", ["a ", "%20", "?"])
def test_a_drivers_folder_lies_where_hadoop_has_the_checkpoint(place: str, last: str) -> None:
    # Hadoop decodes nothing.
    odd = nested(*FINE, *ENCODED, *CUT, last=last)
    properties = {"client.region": "x", "adls.account-name": "a", "adls.account-key": "a2V5"}
    folder = open_folder(place.format(odd) + ".lakestream", properties)
    store = vars(folder)["_store"]
    assert str(store.prefix) == f"{odd}/cp.lakestream"


@pytest.mark.parametrize("odd", [*FINE, *ENCODED, *BACKSLASH, *CUT])
@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_a_drivers_folder_on_a_disk_lies_where_hadoop_has_the_checkpoint(tmp_path: Path, odd: str, scheme: str) -> None:
    folder = open_folder(f"{scheme}{tmp_path}/{odd}/cp.lakestream")
    assert isinstance(folder, LocalFolder)
    assert folder.create("lease", b"1")
    assert (tmp_path / odd / "cp.lakestream" / "lease").read_bytes() == b"1"


@pytest.mark.parametrize("table_format", FORMATS)
def test_odd_values_of_partitions_are_read_back(tmp_path: Path, table_format: str) -> None:
    lake = GivenLake(tmp_path, table_format)
    values = [
        *FINE,
        *ENCODED,
        *BACKSLASH,
        *CUT,
        *(one for one in CONTROL if "\0" not in one),
        ".",
        "..",
        "/",
        "a/b",
        "null",
    ]
    records = [json.dumps({"p": value, "n": at}).encode() for at, value in enumerate(values)]
    assert lake.land(records, schema="p string, n int", partition_by=["p"]).counts.rejected == 0
    if table_format == "iceberg":
        found = {row["p"]: row["n"] for row in lake.rows()}
    else:
        rows = DeltaTable(lake.name).to_pyarrow_table()
        found = dict(zip(rows["p"].to_pylist(), rows["n"].to_pylist(), strict=True))
    assert found == {value: at for at, value in enumerate(values)}
