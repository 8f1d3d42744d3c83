"""Lands made-up records on a table of so many snapshots, and prints the median CPU seconds of a landing."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import airflow_lakestream
from dev.bench.commits import ALL, Bookkeeper

LANDINGS = 40


def main(source: str, snapshots: int) -> None:
    """Print the median; the package has to be that of the source."""
    assert Path(str(airflow_lakestream.__file__)).is_relative_to(source), airflow_lakestream.__file__
    with tempfile.TemporaryDirectory() as folder:
        keeper = Bookkeeper(Path(folder), properties=ALL)
        keeper.seed(snapshots)
        # It also imports.
        keeper.land()
        seconds = []
        for _ in range(LANDINGS):
            began = time.process_time()
            keeper.land()
            seconds.append(time.process_time() - began)
    print(statistics.median(seconds))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
