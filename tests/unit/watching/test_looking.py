"""Which streams are looked at when something does not answer; the real parts are in `integration/test_status.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_lakestream.core.landing.plan import PartitionWatermarks, TopicState
from airflow_lakestream.core.ledger import TopicEntry, TopicIdentity
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.kafka.errors import KafkaRefused, KafkaUnavailable, TopicMissing
from airflow_lakestream.watching.causes import StreamCause
from airflow_lakestream.watching.lag.waiting import TopicBacklog
from airflow_lakestream.watching.streams.looking import _LookTopics
from airflow_lakestream.watching.streams.status import StreamFacts, StreamState, stream_status


@dataclass
class SilentKafka:
    """A cluster that answers for some topics, and for the others with an error."""

    errors: dict[str, Exception]
    asked: list[str] = field(default_factory=list)

    def topic(self, topic: str) -> TopicState:
        self.asked.append(topic)
        if topic in self.errors:
            raise self.errors[topic]
        return TopicState(TopicIdentity(topic, "id", "c"), {0: PartitionWatermarks(0, 0)})


def look(kafka: SilentKafka, *names: str) -> dict[str, tuple[StreamState, list[StreamCause]]]:
    topics: Any = _LookTopics(kafka, 0)  # type: ignore[arg-type]  # all that is asked of it
    found = {}
    for name in names:
        facts = topics.compared(
            StreamFacts("lake.t", "g", name), lambda state: TopicBacklog(state, TopicEntry(), RangeSet(), RangeSet())
        )
        stream = stream_status(facts, 0, 60.0)
        found[name] = (stream.state, [one.cause for one in stream.reasons])
    return found


def nothing_lacks(state: TopicState) -> TopicBacklog:
    return TopicBacklog(state, TopicEntry(), RangeSet(), RangeSet())


UNSEEN = (StreamState.UNSEEN, [StreamCause.COULD_NOT_LOOK])


def no_answer() -> KafkaUnavailable:
    return KafkaUnavailable("Kafka", "looking", 20, "")


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (no_answer(), UNSEEN),
        (KafkaRefused("Kafka", "looking", "no ACL"), UNSEEN),
        (RuntimeError("a bug"), UNSEEN),
        (TopicMissing("b", "Kafka"), (StreamState.FAILING, [StreamCause.UNUSABLE])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_one_stream_that_can_not_be_looked_at_takes_no_other_along(error: Exception, seen: Any) -> None:
    found = look(SilentKafka({"b": error}), "a", "b", "c")
    assert found == {
        "a": (StreamState.IDLE, [StreamCause.IDLE_TOPIC]),
        "b": seen,
        "c": (StreamState.IDLE, [StreamCause.IDLE_TOPIC]),
    }


def test_a_cluster_that_does_not_answer_is_not_asked_for_each_of_a_hundred_streams() -> None:
    names = [f"t{number}" for number in range(100)]
    kafka = SilentKafka({name: no_answer() for name in names})
    assert look(kafka, *names) == dict.fromkeys(names, UNSEEN)
    assert kafka.asked == names[:3]
