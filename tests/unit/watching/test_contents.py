"""What is told of a table is bounded in number and bytes, is printable, and hides what looks secret."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.upkeep.reject_summary import RejectExample
from airflow_lakestream.watching.contents import MOST_BYTES, MOST_CHARACTERS, TableContents, _cut_to_size, _sample


def sample(value: bytes | None, error: str = "n: 'x' is no bigint") -> dict[str, Any]:
    return _sample(RejectExample("t", 0, 7, error, value, "r"))


@given(st.binary() | st.text().map(str.encode), st.text())
def test_a_sample_is_printable_and_short_whatever_the_record_holds(value: bytes, error: str) -> None:
    one = sample(value, error)
    for text in (one["value"], one["error"]):
        assert text.isprintable()
        assert len(text) <= MOST_CHARACTERS + len("...")
    assert one["bytes"] == len(value)
    json.dumps(one, allow_nan=False).encode()


def test_a_sample_is_text_and_says_how_long_the_value_is() -> None:
    assert sample(b"<script>x</script>")["value"] == "<script>x</script>"
    # Right to left, a null and what is no UTF-8.
    assert sample("\u202eabc\x00".encode() + b"\xff")["value"] == "\\u202eabc\\x00\\xff"
    long = sample(b"a" * 10**6)
    assert (long["value"], long["bytes"]) == ("a" * MOST_CHARACTERS + "...", 10**6)
    assert (sample(None)["value"], sample(None)["bytes"]) == (None, None)


def test_secrets_are_hidden_in_values_and_in_reasons() -> None:
    hidden = sample(b'{"id": 1, "password": "word-3"}', "password: 'word-3' is no bigint")
    assert hidden["value"] == '{"id": 1, "password":***'
    assert hidden["error"] == "password: ... is no bigint"
    # It begins where the text is cut.
    cut = sample(b'{"a": "%s", "password": "word-3"}' % (b"x" * 150))
    assert "word-3" not in cut["value"]
    assert sample(b"1")["error"] == "n: 'x' is no bigint"


def test_the_last_samples_are_left_out_of_a_document_that_is_too_long() -> None:
    def reason() -> dict[str, Any]:
        return {"records": 9, "samples": [sample("\U0001f600".encode() * 500) for _ in range(10)]}

    document = _cut_to_size({"rejects": {"count": 45, "reasons": [reason() for _ in range(5)]}})
    assert len(json.dumps(document)) <= MOST_BYTES
    kept = [len(one["samples"]) for one in document["rejects"]["reasons"]]
    assert kept == sorted(kept, reverse=True)
    assert sum(kept) > 0
    assert [one["records"] for one in document["rejects"]["reasons"]] == [9] * 5


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"samples": 11}, "samples: 11 are too many"),
        ({"samples": "-1"}, "samples: '-1' is not a number from 0 on"),
        ({"table": "t"}, "table: 't' is not of the form namespace.table"),
        ({"table": "s3://b/t"}, "table: "),
    ],
    ids=["too many", "below 0", "no namespace", "delta"],
)
def test_what_can_not_work_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        TableContents(**{"table": "lake.t", "consumer_group": "g", **given})
