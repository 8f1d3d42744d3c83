"""Formats guessed from values alone: what most of them look like, never an error, whatever the bytes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.core.policies import ValueFormat
from airflow_lakestream.onramp.samples import guess_format

LINES = [b"1,a", b"2,b", b"3,c"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([b'{"a": 1}', b"{}"], {"format": "json"}),
        ([b'  {"a": 1}'], {"format": "json"}),
        ([b'{"a": 1}', b'{"a": 2}', b"oops"], {"format": "json"}),
        # No more than half of them: then nothing is sure, and raw takes all.
        ([b'{"a": 1}', b"oops"], {"format": "raw"}),
        ([b"[1]", b"7", b'"x"'], {"format": "raw"}),
        ([b"\x00\x00\x00\x00\x01{}"], {"format": "json_schema"}),
        ([b'{"op": "d", "before": {}}'], {"format": "json", "envelope": "debezium"}),
        ([b'{"schema": {}, "payload": {"op": "d", "before": {}}}'], {"format": "json", "envelope": "debezium"}),
        ([b'{"schema": {}, "payload": 1}'], {"format": "json", "envelope": "connect"}),
        (LINES, {"format": "csv", "schema": "column_1 bigint, column_2 string"}),
        ([line.replace(b",", b"|") for line in LINES],
         {"format": "csv", "schema": "column_1 bigint, column_2 string", "csv_delimiter": "|"}),
        # Two lines may have as many commas by chance.
        (LINES[:2], {"format": "raw"}),
        ([b"hello, world", b"hello", b"one, two, three"], {"format": "raw"}),
        ([b'"a,b",1', b'"c",2', b'"d ""e""",3'], {"format": "csv", "schema": "column_1 string, column_2 bigint"}),
        ([b"1,", b"2,", b"3,"], {"format": "csv", "schema": "column_1 bigint, column_2 string"}),
        ([b"\xff\xfe", b"\x00"], {"format": "raw"}),
        ([b""], {"format": "raw"}),
        ([None, b'{"a": 1}', None], {"format": "json"}),
    ],
)  # fmt: skip
def test_values_and_what_they_are_taken_for(values: list[bytes | None], expected: dict[str, str]) -> None:
    found = guess_format(values, None)
    assert (found.decoding, found.problem) == (expected, None)
    assert found.reason


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([], "The topic is empty"),
        ([None, None], "tombstones only"),
        ([b"\x00\x00\x00\x00\x01\x02"], "--schema-registry http://registry:8081"),
        ([b"\xc3\x01" + bytes(9)], "--writer-schemas"),
    ],
)
def test_what_can_not_be_guessed_says_what_to_give(values: list[bytes | None], said: str) -> None:
    assert said in str(guess_format(values, None).problem)


def test_a_long_document_is_judged_by_its_ends() -> None:
    value = json.dumps({"blob": "x" * 10 * 2**20}).encode()
    assert guess_format([value], None).format == ValueFormat.JSON
    # A character that the cut would split.
    assert guess_format([("é" * 2**20).encode(), ("xé" * 2**20).encode()], None).format == ValueFormat.RAW


@given(st.lists(st.none() | st.binary(max_size=40) | st.text(max_size=40).map(str.encode), max_size=8))
def test_no_bytes_are_an_error(values: list[bytes | None]) -> None:
    found = guess_format(values, None)
    assert found.format is not None or found.problem is not None
