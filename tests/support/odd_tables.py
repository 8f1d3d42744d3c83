"""Landings in tables that other writers, or accidents, have changed: what each has to say, in every format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from typing import Any

import pytest
from hypothesis import strategies as st

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.exceptions import LakestreamError, Terminal
from airflow_lakestream.run.storage import StorageFailed, storage_errors_named
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
    # An error of a library does not match: an assertion fails then, as `tests.dev.play_mutants` asks for.
    with pytest.raises(Exception, match=match) as caught:
        lake.land(kind.then, **kind.given)
    assert isinstance(caught.value, error)
    assert isinstance(caught.value, Terminal)
    assert lake.name in str(caught.value)
    assert sorted(lake.folder.rglob("*")) == before


def assert_landed(lake: GivenLake, rows: int) -> None:
    """Assert that a landing of four records rejects none, and how many rows the table has then."""
    assert lake.land(EXTRACT.then[:4]).counts.rejected == 0
    assert len(lake.rows()) == rows


# In place of a part of a document; `...` takes it away.
ODD: tuple[Any, ...] = (..., None, [], {}, 5, -1, "x", "", True, [None], {"a": None})


def _parts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each part of a document."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        yield from _parts(value[key], (*path, key))


def make_odd(draw: st.DrawFn, document: Any) -> None:
    """Put something odd in place of a part of a document."""
    *above, last = draw(st.sampled_from(list(_parts(document))))
    part, odd = reduce(getitem, above, document), draw(st.sampled_from(ODD))
    if odd is ...:
        del part[last]
    else:
        part[last] = odd


def land_or_refuse(lake: GivenLake) -> None:
    """Land four records, or see them refused: no error of a library, and nothing that a retry would repeat for ever."""
    with suppress(Terminal, StorageFailed), storage_errors_named(lake.name, None):
        lake.land(EXTRACT.then[:4])
