"""The dashboard and the alert rules name the package's metrics, as Prometheus has them by either way."""

from __future__ import annotations

import re

import yaml

from tests.support.airflow_home import CHECKOUT
from tests.support.dashboards import DASHBOARD, EXPRESSIONS, RULES, metrics_in

KINDS = dict(
    re.findall(r"^\| `lakestream\.([a-z_]+)` \| (\w+)", (CHECKOUT / "docs" / "metrics.md").read_text(), re.MULTILINE)
)
# By kind, what a name has in Prometheus: counters differ between the exporter and OpenTelemetry.
BEHIND = {"counter": {"(_total)?"}, "gauge": {""}, "timer": {"_sum", "_count"}}
ALERTS = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]


def test_each_metric_that_is_named_exists_and_is_of_its_kind() -> None:
    named = metrics_in([*EXPRESSIONS, *(rule["expr"] for rule in ALERTS)])
    assert len(KINDS) > 10
    assert [(name, behind) for name, behind in sorted(named) if behind not in BEHIND[KINDS[name]]] == []


def test_the_dashboard_shows_each_metric() -> None:
    assert {name for name, _ in metrics_in(EXPRESSIONS)} == set(KINDS)


def test_a_metric_that_does_not_exist_would_be_noticed() -> None:
    assert metrics_in(["rate(airflow_lakestream_rowz_total[5m])"]) == {("rowz", "_total")}


def test_each_alert_says_what_is_wrong_and_how_bad_it_is() -> None:
    for rule in ALERTS:
        assert rule["alert"].startswith("Lakestream")
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}


def test_panels_have_a_place_and_a_title_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    places = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels}
    assert len(places) == len({p["title"] for p in panels}) == len({p["id"] for p in panels}) == len(panels)
    assert all(p["datasource"]["uid"] == "${datasource}" and p["description"] for p in panels)
