"""Answers about offsets that brokers do not give while leaders move."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec

from airflow_lakestream.kafka.requests import KafkaRequests
from airflow_lakestream.kafka.source import KafkaSource, StartAt


class Admin:
    """Answers each request for offsets by the next of these: offset and timestamp."""

    def __init__(self, *answers: tuple[int, int]) -> None:
        self.answers = list(answers)

    def list_offsets(self, request: dict[TopicPartition, Any], **_: Any) -> dict[TopicPartition, Future[Any]]:
        offset, timestamp = self.answers.pop(0)
        found: Future[Any] = Future()
        found.set_result(SimpleNamespace(offset=offset, timestamp=timestamp, leader_epoch=None))
        return dict.fromkeys(request, found)

    def poll(self, _: float) -> None:
        pass


def asked(monkeypatch: pytest.MonkeyPatch, admin: Admin) -> KafkaSource:
    monkeypatch.setattr(KafkaRequests, "_client", lambda _: admin)
    return KafkaSource({"bootstrap.servers": "nowhere:1"}, "clicks", "group", StartAt(), "a test")


@pytest.mark.parametrize("spec", [OffsetSpec.latest, OffsetSpec.earliest])
def test_a_low_or_an_end_without_an_offset_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, spec: Callable[[], Any]
) -> None:
    admin = Admin((-1, -1), (7, -1))
    assert asked(monkeypatch, admin)._list_offsets([0], spec)[0].offset == 7
    assert not admin.answers


def test_a_time_without_a_record_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin((-1, -1))
    assert asked(monkeypatch, admin)._list_offsets([0], lambda: OffsetSpec.for_timestamp(5))[0].offset == -1


def test_a_log_with_records_and_without_a_newest_one_does_not_prove_that_none_is_younger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    marks: Any = {0: SimpleNamespace(low=3, end=9)}
    no_newest, no_first = (-1, -1), (-1, -1)
    assert asked(monkeypatch, Admin(no_newest, no_first))._unproven(marks, [0], 5) == [0]
    older = (8, 4)
    assert asked(monkeypatch, Admin(older))._unproven(marks, [0], 5) == []
