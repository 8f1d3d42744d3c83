"""The command `lakestream status`: the state of each stream, with reasons."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airflow_lakestream.cli.connections import (
    IcebergConn,
    Json,
    KafkaConn,
    aside,
    open_catalog,
    open_kafka,
    open_storage,
    open_store_properties,
)
from airflow_lakestream.core.policies import seconds
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.lakes import lake_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from airflow_lakestream.delta.storage import DeltaStorage
    from airflow_lakestream.watching.causes import StreamReason
    from airflow_lakestream.watching.streams.looking import StreamSearch
    from airflow_lakestream.watching.streams.status import StreamStatus

# To the upper left corner; new text is painted over the old, so that nothing flickers.
_HOME, _END_OF_LINE, _END_OF_SCREEN = "\033[H", "\033[K", "\033[J"


def painted(text: str, colours: Mapping[str, str]) -> str:
    """Return a text with coloured words, if stdout is a terminal and NO_COLOR is not set."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    words = re.compile(r"\b(" + "|".join(map(re.escape, colours)) + r")\b")
    return words.sub(lambda match: typer.style(match[0], fg=colours[match[0]], bold=True), text)


def paint_over(text: str) -> None:
    """Print a text in the place of the last text on the terminal, or below it if stdout is not a terminal."""
    if not sys.stdout.isatty():
        typer.echo(f"{text}\n")
        return
    lines = "".join(f"{line}{_END_OF_LINE}\n" for line in text.splitlines())
    typer.echo(f"{_HOME}{lines}{_END_OF_SCREEN}", nl=False)


_COLUMNS = (
    "stream",
    "engine",
    "state",
    "lag",
    "overdue",
    "last landing",
    "rows of the last landings",
    "rejected in all",
    "small files",
    "delete files",
    "compacted",
)
# Landings whose rows are shown, the newest first.
_SHOWN = 3
# For a page that is written repeatedly: a day with one look a minute.
_LOOKS = 1440
_COLOURS = {"landing": "green", "idle": "blue", "behind": "yellow"}
_COLOURS |= dict.fromkeys(("stalled", "failing", "could not look"), "red")

Tables = Annotated[
    list[str] | None,
    typer.Option("--table", help="namespace.table, or the path or URI of a Delta table; may be given again"),
]
Namespaces = Annotated[
    list[str] | None, typer.Option("--namespace", help="all its tables with a ledger; may be given again")
]
Checkpoints = Annotated[
    list[str] | None, typer.Option("--checkpoint", help="a Spark stream's checkpoint_location; may be given again")
]
Stores = Annotated[
    str | None,
    typer.Option("--storage-conn", help="Airflow connection of the store of Delta tables, and of checkpoints"),
]


def status(
    tables: Tables = None,
    namespaces: Namespaces = None,
    checkpoints: Checkpoints = None,
    group: Annotated[str | None, typer.Option("--group", help="only streams of this consumer group")] = None,
    max_age: Annotated[
        str, typer.Option("--max-age", help="how long a record may wait before it is overdue, such as 15m")
    ] = "15m",
    watch: Annotated[bool, typer.Option("--watch", help="look again and again, until Ctrl-C")] = False,
    every: Annotated[str, typer.Option("--every", help="with --watch: the time between two looks")] = "10s",
    html: Annotated[
        Path | None, typer.Option("--html", help="write a page with timelines of landings and lag into this file")
    ] = None,
    kafka_conn: KafkaConn = "kafka_default",
    iceberg_conn: IcebergConn = "iceberg_default",
    storage_conn: Stores = None,
    as_json: Json = False,
) -> int:
    """Print for each stream whether the stream is landing, idle, behind, stalled or failing, and why.

    Exit codes: 0 all are landing or idle, 1 one is behind, stalled or failing, 2 could not look, at a stream or at
    all. With --watch the exit code is the code of the last look; with --json each look prints one line.
    """
    pause, age = seconds("--every", every), seconds("--max-age", max_age)
    with aside():
        lakes = _ConnectionLakes(iceberg_conn, storage_conn)
        search = _search(tables or [], namespaces or [], checkpoints or [], group, kafka_conn, lakes)
    written = None if html is None else _PageFile(html)
    if written:
        search = replace(search, landings_ms=written.landings_ms)
    if not watch:
        found = _look(search, age)
        if written:
            written.add(found)
        typer.echo(json.dumps(_json(found), indent=2) if as_json else painted(render(found, group), _COLOURS))
        return _verdict(found, group)
    code = 0
    try:
        while True:
            found = _look(search, age)
            # Set before the look is printed: a user who sees a look and interrupts gets its code.
            code = _verdict(found, group)
            if written:
                written.add(found)
            if as_json:
                typer.echo(json.dumps(_json(found)))
            else:
                at = time.strftime("%H:%M:%S")
                paint_over(painted(f"{render(found, group)}\n\n{at}, again each {pause:g} s; Ctrl-C ends it", _COLOURS))
            time.sleep(pause)  # the pause of --watch
    except KeyboardInterrupt:
        return code


