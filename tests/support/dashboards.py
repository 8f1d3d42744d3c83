"""The dashboard and the alert rules that the package has, and the metrics that they name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

import airflow_lakestream

FOLDER = Path(airflow_lakestream.__file__).parent / "dashboards"
RULES = FOLDER / "lakestream_rules.yml"
DASHBOARD = json.loads((FOLDER / "grafana.json").read_text())
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
# What Prometheus's name has behind the metric's: of a counter by OpenTelemetry, and of a timer.
_BEHIND = re.compile(r"(\(_total\)\?|_total|_sum|_count)$")


def metrics_in(texts: Iterable[str]) -> set[tuple[str, str]]:
    """Return (name, what stands behind it) of each metric that expressions name."""
    found = set()
    for name in re.findall(r"airflow_lakestream_([a-z_]+(?:\(_total\)\?)?)", "\n".join(texts)):
        behind = _BEHIND.search(name)
        found.add((_BEHIND.sub("", name), behind[1] if behind else ""))
    return found
