"""The driver's program: `python -m airflow_lakestream.flink.program --config app.json`.

Exit code 0: stopped on request. Otherwise the last line of the log has the reason and the remedy.
"""

from __future__ import annotations

import argparse
import sys

from airflow_lakestream.driver.lease import HeldLease, exit_code_of
from airflow_lakestream.flink.config import FlinkConfig
from airflow_lakestream.flink.extract_stream import ExtractStream
from airflow_lakestream.flink.job_stream import JobStream
from airflow_lakestream.flink.script.config import APP as SCRIPT
from airflow_lakestream.flink.script.config import ScriptConfig
from airflow_lakestream.flink.script.stream import ScriptStream
from airflow_lakestream.flink.stream import FlinkStream
from airflow_lakestream.spark.configuration import read_object


def main() -> int:
    """Read the configuration, and supervise the configured stream; return the exit code."""
    parser = argparse.ArgumentParser(description="Supervise a Flink job, and publish the branch of a landing.")
    parser.add_argument("--config", required=True, help="a JSON file that the operator has written")
    config_path = parser.parse_args().config
    return exit_code_of(lambda: run(config_path), "The driver")


def run(path: str) -> None:
    """Take the stream's lease, and supervise the stream.

    Raises InvalidArgument, LeaseHeld, OtherInputs, and the errors of `JobStream.run`.
    """
    settings = read_object(path)
    config = (ScriptConfig if settings.get("app") == SCRIPT else FlinkConfig).parse(settings)
    with HeldLease.take(
        config.checkpoint_location,
        config.fingerprint,
        config.owner or "nobody",
        inputs=config.inputs,
        ui_url=config.manager_address.url,
        properties=config.store_properties,
    ) as lease:
        _stream_of(config, lease).run()


def _stream_of(config: FlinkConfig | ScriptConfig, lease: HeldLease) -> JobStream:
    if isinstance(config, ScriptConfig):
        return ScriptStream(config, lease)
    return ExtractStream(config, lease) if config.leaves_to_extract else FlinkStream(config, lease)


if __name__ == "__main__":
    sys.exit(main())
