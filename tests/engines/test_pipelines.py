"""A pipeline whose engine is changed five times, Spark among them, while records come: each record is landed once."""

from __future__ import annotations

import pytest

from tests.support.broker import Producing, Topics
from tests.support.pipelines import Pipelines, pipelines, switch_engines

__all__ = ["pipelines"]

pytestmark = [pytest.mark.integration, pytest.mark.airflow]


def test_the_engine_is_changed_five_times(pipelines: Pipelines, topic: Topics, produce: Producing) -> None:
    switch_engines(pipelines, produce, topic(2), ["extract", "spark", "group", "spark", "extract", "group"])
