"""Plays sequences of the fault harness by hand: `make faults N=10000`, `make faults SEED=7 N=1`; see dev/FAULTS.md."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from multiprocessing import get_context
from random import Random

from dev.services.kafka import Kafka
from dev.stack import Stack
from tests.support.broker import QUICK_CLEANUP
from tests.support.fault_broker import BrokerKafka
from tests.support.fault_oracle import Violation
from tests.support.fault_play import Playground, playground
from tests.support.fault_topics import ModelKafka

# A process is renewed after so many sequences: PyIceberg, Arrow and SQLAlchemy remember a little of each table.
AT_MOST, AT_LEAST = 250, 10


def main(argv: Sequence[str] | None = None) -> int:
    """Play, and return 1 if any sequence failed."""
    told = _parser().parse_args(argv)
    started = time.monotonic()
    with _broker() if told.broker else nullcontext() as kafka:
        failed = _play_one(told.seed, kafka) if told.n == 1 else _play_all(told.seed, told.n, told.workers, kafka)
    seconds = time.monotonic() - started
    where = "on a real broker" if told.broker else "on the model"
    last = told.seed + told.n - 1
    print(f"{told.n} sequences {where}, seeds {told.seed} to {last}: {len(failed)} failed, in {seconds:.0f} s")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.play", description=__doc__)
    parser.add_argument("-n", type=int, default=1000, help="how many sequences")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first; the others count up from it")
    parser.add_argument("--workers", type=int, default=2, help="processes at once")
    parser.add_argument("--broker", action="store_true", help="with topics of a real broker")
    return parser


def _play_one(seed: int, kafka: Kafka | None) -> list[int]:
    with _ground(kafka) as ground:
        try:
            print("\n".join(ground.play(Random(seed))))
        except Violation as violation:
            print(violation)
            return [seed]
    return []


def _play_all(first: int, count: int, workers: int, kafka: Kafka | None) -> list[int]:
    failed: list[int] = []
    played = 0
    again = "make faults" if kafka is None else "make faults-broker"
    size = min(AT_MOST, max(AT_LEAST, count // (4 * workers)))
    blocks = iter([range(s, min(s + size, first + count)) for s in range(first, first + count, size)])
    with ProcessPoolExecutor(workers, get_context("spawn"), max_tasks_per_child=1) as pool:
        going: dict[Future[list[tuple[int, str]]], range] = {}
        while True:
            going |= {pool.submit(_play_block, block, kafka): block for block in islice(blocks, workers - len(going))}
            if not going:
                return failed
            for done in wait(going, return_when=FIRST_COMPLETED).done:
                played += len(going.pop(done))
                for seed, story in done.result():
                    failed.append(seed)
                    print(f"seed {seed} failed; it replays by: {again} SEED={seed} N=1{story}\n", flush=True)
            print(f"{played} of {count} played, {len(failed)} failed", file=sys.stderr, flush=True)


def _play_block(seeds: range, kafka: Kafka | None) -> list[tuple[int, str]]:
    failed = []
    with _ground(kafka) as ground:
        for seed in seeds:
            try:
                ground.play(Random(seed))
            except Violation as violation:
                failed.append((seed, str(violation)))
    return failed


@contextmanager
def _broker() -> Iterator[Kafka]:
    with Stack.owned("faults") as stack:
        yield stack.up_kafka(overrides=QUICK_CLEANUP)


def _ground(kafka: Kafka | None) -> AbstractContextManager[Playground]:
    return playground(BrokerKafka(kafka) if kafka is not None else ModelKafka())


if __name__ == "__main__":
    sys.exit(main())
