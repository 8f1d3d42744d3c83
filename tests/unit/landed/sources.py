"""All sources by their names, and a run over many seeds: `python -m tests.unit.landed.sources -n 100000 --seed 1 avro`.

A failure names its source, kind of table and seed: `--only <seed>` plays that landing again.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from tests.unit.landed import avro_source, connect_source, csv_source, json_sources, protobuf_source
from tests.unit.landed.landing import ROWS, Source, Wrong, land_and_compare

SOURCES: Mapping[str, Callable[[str], Source]] = {
    "json": json_sources.json,
    "json_schema": json_sources.json_schema,
    "avro": avro_source.source,
    "protobuf": protobuf_source.source,
    "csv": csv_source.source,
    "connect": connect_source.source,
    "debezium": json_sources.debezium,
    "sql": json_sources.sql,
}
TABLES = ("iceberg", "delta")


def main(argv: Sequence[str] | None = None) -> int:
    """Land records of each source in tables of both kinds in turn, print what came of it; 1 if something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=100_000, help="values of each source, a record has some 20")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="the seed of one landing, as a failure names it")
    parser.add_argument("sources", nargs="*", default=list(SOURCES), help=", ".join(SOURCES))
    told = parser.parse_args(argv)
    logging.disable(logging.WARNING)
    wrong = 0
    for name in told.sources:
        started, rows, rejected, landings = time.process_time(), 0, 0, 0
        tables = itertools.cycle(TABLES) if told.only is None else iter(TABLES)
        values = 0
        while values < told.n and (table := next(tables, None)) is not None:
            seed = told.only or f"{told.seed}.{landings}"
            landings += 1
            try:
                good, bad = land_and_compare(SOURCES[name](table), table, seed)
            except Wrong as error:
                wrong += 1
                good, bad = 0, ROWS
                print(f"{name}: WRONG: {error}", flush=True)
            rows, rejected = rows + good, rejected + bad
            values += ROWS * len(SOURCES[name](table).columns)
        seconds = time.process_time() - started
        records = f"{rows + rejected} records ({rows} rows, {rejected} rejected)"
        print(
            f"{name}: {values} values, {records} in {landings} landings, {wrong} wrong, {seconds:.0f} CPU s", flush=True
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
