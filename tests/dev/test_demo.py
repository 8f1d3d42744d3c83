"""The demo as it ends: by a signal, by a service that does not start, and by itself with a mirrored database."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dev.service import CHECKOUT
from dev.stack import HOME
from tests.support.broker import poll_until


@contextmanager
def demo(output: Path, *options: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    with output.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "dev", "demo", "--once", *options],
            cwd=CHECKOUT,
            env={**os.environ, **environment},
            stdout=out,
            stderr=out,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def assert_is_gone(process: subprocess.Popen[bytes], said: str) -> None:
    assert said.index("taking everything down") < said.index("done, nothing is left running")
    assert list((HOME / "stacks").glob(f"demo-{process.pid}-*")) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_takes_all_down_and_says_so(tmp_path: Path, number: signal.Signals) -> None:
    output = tmp_path / "output"
    with demo(output) as process:
        poll_until(lambda: "kafka: starting" in output.read_text(), "the demo to start", 120)
        process.send_signal(number)
        assert process.wait(120) == 128 + number
    assert f"demo: {number.name} came" in output.read_text()
    assert_is_gone(process, output.read_text())


def test_a_failed_start_says_why_and_keeps_the_logs(tmp_path: Path) -> None:
    output = tmp_path / "output"
    # `java -version` needs no more, Kafka does.
    with demo(output, JAVA_TOOL_OPTIONS="-XX:MaxMetaspaceSize=4m") as process:
        assert process.wait(120) == 1
    said = output.read_text()
    log = CHECKOUT / "artifacts" / "demo" / "kafka.log"
    assert f"OutOfMemoryError: Metaspace); its log is {log}" in said
    assert "Metaspace" in log.read_text()
    assert_is_gone(process, said)


def test_a_demo_with_a_database_shows_its_mirror_and_no_page_of_the_airflow_that_it_takes_down(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with demo(output, "--cdc") as process:
        assert process.wait(480) == 0, output.read_text()[-3000:]
    said = output.read_text()
    assert "lake.customers mirrors shop.public.customers: 1,000 rows, 1,000 in PostgreSQL" in said
    assert re.findall(r".*http://.*", said) == re.findall(r".*connect: up at http://.*", said)
    assert "password" not in said.lower()
    assert_is_gone(process, said)
