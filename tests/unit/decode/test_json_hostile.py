"""The bulk path under attack, in a process of its own: Arrow's reader is known to crash on some input."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import faulthandler, random, sys
import pyarrow as pa
from airflow_lakestream.decode.json.decoder import JsonDecoder
from airflow_lakestream.exceptions import BadRecord
from tests.unit.decode.support import batch, decoded

faulthandler.enable()
schema = pa.schema([
    ("i", pa.int64()), ("s", pa.string()), ("t", pa.timestamp("us", "UTC")), ("d", pa.decimal128(5, 2)),
    ("o", pa.struct([("l", pa.list_(pa.struct([("f", pa.float32())])))])),
])
good = [b"{}", b'{"i":1,"s":"x"}', b'{"t":"2026-11-20T05:06:07Z","d":1.5}', b'{"o":{"l":[{"f":1},null]}}',
    b'{"z":null}']
hostile = [
    b"", b"null", b"null\\n", b" null", b"{}null", b"null{}", b"[null]", b"[]", b"nul", b"true", b"1", b'"x"',
    b"\\0", b"{\\0}", b"}", b"{", b"}{", b"[" * 50000, b'{"o":' * 50000,
    b'{"z":' + b"[" * 50000 + b"]" * 50000 + b"}", b"\\xff",
    b"\\xef\\xbb\\xbf{}", b'{"i":' + b"9" * 50000 + b"}", b'{"d":' + b"9" * 50000 + b"}",
    b'{"s":"' + b"x" * 500000,
    b'{"' + b"k" * 500000 + b'":1}', b'{"o":{"l":' + b"[" * 2000 + b"]" * 2000 + b"}}", b'{"o":{"l":null}}',
    b'{"d":"1e99999999999"}', b'{"d":1e-99999999999}', b'{"t":"' + b"0" * 100000 + b'"}',
    b'{"o":null,"o":null}', b"{},",
]
seed = int(sys.argv[1])
random.seed(seed)
decoders = [JsonDecoder(schema), JsonDecoder(schema, "fail")]
outcomes = {"rows": 0, "bad": 0}

def attack(values):
    for decoder in decoders:
        try:
            assert decoded(decoder, batch(values)).num_rows == len(values)
            outcomes["rows"] += 1
        except BadRecord:
            outcomes["bad"] += 1

for value in hostile:
    for values in ([value], [value] * 3, [good[1], value, good[2]], [value, *good], [*good, value]):
        attack(values)
for _ in range(int(sys.argv[2])):
    values = [random.choice(good + hostile[:17]) for _ in range(random.randint(1, 4))]
    index = random.randrange(len(values))
    spoilt = bytearray(values[index][:200])
    for _ in range(random.randint(0, 3)):
        at = random.randint(0, len(spoilt))
        new = random.choice([b"", b"null", b"\\n", b"}", b"{", b"\\0", b",", random.randbytes(1)])
        spoilt[at : at + random.randint(0, 2)] = new
    values[index] = bytes(spoilt)
    attack(values)
print("survived", outcomes["rows"] > 50, outcomes["bad"] > 50)
"""


@pytest.mark.long
def test_no_input_crashes_the_process() -> None:
    seed = "20261120"
    run = subprocess.run([sys.executable, "-c", PROGRAM, seed, "1500"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "survived True True\n"), f"seed {seed}: {run.stderr[-3000:]}"
