"""A run killed by SIGKILL at every gap between two of its steps, and then tried again."""

import pytest

from tests.support.broker import TopicOf
from tests.support.killed_run import DEADLY, POINTS, run_until_killed
from tests.support.lake import Lake, assert_landed_once, events

pytestmark = pytest.mark.integration

# Two partitions of 40 records, in chunks of 10, with a commit after every fourth chunk: two commits.
EACH, CHUNK, COMMITS = 40, 10, 2
CONFIG = {"max_batch_bytes": 1_300}


def kill(lake: Lake, topic: str, point: str, number: int) -> None:
    run_until_killed(lake, topic=topic, run_id="r", config=CONFIG, chunk=CHUNK, point=point, number=number)


def commits_before(point: str, number: int) -> int:
    """How many commits of the run were applied when it was killed."""
    if point == "before the mirror":
        return COMMITS
    if point == "after the plan":
        return 0
    return number if point == "just after the commit" else number - 1


CASES = [("iceberg", point, number) for point in POINTS for number in (1, 2)]
CASES += [("delta", point, number) for point in DEADLY for number in (1, 2)]
# These come once in a run.
CASES.remove(("iceberg", "after the plan", 2))
CASES.remove(("iceberg", "before the mirror", 1))


@pytest.mark.parametrize(("lake", "point", "number"), CASES, indirect=["lake"])
def test_a_killed_run_tried_again_lands_every_record_once_and_reports_all(
    lake: Lake, topic_of: TopicOf, point: str, number: int
) -> None:
    name = topic_of(events(0, 0, EACH), events(1, 0, EACH))
    kill(lake, name, point, number)
    landed = commits_before(point, number)
    assert landed == len(lake.snapshots())

    report = lake.land(name, "r", **CONFIG)

    assert_landed_once(lake, name, {0: EACH, 1: EACH})
    lake.assert_whole(leftovers_of_a_kill=True)
    assert report.recovered == landed
    assert report.snapshot_ids == lake.snapshots()
    assert report.counts.written == 2 * EACH
    assert report.to_dict()["ranges"] == [[0, 0, EACH], [1, 0, EACH]]
    assert report.remaining_lag == 0
    assert lake.committed_offsets(name) == {0: EACH, 1: EACH}


@pytest.mark.parametrize("point", ["just after the commit", "before the mirror"])
def test_the_retry_of_a_try_that_landed_all_returns_its_report_and_adds_nothing(
    lake: Lake, topic_of: TopicOf, point: str
) -> None:
    name = topic_of(events(0, 0, EACH), events(1, 0, EACH))
    kill(lake, name, point, COMMITS)
    snapshots = lake.snapshots()
    assert len(snapshots) == COMMITS

    report = lake.land(name, "r", **CONFIG)

    assert report.recovered == COMMITS
    assert report.to_dict() == {
        **lake.land(name, "another run").to_dict(),
        "snapshot_ids": [str(snapshot) for snapshot in snapshots],
        "snapshot_id": str(snapshots[-1]),
        "read": 2 * EACH,
        "rows": 2 * EACH,
        "partitions": {
            str(p): {"read": EACH, "rows": EACH, "rejected": 0, "skipped": 0, "filtered": 0} for p in (0, 1)
        },
        "ranges": [[0, 0, EACH], [1, 0, EACH]],
    }
    assert lake.snapshots() == snapshots
    assert lake.committed_offsets(name) == {0: EACH, 1: EACH}


def test_a_run_killed_again_and_again_gets_there(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of(events(0, 0, EACH), events(1, 0, EACH))
    kill(lake, name, "just before the commit", 1)
    kill(lake, name, "just after the commit", 1)
    kill(lake, name, "after the data files", 1)
    report = lake.land(name, "r", **CONFIG)
    assert_landed_once(lake, name, {0: EACH, 1: EACH})
    assert report.snapshot_ids == lake.snapshots()
    assert report.counts.written == 2 * EACH
    lake.assert_whole(leftovers_of_a_kill=True)
