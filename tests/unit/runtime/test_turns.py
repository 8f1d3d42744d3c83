"""Threads take short turns within a landing, and Python's own after it."""

from __future__ import annotations

import sys

import pytest

from airflow_lakestream.runtime.interpreter import SHORT, shorten_turns


def test_turns_are_short_until_the_last_landing_ends() -> None:
    before = sys.getswitchinterval()
    with shorten_turns():
        with pytest.raises(KeyError), shorten_turns():
            raise KeyError
        assert sys.getswitchinterval() == pytest.approx(SHORT)
    assert sys.getswitchinterval() == before
