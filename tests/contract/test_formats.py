"""The table of formats itself: every part of every row is there, and a table's name tells its format."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_lakestream.core.policies import TableFormat
from airflow_lakestream.exceptions import InvalidArgument, MissingExtra
from airflow_lakestream.lakes import LAKES, lake_of

PARTS = ("sink", "mirror", "rejecting", "books", "audit", "swap")


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("form", TableFormat)
def test_every_format_has_every_part(form: TableFormat, part: str) -> None:
    found = LAKES[form].part(part)
    assert callable(found) or {"mirror_swap", "drop", "aside_id", "properties_of"} <= set(dir(found))


@pytest.mark.parametrize(
    ("table", "form"),
    [
        ("lake.clicks", TableFormat.ICEBERG),
        ("a.b.c", TableFormat.ICEBERG),
        ("/lake/clicks", TableFormat.DELTA),
        ("s3://bucket/clicks", TableFormat.DELTA),
        ("file:///lake/clicks", TableFormat.DELTA),
    ],
)
def test_a_tables_name_tells_its_format(table: str, form: TableFormat) -> None:
    assert lake_of(table).format is form
    assert lake_of(table).check_name(table) == table


@pytest.mark.parametrize("form", TableFormat)
def test_a_name_of_another_format_is_refused(form: TableFormat) -> None:
    other = {TableFormat.ICEBERG: "/lake/clicks", TableFormat.DELTA: "lake.clicks"}
    with pytest.raises(InvalidArgument):
        LAKES[form].check_name(other[form])


def test_a_missing_package_is_named_with_what_to_install() -> None:
    lake = replace(LAKES[TableFormat.DELTA], sink="no_such_package.sink:Sink")
    with pytest.raises(
        MissingExtra,
        match=r"no_such_package is not installed: pip install '\.\[delta\]' --constraint dev/constraints\.txt",
    ):
        lake.part("sink")
