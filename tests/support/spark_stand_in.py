"""A stand-in for Spark: a driver without a JVM, which takes the lease, reports batches and ends as an app does.

    python -m tests.support.spark_stand_in --config FILE

What it does is in the configuration: `batches` (0: until it is stopped), `pause` between two, and `ends`, one word for
each driver of the checkpoint in turn: "done", "fail", "terminal", "vanish", "stall" (it beats, and does not move).
`batch` are the seconds that one takes, deaf to a request to stop; `ttl` is the lease's.
It may wait before all for a file, `waits_for`, or end before it has taken the lease, `dies_first`.
Each driver writes down how many of the checkpoint's there are while it is there: see `most_drivers`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from airflow_lakestream.driver.lease import HeldLease
from airflow_lakestream.driver.lease_record import TTL_SECONDS, ProcessIdentity
from airflow_lakestream.driver.progress import BatchProgress, ProgressLog
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError

UI = "http://127.0.0.1:4040"


class Broken(LakestreamError):
    """What a driver fails with."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    config = json.loads(Path(parser.parse_args().config).read_text())
    location = _location(config)
    _count(Path(f"{location}.drivers"))
    _write_down(Path(sys.argv[-1]).parent, Path(f"{location}.seen"), config)
    if config.get("dies_first"):
        return 3
    while "waits_for" in config and not Path(config["waits_for"]).exists():
        time.sleep(0.05)  # between two looks for the file
    ttl = config.get("ttl", TTL_SECONDS)
    lease = HeldLease.take(
        location, config["fingerprint"], config["owner"], inputs=config["inputs"], ui_url=UI, ttl=ttl
    )
    ends = config.get("ends", ["done"])
    how = ends[min(lease.record.generation, len(ends)) - 1]
    with lease:
        _work(config, lease, how)
    return 0


def _location(config: dict) -> str:
    return config.get("checkpoint_location") or config["lease_location"]


def _work(config: dict, lease: HeldLease, how: str) -> None:
    log = ProgressLog(_location(config))
    done = 0
    while not lease.stop_requested():
        time.sleep(config.get("pause", 0.05))  # as a trigger waits for the next batch
        done += 1
        Path(f"{_location(config)}.batch").write_text("begun")
        time.sleep(config.get("batch", 0))  # as long as the test wants a batch to take
        ranges = (("t", 0, 10 * done - 10, 10 * done),)
        told = BatchProgress(done, 10, 9, 1, 5.0, 20.0, 0.5, ranges, lag=7, snapshot_ids=(str(done),))
        log.report(replace(told, tables={"lake.t": 9}))
        Path(f"{_location(config)}.batch").write_text("done")
        if done == config.get("batches") or (how != "done" and done == 2):
            break
    if how == "fail":
        raise Broken("the table is away")
    if how == "terminal":
        raise InvalidArgument("topic", "is missing.")
    if how == "vanish":
        os.kill(os.getpid(), signal.SIGKILL)
    while how == "stall" and not lease.stop_requested():
        time.sleep(0.05)  # hanging is what it is asked to do


def _write_down(folder: Path, seen: Path, config: dict) -> None:
    properties = folder / "spark.properties"
    told = {
        "argv": Path(f"/proc/{os.getpid()}/cmdline").read_text().split("\0"),
        "environment": dict(os.environ),
        "modes": {
            path.relative_to(folder).as_posix(): oct(path.stat().st_mode & 0o777) for path in folder.glob("**/*")
        },
        "properties": properties.read_text() if properties.exists() else "",
        "config": {key: value for key, value in config.items() if key not in ("kafka", "catalog")},
        "password": config.get("kafka", {}).get("sasl.password"),
    }
    told["modes"]["."] = oct(folder.stat().st_mode & 0o777)
    seen.write_text(json.dumps(told))


def _count(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(os.getpid())).write_text(json.dumps(vars(ProcessIdentity.of(os.getpid()))))
    (folder / f"{os.getpid()}.count").write_text(str(len(drivers(folder.with_suffix("")))))


def drivers(location: Path) -> list[int]:
    """Return the pids of the checkpoint's drivers that run."""
    found = [ProcessIdentity.parse(json.loads(path.read_text())) for path in _written(location) if not path.suffix]
    return [process.pid for process in found if process.alive]


def launched(location: Path) -> int:
    """Return how many drivers the checkpoint ever had."""
    return len([path for path in _written(location) if path.suffix])


def most_drivers(location: Path) -> int:
    """Return how many drivers the checkpoint had at a time, at most."""
    return max((int(path.read_text()) for path in _written(location) if path.suffix), default=0)


def _written(location: Path) -> list[Path]:
    return list(Path(f"{location}.drivers").glob("*"))


if __name__ == "__main__":
    sys.exit(main())
