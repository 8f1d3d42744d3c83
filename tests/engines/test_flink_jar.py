"""A program of the DataStream API in a jar: submitted, adopted, stopped, and another version of it that goes on."""

from __future__ import annotations

import subprocess
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_lakestream.flink.script.config import digest_of
from dev.java import find_jdk
from dev.services.flink import CURRENT, Flink, libraries
from dev.stack import HOME
from tests.support.airflow_home import AirflowHome
from tests.support.flink import FlinkScriptRun
from tests.support.lake import Lake

pytestmark = pytest.mark.integration

PROGRAM = """
import org.apache.flink.api.common.serialization.SimpleStringEncoder;
import org.apache.flink.connector.file.sink.FileSink;
import org.apache.flink.core.fs.Path;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.filesystem.rollingpolicies.OnCheckpointRollingPolicy;

public class Numbers {
  // Each number once, with the version that wrote it, in files that are complete with their checkpoint.
  public static void main(String[] arguments) throws Exception {
    StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment();
    environment.fromSequence(0, Long.parseLong(arguments[2])).uid("numbers").map(new Slowly(arguments[1]))
      .returns(String.class).uid("slowly")
      .sinkTo(FileSink.forRowFormat(new Path(arguments[0]), new SimpleStringEncoder<String>())
        .withRollingPolicy(OnCheckpointRollingPolicy.build()).build()).uid("files");
    environment.execute();
  }

  static class Slowly implements org.apache.flink.api.common.functions.MapFunction<Long, String> {
    private final String version;

    Slowly(String version) {
      this.version = version;
    }

    public String map(Long number) throws Exception {
      Thread.sleep(5);
      return number + " " + version;
    }
  }
}
"""


@pytest.fixture(scope="module")
def jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the compiled program."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "Numbers.java").write_text(PROGRAM)
    classes = f"{libraries(HOME / 'jars', CURRENT)}/*"
    javac = find_jdk().tool("javac")
    subprocess.run([javac, "-cp", classes, "-d", str(folder), str(folder / "Numbers.java")], check=True, timeout=400)
    with zipfile.ZipFile(folder / "numbers.jar", "w") as packed:
        for file in folder.glob("*.class"):
            packed.write(file, file.name)
    return folder / "numbers.jar"


class Program(FlinkScriptRun):
    """The program, and what its files have."""

    @property
    def output(self) -> Path:
        return self.lake.folder / "output"

    def told(self, version: str) -> list[str]:
        """What the program is given: more numbers than it comes to."""
        return [str(self.output), version, "1000000"]

    def numbers(self) -> list[tuple[int, str]]:
        # Files whose checkpoint is not complete begin with a point.
        files = [file for file in self.output.rglob("*") if file.is_file() and not file.name.startswith(".")]
        lines = [line.split() for file in files for line in file.read_text().splitlines()]
        return sorted((int(number), version) for number, version in lines)

    def await_more(self, than: int, what: str) -> None:
        self.until(lambda: len(self.numbers()) > than, what)


@pytest.fixture
def program(tmp_path: Path, flink: Flink, jar: Path) -> Iterator[Program]:
    made = Program(Lake(tmp_path, {}), "", flink)
    made.config = {
        "jar": str(jar),
        "jar_digest": digest_of(jar.read_bytes()),
        "entry_class": "Numbers",
        "program_arguments": made.told("one"),
    }
    try:
        yield made
    finally:
        made.end()


def test_a_program_is_supervised_and_its_next_version_goes_on(program: Program) -> None:
    program.start()
    job = program.await_running()
    program.await_more(200, "the first numbers")
    program.kill_driver()
    seen = len(program.numbers())
    program.start()
    program.await_more(seen + 200, "numbers after a kill")
    assert program.await_running() == job

    # Other arguments are another version: its job begins with the newest checkpoint of the running one.
    program.kill_driver()
    program.config["program_arguments"] = program.told("two")
    program.start()
    program.until(lambda: program.note is not None and program.note.job != job, "the job of the next version")
    seen = len(program.numbers())
    program.await_more(seen + 200, "numbers of the next version")
    program.stop()
    assert program.note is not None
    assert program.note.savepoint
    found = program.numbers()
    assert [number for number, _ in found] == [*range(len(found))]
    versions = Counter(version for _, version in found)
    assert set(versions) == {"one", "two"}
    assert found == sorted(found, key=lambda one: (one[1], one[0]))

    # What another class left is not for this one.
    program.start(entry_class="Other")
    assert program._drivers[-1].wait(60) != 0
    assert "entry_class: was changed" in program.log


def test_a_program_that_can_not_run_is_told(program: Program) -> None:
    assert program.start(program_arguments=[]).wait(120) != 0
    assert "ArrayIndexOutOfBoundsException" in program.log


_DAG = """
from airflow.sdk import DAG
from airflow_lakestream.operators.flink_script import FlinkScriptOperator

with DAG("flink_jar", schedule=None, params={{"last": 1}}) as dag:
    FlinkScriptOperator(task_id="numbers", **{arguments!r})
"""


@pytest.mark.airflow
def test_a_program_is_a_task_that_ends_with_its_sources(
    program: Program, airflow: AirflowHome, flink_connected: None
) -> None:
    arguments = {
        "jar": program.config["jar"],
        "entry_class": "Numbers",
        "program_arguments": [*program.told("one")[:2], "{{ params.last }}"],
        "checkpoint_location": program.location,
        "checkpoint_interval": "1s",
        "driver_folder": str(program.lake.folder / "drivers"),
        "poll_interval": "0.5s",
        "deferrable": True,
    }
    done = airflow.run(airflow.dag(airflow.write("flink_jar", _DAG.format(arguments=arguments))), {"last": 99})
    assert (done.state, done.errors) == ("success", [])
    assert program.numbers() == [(number, "one") for number in range(100)]
