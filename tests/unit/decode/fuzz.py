"""Fuzzes the decoders by hand: `make fuzz N=100000`, or `python -m tests.unit.decode.fuzz -n 100000 --seed 1 avro`.

Most of a format's payloads are real records, damaged; a tenth are drawn by hypothesis, of any schema and any value, and
damaged, too: drawing takes fifty times as long.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.unit.decode import test_avro_differential, test_csv, test_json_differential, test_protobuf_differential
from tests.unit.decode.real_payloads import FORMATS, attack

_EXAMPLES = 100


def _json() -> tuple[Any, Callable[[Any], int]]:
    def check(drawn: Any) -> int:
        (schema, values), unknown_fields = drawn
        test_json_differential.check(schema, values, unknown_fields)
        return len(values)

    flat = test_json_differential.mutilated().map(lambda values: (test_json_differential.FLAT, values))
    return st.tuples(test_json_differential.cases() | flat, st.sampled_from(["ignore", "fail"])), check


def _avro() -> tuple[Any, Callable[[Any], int]]:
    def check(drawn: Any) -> int:
        test_avro_differential.check(*drawn)
        return len(drawn[1])

    return test_avro_differential.cases(), check


def _protobuf() -> tuple[Any, Callable[[Any], int]]:
    def check(drawn: Any) -> int:
        test_protobuf_differential.check(*drawn)
        return len(drawn[2])

    return test_protobuf_differential.cases(), check


def _csv() -> tuple[Any, Callable[[Any], int]]:
    def check(drawn: Any) -> int:
        test_csv.check(*drawn)
        return len(drawn[1])

    return test_csv.cases(), check


DRAWN_SHARE = 10

# JSON Schema is JSON in a frame, and raw records have nothing to draw: all of theirs are real ones.
DRAWN = {"json": _json, "avro": _avro, "protobuf": _protobuf, "csv": _csv}


def draw_and_check(name: str, count: int, first_seed: int) -> int:
    """Check payloads that hypothesis draws, until they are so many; return how many they were."""
    strategy, check = DRAWN[name]()
    done = 0

    def one(drawn: Any) -> None:
        nonlocal done
        done += check(drawn)

    # A round at a time: hypothesis remembers what it has drawn, and would draw less and less that is new.
    while done < count:
        told = settings(
            max_examples=_EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        seed(first_seed)(told(given(strategy)(one)))()
        first_seed += 1
    return done


def main(argv: Sequence[str] | None = None) -> int:
    """Fuzz, print what came of it by format, and return 1 if a decoder was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=100_000, help="payloads of each format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("formats", nargs="*", default=list(FORMATS), help=", ".join(FORMATS))
    told = parser.parse_args(argv)
    wrong = 0
    for name in told.formats:
        started = time.process_time()
        drawn = rows = rejected = 0
        try:
            if name in DRAWN:
                drawn = draw_and_check(name, told.n // DRAWN_SHARE, told.seed * 1_000_000)
            for good, bad in attack(name, random.Random(told.seed), told.n - drawn):
                rows, rejected = rows + good, rejected + bad
        except AssertionError as error:
            wrong += 1
            print(f"{name}: WRONG: {error}", flush=True)
            continue
        real = f"{rows + rejected} real ones damaged ({rows} rows, {rejected} rejected)"
        seconds = time.process_time() - started
        print(f"{name}: {drawn} drawn, {real}, all as the oracle has them, {seconds:.0f} CPU s", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
