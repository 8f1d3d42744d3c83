"""A first run without a schema logs the columns that the new table keeps, and what they may be mistaken for."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.support.given_records import FORMATS, GivenLake

MS = 1_763_596_800_123


def landed(lake: GivenLake, documents: list[Any], **landing: Any) -> None:
    lake.land([json.dumps(one).encode() for one in documents], **landing)


@pytest.mark.parametrize("table_format", FORMATS)
def test_guessed_columns_are_logged_once_with_remarks(
    table_format: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    lake = GivenLake(tmp_path, table_format)
    documents = [{"id": n, "at": MS + n, "amount": 1.5} for n in range(3)] + [{"amount": "n/a", "at": MS}]
    landed(lake, documents)
    said = [one for one in caplog.messages if "gets these columns" in one]
    assert len(said) == 1
    assert "guessed from 4 records: id bigint, at bigint, amount string." in said[0]
    warned = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert ['"at timestamp from epoch_ms" in schema' in one for one in warned] == [True, False]
    assert 'With "amount double" in schema, 1 of these values is a bad record.' in warned[1]
    caplog.clear()
    # The table has its columns now.
    landed(lake, [*documents, *documents])
    assert [one for one in caplog.messages if "guessed from" in one or "likely" in one] == []


@pytest.mark.parametrize("landing", [{"schema": "id bigint, at bigint"}, {"format": "raw"}], ids=["given", "fixed"])
def test_columns_that_are_not_guessed_are_not_logged(
    landing: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    landed(GivenLake(tmp_path, FORMATS[0]), [{"id": 1, "at": MS}], **landing)
    assert [one for one in caplog.messages if "guessed from" in one or "likely" in one] == []
