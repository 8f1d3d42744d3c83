"""One task, of the operator and with the arguments that the environment names: what `dev.bench` measures."""

from __future__ import annotations

import json
import os
from importlib import import_module

import pendulum
from airflow.sdk import DAG

TASK = json.loads(os.environ["LAKESTREAM_BENCH_TASK"])

with DAG(dag_id="measured", schedule=None, start_date=pendulum.datetime(2026, 1, 1, tz="UTC"), catchup=False):
    module, _, name = TASK["operator"].partition(":")
    getattr(import_module(module), name)(task_id="land", **TASK["arguments"])
