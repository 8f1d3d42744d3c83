"""The events that Airflow's OpenLineage provider sends, kept in a file by its client's file transport."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import attr
import pytest
from openlineage.client import event_v2, facet_v2
from openlineage.client.generated import base

Event = dict[str, Any]
_ENDS = ("COMPLETE", "FAIL", "ABORT")


@dataclass(frozen=True)
class Told:
    """What was sent."""

    file: Path

    def ends(self, dag_id: str, task_id: str = "land") -> list[Event]:
        """Return the last event of each try of a task, in their order; each has been checked."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        events = [json.loads(line) for line in lines]
        for event in events:
            check(event)
        return [one for one in events if one["job"]["name"] == f"{dag_id}.{task_id}" and one["eventType"] in _ENDS]

    def end(self, dag_id: str, task_id: str = "land") -> Event:
        """Return the one such event."""
        [event] = self.ends(dag_id, task_id)
        return event


def check(event: Event) -> None:
    """Check an event by the classes that OpenLineage makes of its schema: what it needs, and no field besides."""
    kind = event_v2.RunEvent
    assert set(event) <= {one.name for one in attr.fields(kind)}
    assert event["eventType"] in base.EventType.__members__
    kind(
        eventTime=event["eventTime"],
        eventType=event_v2.RunState(event["eventType"]),
        run=event_v2.Run(event["run"]["runId"]),
        job=event_v2.Job(event["job"]["namespace"], event["job"]["name"]),
        producer=event["producer"],
    )
    of_datasets = [(one, part) for one in (*event["inputs"], *event["outputs"]) for part in one if "acets" in part]
    facets = [facet for one, part in of_datasets for facet in one[part].items()]
    for name, facet in (*facets, *event["run"]["facets"].items(), *event["job"]["facets"].items()):
        _check_facet(name, facet)


def _check_facet(name: str, facet: dict[str, Any]) -> None:
    assert facet["_producer"], name
    assert facet["_schemaURL"].startswith("https://"), name
    known = _class_of(facet["_schemaURL"])
    if known is None or name.startswith(("lakestream_", "airflow")):
        return
    fields = {one.name.lstrip("_"): one for one in attr.fields(known)}
    given = {key.lstrip("_"): value for key, value in facet.items()}
    # Facets may have more than their class; ours have not.
    needed = {key for key, one in fields.items() if one.default is attr.NOTHING}
    assert needed <= set(given), (name, needed - set(given))


def _class_of(schema_url: str) -> Any:
    name = schema_url.rpartition("/")[2]
    modules = [getattr(facet_v2, part) for part in dir(facet_v2) if not part.startswith("_")]
    return next((getattr(module, name) for module in modules if hasattr(module, name)), None)


@pytest.fixture
def lineage_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    """Let the task processes of this test tell OpenLineage."""
    file = tmp_path / "openlineage.jsonl"
    transport = {"type": "file", "log_file_path": str(file), "append": True}
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", json.dumps(transport))
    return Told(file)
