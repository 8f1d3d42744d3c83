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
from functools import cache, partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airflow_lakestream.cli.connections import (
    IcebergConn,
    Json,
    KafkaConn,
    open_catalog,
    open_kafka,
    open_storage,
    open_store_properties,
    output_to_stderr,
)
from airflow_lakestream.core.policies import seconds
from airflow_lakestream.core.printable import printable_lines
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.lakes import lake_of
from airflow_lakestream.watching.causes import span

if TYPE_CHECKING:
    from airflow_lakestream.watching.causes import StreamReason
    from airflow_lakestream.watching.streams.landings import SnapshotRecord
    from airflow_lakestream.watching.streams.looking import StreamSearch
    from airflow_lakestream.watching.streams.status import StreamStatus

DAY_MS = 24 * 3600 * 1000
# Size of a drawing, in units of its viewBox.
_WIDTH, _HEIGHT = 720, 90
# Hours since the begin of the drawn day that have a line and a label.
_HOURS = range(0, 25, 6)
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --rows: #3b82c4; --bad: #d0533f; --lag: #b07d2b; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .3rem .6rem; }
td, th { border-bottom: 1px solid var(--line); } .number { text-align: right; font-variant-numeric: tabular-nums; }
.landing, .idle { color: #2f8f4e; } .behind { color: #b07d2b; } .stalled, .failing, .unseen { color: #d0533f; }
.state { font-weight: 600; } h2 { font-size: 1.1rem; margin-top: 2.5rem; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; } text { font-size: 11px; fill: currentColor; } .axis { stroke: var(--line); }
.rows { fill: var(--rows); } .bad { fill: var(--bad); } .lag { fill: none; stroke: var(--lag); stroke-width: 2; }
"""


@dataclass(frozen=True)
class StatusLook:
    """Streams at a moment: `at_ms` is milliseconds since the epoch."""

    at_ms: int
    streams: Sequence[StreamStatus]


def page(looks: Sequence[StatusLook]) -> str:
    """Return the newest look as an HTML page; the lag of each stream in all looks is drawn as a line.

    :param looks: at least one look, the oldest first.
    """
    newest = looks[-1]
    at = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(newest.at_ms / 1000))
    return "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>Lakestream</title><style>{_STYLE}</style></head>',
            f"<body><h1>Streams</h1><p>Seen at {escape(at)}.</p>",
            *_table(newest.streams),
            *(part for stream in newest.streams for part in _section(stream, looks)),
            "</body></html>\n",
        ]
    )


def _table(streams: Sequence[StreamStatus]) -> Iterator[str]:
    """Yield the HTML of the table of all streams."""
    heads = ("Topic", "Table", "Consumer group", "Engine", "State", "Lag", "Overdue", "Last landing", "Rejected in all")
    yield f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>"
    for stream in streams:
        age = "" if stream.age is None else f"{span(stream.age)} ago"
        state = f'<td class="state {stream.state.name.lower()}">{stream.state.value}</td>'
        texts = (
            stream.topic or "?",
            stream.table or stream.checkpoint or "",
            stream.consumer_group,
            stream.engine or "",
        )
        numbers = (_number(stream.lag, ""), _number(stream.overdue, "" if stream.lag is None else "?"))
        yield (
            f"<tr>{''.join(f'<td>{escape(str(text))}</td>' for text in texts)}{state}"
            + "".join(f'<td class="number">{text}</td>' for text in numbers)
            + f'<td>{age}</td><td class="number">{stream.rejected:,}</td></tr>'
        )
    yield "</table>"


def _section(stream: StreamStatus, looks: Sequence[StatusLook]) -> Iterator[str]:
    """Yield the HTML of a stream: reasons, landings, the lag over time, files and partitions."""
    yield f"<h2>{escape(_heading(stream))}</h2>"
    if stream.reasons:
        yield f"<ul>{''.join(f'<li>{escape(str(reason))}</li>' for reason in stream.reasons)}</ul>"
    yield from _landings(stream.landings, looks[-1].at_ms)
    lags = [
        (look.at_ms, seen.lag)
        for look in looks
        for seen in look.streams
        if seen.lag is not None and _heading(seen) == _heading(stream)
    ]
    if len(lags) > 1:
        yield from _lag(lags)
    if stream.files is not None:
        small, deletes, ago = stream.files_texts(looks[-1].at_ms)
        yield f"<p>Small files: {small}. Delete files: {deletes}. Last compaction: {ago}.</p>"
    yield from _partitions(stream)


def _landings(landings: Sequence[SnapshotRecord], now_ms: int) -> Iterator[str]:
    """Draw the landings of the last day: a bar for each, as high as the rows, the rejected records on top."""
    shown = [landing for landing in landings if now_ms - landing.at_ms <= DAY_MS]
    # The highest bar.
    most = max((landing.rows + landing.rejected for landing in shown), default=0)
    yield f"<p>Landings of the last 24 hours: {len(shown):,}, {sum(landing.rows for landing in shown):,} rows.</p>"
    if not most:
        return
    yield f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + 16}" role="img" aria-label="landings over time">'
    for hour in _HOURS:
        x = _WIDTH * hour / 24
        yield f'<line class="axis" x1="{x:g}" x2="{x:g}" y1="0" y2="{_HEIGHT}"/>'
        anchor, label = ("end", "now") if hour == _HOURS[-1] else ("start", f"-{_HOURS[-1] - hour} h")
        yield f'<text x="{x:g}" y="{_HEIGHT + 13}" text-anchor="{anchor}">{label}</text>'
    for landing in shown:
        # A bar is two units wide: the newest must not begin at the right edge.
        x = min(_WIDTH * (1 - (now_ms - landing.at_ms) / DAY_MS), _WIDTH - 2)
        rows, bad = (_HEIGHT * number / most for number in (landing.rows, landing.rejected))
        when = time.strftime("%H:%M:%S", time.localtime(landing.at_ms / 1000))
        numbers = f"{landing.rows:,} rows, {landing.rejected:,} rejected, snapshot {landing.snapshot_id}"
        yield f"<g><title>{when}: {numbers}</title>"
        yield f'<rect class="rows" x="{x:.1f}" y="{_HEIGHT - rows:.1f}" width="2" height="{rows:.1f}"/>'
        yield f'<rect class="bad" x="{x:.1f}" y="{_HEIGHT - rows - bad:.1f}" width="2" height="{bad:.1f}"/></g>'
    yield "</svg>"


def _lag(line: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Draw the lag over time, from at least two pairs of time and lag."""
    (first, _), (last, _) = line[0], line[-1]
    most = max(lag for _, lag in line) or 1
    points = (
        f"{_WIDTH * (at - first) / max(last - first, 1):.1f},{_HEIGHT - (_HEIGHT - 4) * lag / most:.1f}"
        for at, lag in line
    )
    yield f"<p>Lag in the last {span((last - first) / 1000)}: {most:,} offsets at most, now {line[-1][1]:,}.</p>"
    yield f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="lag over time">'
    yield f'<polyline class="lag" points="{" ".join(points)}"/></svg>'


def _partitions(stream: StreamStatus) -> Iterator[str]:
    if not stream.partitions:
        return
    heads = list(next(iter(stream.partitions.values())))
    titles = "".join(f'<th class="number">{escape(head)}</th>' for head in heads)
    yield f"<table><tr><th>Partition</th>{titles}</tr>"
    for partition, numbers in sorted(stream.partitions.items()):
        cells = "".join(f'<td class="number">{_number(numbers[head], "?")}</td>' for head in heads)
        yield f"<tr><td>{partition}</td>{cells}</tr>"
    yield "</table>"


def _heading(stream: StreamStatus) -> str:
    where = stream.table or stream.checkpoint or ""
    return f"{stream.topic or '?'} to {where}" + (f" ({stream.consumer_group})" if stream.consumer_group else "")


# Sequences for a terminal. Text is painted over the last look from the upper left corner, so that it does not flicker.
_HOME, _END_OF_LINE, _END_OF_SCREEN = "\033[H", "\033[K", "\033[J"


def painted(text: str, colours: Mapping[str, str]) -> str:
    """Return a text with coloured words, or unchanged if stdout is no terminal or NO_COLOR is set.

    :param colours: the colour of each word.
    """
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
_SHOWN_LANDINGS = 3  # number of newest landings whose rows the table has
# Most looks in the timelines of the page: a day of looks each minute.
_MOST_LOOKS = 1440
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
    group: Annotated[str | None, typer.Option(help="only streams of this consumer group")] = None,
    max_age: Annotated[str, typer.Option(help="how long a record may wait before it is overdue, such as 15m")] = "15m",
    watch: Annotated[bool, typer.Option("--watch", help="look again and again, until Ctrl-C")] = False,
    every: Annotated[str, typer.Option(help="with --watch: the time between two looks")] = "10s",
    html: Annotated[
        Path | None, typer.Option(help="write a page with timelines of landings and lag into this file")
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
    with output_to_stderr():
        lakes = _ConnectionLakes(iceberg_conn, storage_conn)
        search = _search(tables or [], namespaces or [], checkpoints or [], group, kafka_conn, lakes)
    written = None if html is None else _PageFile(html)
    if written:
        search = replace(search, landings_ms=written.landings_ms)
    if not watch:
        streams = _look(search, age)
        if written:
            written.add(streams)
        typer.echo(json.dumps(_json(streams), indent=2) if as_json else painted(render(streams, group), _COLOURS))
        return _verdict(streams, group)
    code = 0
    try:
        while True:
            streams = _look(search, age)
            # Set before the look is printed: Ctrl-C after a look exits with the code of this look.
            code = _verdict(streams, group)
            if written:
                written.add(streams)
            if as_json:
                typer.echo(json.dumps(_json(streams)))
            else:
                at = time.strftime("%H:%M:%S")
                paint_over(
                    painted(f"{render(streams, group)}\n\n{at}, again each {pause:g} s; Ctrl-C ends it", _COLOURS)
                )
            time.sleep(pause)  # the pause of --watch
    except KeyboardInterrupt:
        return code


class _PageFile:
    """The file of `--html`, replaced after each look."""

    def __init__(self, file: Path) -> None:
        if not file.parent.is_dir():
            raise InvalidArgument("--html", f"there is no folder {file.parent}.", "Create it, or name another file.")
        self.landings_ms = DAY_MS
        self._file = file
        self._looks: deque[StatusLook] = deque(maxlen=_MOST_LOOKS)

    def add(self, streams: Sequence[StreamStatus]) -> None:
        self._looks.append(StatusLook(int(time.time() * 1000), streams))
        # A part is renamed when it is complete: no browser reads half a page.
        part = self._file.with_name(f"{self._file.name}.part")
        # An existing part may be a link of another user to a file of ours: a new file is created.
        part.unlink(missing_ok=True)
        with part.open("x", encoding="utf-8") as file:
            file.write(page(self._looks))
        part.replace(self._file)


class _ConnectionLakes:
    """`watching.streams.looking.LakeConnections` by Airflow connections, each opened at its first use."""

    def __init__(self, iceberg_conn: str, storage_conn: str | None) -> None:
        self.catalog = cache(partial(open_catalog, iceberg_conn))
        self.storage = cache(partial(open_storage, storage_conn))
        self._store_properties = cache(partial(open_store_properties, storage_conn))

    def properties(self, location: str) -> Mapping[str, str] | None:
        if "://" not in location or location.startswith("file:"):
            return None
        of_store = self._store_properties()
        return dict(self.catalog().properties) if of_store is None else of_store


def _search(
    tables: list[str],
    namespaces: list[str],
    checkpoints: list[str],
    group: str | None,
    kafka_conn: str,
    lakes: _ConnectionLakes,
) -> StreamSearch:
    """Return the search by the options. Raises InvalidArgument without a table, a namespace and a checkpoint."""
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
    with output_to_stderr():
        return search.streams(int(time.time() * 1000), max_age)


def _verdict(streams: list[StreamStatus], group: str | None) -> int:
    """Return the exit code: 2 if a look at a stream failed, 1 if a stream is not healthy, otherwise 0."""
    from airflow_lakestream.watching.streams.status import HEALTHY, StreamState

    if any(stream.state is StreamState.UNSEEN for stream in streams) or (group is not None and not streams):
        # A monitor of a group without streams must not get the code for "all is well".
        return 2
    return 0 if all(stream.state in HEALTHY for stream in streams) else 1


def _json(streams: list[StreamStatus]) -> dict[str, Any]:
    return {"at": time.time(), "streams": [stream.to_dict() for stream in streams]}


def render(streams: list[StreamStatus], group: str | None = None) -> str:
    """Return streams as text: a table, and below the table the reasons for the states.

    :param group: the consumer group of `--group`, or None; the text names it if no stream was found.
    """
    if not streams:
        whose = "" if group is None else f" of the consumer group {group}"
        return f"no streams: none of the tables has a ledger{whose}"
    rows = [_COLUMNS, *(_row(stream) for stream in streams)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(_COLUMNS))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return printable_lines("\n".join([*lines, *_reasons(streams)]))


def _row(stream: StreamStatus) -> tuple[str, ...]:
    rows = " + ".join(f"{landing.rows:,}" for landing in stream.landings[:_SHOWN_LANDINGS])
    return (
        _name(stream),
        str(stream.engine or "-"),
        stream.state.value,
        _number(stream.lag, "-"),
        _number(stream.overdue, "-" if stream.lag is None else "?"),
        "-" if stream.age is None else f"{span(stream.age)} ago",
        rows or "-",
        f"{stream.rejected:,}",
        *stream.files_texts(time.time() * 1000),
    )


def _reasons(streams: list[StreamStatus]) -> Iterator[str]:
    from airflow_lakestream.watching.streams.status import StreamState

    # If Kafka does not answer, many streams have the same reasons: they are printed once.
    names_by_reasons: dict[tuple[StreamState, tuple[StreamReason, ...]], list[str]] = {}
    for stream in streams:
        if stream.reasons:
            names_by_reasons.setdefault((stream.state, stream.reasons), []).append(_name(stream))
    for (state, reasons), names in names_by_reasons.items():
        state_text = "" if state is StreamState.UNSEEN else f" is {state}"
        yield "\n" + "\n".join(f"{name}{state_text}" for name in names)
        # Further lines of an error are indented below its first line.
        yield from (f"  {reason}".replace("\n", "\n    ") for reason in reasons)


def _name(stream: StreamStatus) -> str:
    if not stream.table:
        return f"{stream.topic or '?'} -> {stream.checkpoint}"
    return f"{stream.topic or '?'} -> {stream.table} ({stream.consumer_group or '?'})"


def _number(value: int | None, missing: str) -> str:
    return missing if value is None else f"{value:,}"
