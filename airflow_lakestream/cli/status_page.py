"""The page of `lakestream status --html`: streams as a single file, independent of a server and the internet."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from airflow_lakestream.watching.causes import span

if TYPE_CHECKING:
    from airflow_lakestream.watching.streams.landings import SnapshotRecord
    from airflow_lakestream.watching.streams.status import StreamStatus

DAY_MS = 24 * 3600 * 1000
_WIDTH, _HEIGHT = 720, 90
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
    """Streams at a moment, in milliseconds since the epoch."""

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
        numbers = (stream.lag, stream.overdue)
        yield (
            f"<tr>{''.join(f'<td>{escape(str(text))}</td>' for text in texts)}{state}"
            + "".join(f'<td class="number">{"" if n is None else f"{n:,}"}</td>' for n in numbers)
            + f'<td>{age}</td><td class="number">{stream.rejected:,}</td></tr>'
        )
    yield "</table>"


def _section(stream: StreamStatus, looks: Sequence[StatusLook]) -> Iterator[str]:
    yield f"<h2>{escape(_name(stream))}</h2>"
    if stream.reasons:
        yield f"<ul>{''.join(f'<li>{escape(str(reason))}</li>' for reason in stream.reasons)}</ul>"
    yield from _landings(stream.landings, looks[-1].at_ms)
    line = [(look.at_ms, one.lag) for look in looks for one in look.streams if _name(one) == _name(stream)]
    known = [(at, lag) for at, lag in line if lag is not None]
    if len(known) > 1:
        yield from _lag(known)
    if stream.files is not None:
        small, deletes, ago = stream.files_texts(looks[-1].at_ms)
        yield f"<p>Small files: {small}. Delete files: {deletes}. Last compaction: {ago}.</p>"
    yield from _partitions(stream)


def _landings(landings: Sequence[SnapshotRecord], now_ms: int) -> Iterator[str]:
    """Draw the landings of the last day: a bar for each, as high as the rows, the rejected records on top."""
    shown = [one for one in landings if now_ms - one.at_ms <= DAY_MS]
    most = max((one.rows + one.rejected for one in shown), default=0)
    yield f"<p>Landings of the last 24 hours: {len(shown):,}, {sum(one.rows for one in shown):,} rows.</p>"
    if not most:
        return
    yield f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + 16}" role="img" aria-label="landings over time">'
    for hour in _HOURS:
        x = _WIDTH * hour / 24
        yield f'<line class="axis" x1="{x:g}" x2="{x:g}" y1="0" y2="{_HEIGHT}"/>'
        anchor, label = ("end", "now") if hour == _HOURS[-1] else ("start", f"-{_HOURS[-1] - hour} h")
        yield f'<text x="{x:g}" y="{_HEIGHT + 13}" text-anchor="{anchor}">{label}</text>'
    for one in shown:
        x = min(_WIDTH * (1 - (now_ms - one.at_ms) / DAY_MS), _WIDTH - 2)
        rows, bad = (_HEIGHT * number / most for number in (one.rows, one.rejected))
        when = time.strftime("%H:%M:%S", time.localtime(one.at_ms / 1000))
        yield f"<g><title>{when}: {one.rows:,} rows, {one.rejected:,} rejected, snapshot {one.snapshot_id}</title>"
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
        cells = "".join(f'<td class="number">{numbers[head]:,}</td>' for head in heads)
        yield f"<tr><td>{partition}</td>{cells}</tr>"
    yield "</table>"


def _name(stream: StreamStatus) -> str:
    where = stream.table or stream.checkpoint or ""
    return f"{stream.topic or '?'} to {where}" + (f" ({stream.consumer_group})" if stream.consumer_group else "")