class _PageFile:
    """The file of `--html`, replaced at each look."""

    def __init__(self, file: Path) -> None:
        from airflow_lakestream.cli.status_page import DAY_MS, StatusLook

        if not file.parent.is_dir():
            raise InvalidArgument("--html", f"there is no folder {file.parent}.", "Create it, or name another file.")
        self.landings_ms = DAY_MS
        self._file = file
        self._looks: deque[StatusLook] = deque(maxlen=_LOOKS)

    def add(self, streams: Sequence[StreamStatus]) -> None:
        from airflow_lakestream.cli.status_page import StatusLook, page

        self._looks.append(StatusLook(int(time.time() * 1000), streams))
        # A reader of the page never sees half of it.
        part = self._file.with_name(f"{self._file.name}.part")
        # Create a new file: an existing one may be a link that another user has put there.
        part.unlink(missing_ok=True)
        with part.open("x", encoding="utf-8") as file:
            file.write(page(self._looks))
        part.replace(self._file)


@dataclass
class _ConnectionLakes:
    """Implementation of the port of `watching.streams.looking` by connections, each opened at its first use."""

    iceberg_conn: str
    storage_conn: str | None

    def catalog(self) -> Catalog:
        return self._catalog

    def storage(self) -> DeltaStorage:
        return self._storage

    def properties(self, location: str) -> Mapping[str, str] | None:
        if "://" not in location or location.startswith("file:"):
            return None
        return dict(self._catalog.properties) if self._of_store is None else self._of_store

    @cached_property
    def _catalog(self) -> Catalog:
        return open_catalog(self.iceberg_conn)

    @cached_property
    def _storage(self) -> DeltaStorage:
        return open_storage(self.storage_conn)

    @cached_property
    def _of_store(self) -> Mapping[str, str] | None:
        return open_store_properties(self.storage_conn)


# The objects to look at: the tables, namespaces and checkpoints of the options. Raises InvalidArgument without any.
def _search(
    tables: list[str],
    namespaces: list[str],
    checkpoints: list[str],
    group: str | None,
    kafka_conn: str,
    lakes: _ConnectionLakes,
) -> StreamSearch:
    from airflow_lakestream.kafka.watch import KafkaWatch
    from airflow_lakestream.watching.streams.looking import StreamSearch

    if not tables and not namespaces and not checkpoints:
        raise InvalidArgument("--table", "is missing.", "Give --table, --namespace or --checkpoint, also several.")
    kafka = open_kafka(kafka_conn)
    return StreamSearch(
        lakes=lakes,
        kafka=KafkaWatch(kafka.configuration, kafka.where),
        tables=tuple(lake_of(table).check_name(table, "--table") for table in tables),
        namespaces=tuple(namespaces),
        checkpoints=tuple(checkpoints),
        group=group,
    )


def _look(search: StreamSearch, max_age: float) -> list[StreamStatus]:
    with aside():
        return search.streams(int(time.time() * 1000), max_age)


# The exit code: 2 if a stream could not be looked at, 1 if a stream is not healthy, else 0.
def _verdict(found: list[StreamStatus], group: str | None) -> int:
    from airflow_lakestream.watching.streams.status import HEALTHY, StreamState

    if any(stream.state is StreamState.UNSEEN for stream in found) or (group is not None and not found):
        # A monitor that asks for a missing group must not get the code for "all is well".
        return 2
    return 0 if all(stream.state in HEALTHY for stream in found) else 1


def _json(streams: list[StreamStatus]) -> dict[str, Any]:
    return {"at": time.time(), "streams": [stream.to_dict() for stream in streams]}


def render(streams: list[StreamStatus], group: str | None = None) -> str:
    """Return streams as text: a table, and below the table the reasons for states.

    :param group: the consumer group of `--group`, or None; the text names it if no stream was found.
    """
    if not streams:
        whose = "" if group is None else f" of the consumer group {group}"
        return f"no streams: none of the tables has a ledger{whose}"
    rows = [_COLUMNS, *(_row(stream) for stream in streams)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(_COLUMNS))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, *_reasons(streams)])


def _row(stream: StreamStatus) -> tuple[str, ...]:
    from airflow_lakestream.watching.causes import span

    rows = " + ".join(f"{one.rows:,}" for one in stream.landings[:_SHOWN])
    return (
        _name(stream),
        str(stream.engine or "-"),
        stream.state.value,
        _number(stream.lag),
        _number(stream.overdue),
        "-" if stream.age is None else f"{span(stream.age)} ago",
        rows or "-",
        f"{stream.rejected:,}",
        *stream.files_texts(time.time() * 1000),
    )


def _reasons(streams: list[StreamStatus]) -> Iterator[str]:
    from airflow_lakestream.watching.streams.status import StreamState

    # If Kafka does not answer, many streams have the same reason: it is printed once.
    alike: dict[tuple[StreamState, tuple[StreamReason, ...]], list[str]] = {}
    for stream in streams:
        if stream.reasons:
            alike.setdefault((stream.state, stream.reasons), []).append(_name(stream))
    for (state, reasons), names in alike.items():
        state_text = "" if state is StreamState.UNSEEN else f" is {state}"
        yield "\n" + "\n".join(f"{name}{state_text}" for name in names)
        yield from (f"  {reason}" for reason in reasons)


def _name(stream: StreamStatus) -> str:
    if not stream.table:
        return f"{stream.topic or '?'} -> {stream.checkpoint}"
    return f"{stream.topic or '?'} -> {stream.table} ({stream.consumer_group or '?'})"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
