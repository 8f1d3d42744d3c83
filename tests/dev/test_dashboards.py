"""The alert rules as Prometheus's own tool sees them: valid, and each fires when it should, and not before."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.promtool import have_promtool
from dev.stack import HOME
from tests.support.dashboards import EXPRESSIONS, RULES

STREAM = 'table="lake.orders", topic="orders", consumer_group="g", dag_id="d", task_id="t"'


@pytest.fixture(scope="module")
def promtool() -> str:
    return have_promtool(HOME)


def run(promtool: str, *arguments: str) -> str:
    done = subprocess.run([promtool, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_takes_the_rules(promtool: str) -> None:
    count = len(yaml.safe_load(RULES.read_text())["groups"][0]["rules"])
    assert f"SUCCESS: {count} rules found" in run(promtool, "check", "rules", str(RULES))


def test_prometheus_takes_each_expression_of_the_dashboard(promtool: str, tmp_path: Path) -> None:
    # Grafana fills its variables in before Prometheus sees an expression.
    filled = [
        one.replace("$table", ".*").replace("$consumer_group", ".*").replace("$unit_of_timers", "0.001")
        for one in EXPRESSIONS
    ]
    assert not [one for one in filled if "$" in one]
    rules = [{"record": f"panel:{number}", "expr": one} for number, one in enumerate(filled)]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"SUCCESS: {len(filled)} rules found" in run(promtool, "check", "rules", str(file))


# What a series does minute by minute, when the alert is looked at, and whether it fires.
CASES = [
    ("LakestreamRecordsExpire", {"time_left": "3600x60"}, "10m", True),
    ("LakestreamRecordsExpire", {"time_left": "86400x60"}, "10m", False),
    ("LakestreamRecordsOverdue", {"lag_seconds": "4000x60"}, "20m", True),
    ("LakestreamRecordsOverdue", {"lag_seconds": "60x60"}, "20m", False),
    ("LakestreamLagGrows", {"lag": "6000+1000x300"}, "120m", True),
    # It is all landed in between.
    ("LakestreamLagGrows", {"lag": "0 50000 " * 100}, "120m", False),
    ("LakestreamTableStale", {"freshness": "9000x60"}, "20m", True),
    ("LakestreamTableStale", {"freshness": "60x60"}, "20m", False),
    ("LakestreamReadsSuffer", {"small_files": "2500x100"}, "80m", True),
    ("LakestreamReadsSuffer", {"delete_files": "2500x100"}, "80m", True),
    ("LakestreamReadsSuffer", {"small_files": "1440x100", "delete_files": "7x100"}, "80m", False),
    ("LakestreamRecordsRejected", {"rejected": "0+10x100", "rows": "0+100x100"}, "60m", True),
    ("LakestreamRecordsRejected", {"rejected_total": "0+10x100", "rows_total": "0+100x100"}, "60m", True),
    ("LakestreamRecordsRejected", {"rejected": "0+1x100", "rows": "0+10000x100"}, "60m", False),
    ("LakestreamDriverRestarts", {"restarts": "0+1x100"}, "60m", True),
    ("LakestreamDriverRestarts", {"restarts": "1x100"}, "60m", False),
    ("LakestreamStreamAlert", {"alerts": "0x30 1x30"}, "40m", True),
    ("LakestreamStreamAlert", {"alerts": "1x60"}, "40m", False),
    # A counter's first sample is its first event.
    ("LakestreamStreamAlert", {"alerts": "_x30 1x30"}, "31m", True),
    ("LakestreamStreamAlert", {"alerts_total": "_x30 1x30"}, "40m", True),
    ("LakestreamStreamAlert", {"alerts": "_x30 1x60"}, "60m", False),
    ("LakestreamRecordsRejected", {"rejected": "_x30 5x60", "rows": "_x30 100x60"}, "35m", True),
    ("LakestreamRecordsRejected", {"rejected": "_x30 0x60", "rows": "_x30 100x60"}, "35m", False),
    ("LakestreamDriverRestarts", {"restarts": "_x30 4x60"}, "35m", True),
    ("LakestreamRecordsRejected", {"rejected_total": "_x30 5x60", "rows_total": "_x30 100x60"}, "35m", True),
    ("LakestreamDriverRestarts", {"restarts_total": "_x30 4x60"}, "35m", True),
    # All of the first records are rejected; the first of a stream that has landed for long.
    ("LakestreamRecordsRejected", {"rejected": "_x30 5x60", "rows": "_x30 0x60"}, "35m", True),
    ("LakestreamRecordsRejected", {"rejected": "_x90 500x60", "rows": "0+100x150"}, "95m", True),
    ("LakestreamRecordsRejected", {"rejected": "_x90 5x60", "rows": "0+100x150"}, "95m", False),
    # Nothing was scraped for an hour, or what is scraped was started again.
    ("LakestreamStreamAlert", {"alerts": "1x10 _x60 1x60"}, "75m", False),
    ("LakestreamStreamAlert", {"alerts": "7x30 0x30"}, "40m", False),
]


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_not() -> None:
    names = {rule["alert"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]}
    for fires in (True, False):
        assert {name for name, _, _, expected in CASES if expected is fires} == names


def test_each_alert_of_a_counter_fires_for_the_first_sample_in_either_spelling() -> None:
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    of_counters = {rule["alert"] for rule in rules if "(_total)?" in rule["expr"]}
    assert len(of_counters) == 3
    born = [(alert, series) for alert, series, _, fires in CASES if fires and "_x" in str(series)]
    for is_total in (True, False):
        assert {alert for alert, series in born if ("_total" in str(series)) is is_total} == of_counters


@pytest.mark.parametrize(("alert", "series", "at", "fires"), CASES)
def test_an_alert_fires_when_it_should(
    promtool: str, tmp_path: Path, alert: str, series: dict[str, str], at: str, fires: bool
) -> None:
    named = {f"airflow_lakestream_{name}{{{STREAM}}}": _spread(values) for name, values in series.items()}
    given = [{"series": name, "values": values} for name, values in named.items()]
    # promtool compares labels and texts with those that are expected; whether it fires is what counts here.
    ran = _tested(promtool, tmp_path, {"interval": "1m", "input_series": given}, alert, at)
    assert (ran != "") is fires, ran


def _spread(values: str) -> str:
    """Write `3600x60` as promtool wants it: a start and a step of 0."""
    parts = (
        one if "x" not in one or one[0] == "_" or "+" in one else one.replace("x", "+0x") for one in values.split()
    )
    return " ".join(parts)


def _tested(promtool: str, folder: Path, given: dict[str, Any], alert: str, at: str) -> str:
    """Return what promtool has to say against the alert staying silent; nothing where it does."""
    test = {**given, "alert_rule_test": [{"eval_time": at, "alertname": alert, "exp_alerts": []}]}
    file = folder / "test.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0 or f"alertname: {alert}" in said, said
    return "" if done.returncode == 0 else said
