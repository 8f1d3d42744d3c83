"""Landings in tables that other writers, or accidents, have changed: what each has to say, in every format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.exceptions import LakestreamError, Terminal
from tests.support.cdc import change
from tests.support.given_records import GivenLake


@dataclass(frozen=True)
class Kind:
    """Of a landing: its configuration, records that make a table, records that come then, and further arguments."""

    config: type[ExtractConfig]
    first: Sequence[bytes]
    then: Sequence[bytes]
    given: Mapping[str, Any]


EVENTS = [change("c", {"v": at, "w": 1}, at) for at in range(61)]
KINDS = {
    "events": Kind(ExtractConfig, [b'{"v": 1, "w": 1}'], [b'{"v": 1, "w": 1}', *[b'{"v": 2}'] * 60], {}),
    "mirror": Kind(MirrorConfig, EVENTS[:1], EVENTS, {"key": ["v"]}),
}
EXTRACT = KINDS["events"]


def assert_refused(lake: GivenLake, kind: Kind, error: type[LakestreamError], match: str) -> None:
    """Assert that a landing is refused by the table's name, without a retry, and changes no file."""
    before = sorted(lake.folder.rglob("*"))
    with pytest.raises(error, match=match) as caught:
        lake.land(kind.then, **kind.given)
    assert isinstance(caught.value, Terminal)
    assert lake.name in str(caught.value)
    assert sorted(lake.folder.rglob("*")) == before


def assert_landed(lake: GivenLake, rows: int) -> None:
    """Assert that a landing of four records rejects none, and how many rows the table has then."""
    assert lake.land(EXTRACT.then[:4]).counts.rejected == 0
    assert len(lake.rows()) == rows
