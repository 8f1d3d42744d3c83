"""The checks by name, imported on first use."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from airflow_lakestream.exceptions import UnknownValue
from airflow_lakestream.watching.asking import LookCheck

CHECKS = {
    "checkpoint_lag": "airflow_lakestream.watching.lag.check.LagCheck",
    "freshness": "airflow_lakestream.watching.freshness.check.FreshnessCheck",
    "retention_risk": "airflow_lakestream.watching.lag.risk.RiskCheck",
}


def make_check(name: str, arguments: Mapping[str, Any]) -> LookCheck:
    """Make the check with a name in `CHECKS` from a sensor's rendered arguments.

    Raises UnknownValue for another name, and InvalidArgument if the arguments can't work.
    """
    if name not in CHECKS:
        raise UnknownValue("check", name, CHECKS)
    module, _, kind = CHECKS[name].rpartition(".")
    check: LookCheck = getattr(importlib.import_module(module), kind)(**arguments)
    return check
