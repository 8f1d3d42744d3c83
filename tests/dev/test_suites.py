"""The choice of suites: which a change reaches in this checkout, by which way, and what a base is."""

from __future__ import annotations

import ast
import fnmatch
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from dev.errors import UnknownBase, UnknownSuite
from dev.java import find_jdk
from dev.service import CHECKOUT
from dev.suites import running, table
from dev.suites.choice import BASE, Choice, base_of, changed_since, report
from dev.suites.graph import UsesGraph, matching
from dev.suites.running import RUNS, PlayedRun, PytestRun, SuiteResult, paths_of, run_suites
from dev.suites.table import BRANCHES, EVERYTHING, LOADING, NIGHTLY, READ, SUITES, USES, Suite
from dev.suites.tools import known
from tests.support.durations import places_in_turns
from tests.support.time_left import OUT_OF_TIME, outcome_of

ALL = {suite.name for suite in SUITES}
SLOW = ALL - {"lint", "docs", "units", "long"}


@pytest.fixture(scope="module")
def graph() -> UsesGraph:
    return UsesGraph(CHECKOUT)


# (what has changed, the suites that it has to reach, those that it must not)
CHANGES = {
    "a script of the page": (
        ["airflow_lakestream/ui/page/static/list.js"],
        {"page", "dags"},
        SLOW - {"page", "dags", "compat"},
    ),
    "a module of the page": (
        ["airflow_lakestream/ui/app.py"],
        {"lint", "page", "dags", "compat"},
        SLOW - {"page", "dags", "compat", "integration"},
    ),
    "what Airflow reads of the package": (
        ["airflow_lakestream/get_provider_info.py"],
        {"units", "page"},
        {"spark", "engines", "mirrors"},
    ),
    "a page": (
        ["docs/sql.md"],
        {"docs", "units", "dags"},
        SLOW - {"dags"},
    ),
    "a page that a suite walks through": (
        ["docs/tutorial/landing.md"],
        {"docs", "start"},
        {"spark", "engines", "mirrors"},
    ),
    "a page whose snippets an engine runs": (
        ["docs/connect.md"],
        {"docs", "dags", "engines"},
        {"spark", "mirrors", "page"},
    ),
    "the readme": (["README.md"], {"docs", "units", "dags"}, {"spark", "engines", "mirrors", "matrix", "start"}),
    "the changelog": (["CHANGELOG.md"], {"docs"}, ALL - {"docs"}),
    "a picture": (["docs/images/streams.png"], {"docs", "page"}, ALL - {"docs", "page"}),
    "the notebook": (["docs/notebooks/tables.ipynb"], {"start"}, SLOW - {"start"}),
    "a module of mirrors": (
        ["airflow_lakestream/cdc/mirror.py"],
        {"units", "mirrors", "matrix", "spark", "integration", "start"},
        {"faults", "events", "backfill"},
    ),
    "a mirror on Spark": (
        ["airflow_lakestream/spark/readers.py"],
        {"mirrors", "spark"},
        {"faults", "events", "backfill"},
    ),
    "the driver of Flink": (
        ["airflow_lakestream/flink/stream.py"],
        {"units", "engines", "services", "matrix"},
        {"sensors", "mirrors", "compat", "faults", "events", "backfill", "page", "start"},
    ),
    "the driver of Flink, which is started by its name": (
        ["airflow_lakestream/flink/program.py"],
        {"engines", "services"},
        {"sensors", "mirrors", "compat"},
    ),
    "a script of Flink": (
        ["airflow_lakestream/flink/script/bundled/postgres_cdc.sql"],
        {"services", "engines"},
        {"spark"},
    ),
    "a connector": (
        ["airflow_lakestream/connect/judging.py"],
        {"engines", "matrix"},
        {"spark", "mirrors", "page", "sensors"},
    ),
    "a process that SQL starts by its name": (
        ["airflow_lakestream/transform/worker.py"],
        {"units", "integration"},
        set(),
    ),
    "a module that a table of strings names": (
        ["airflow_lakestream/delta/sink.py"],
        ALL - {"docs", "long", "kubernetes"},
        set(),
    ),
    "a sensor's check": (
        ["airflow_lakestream/watching/lag/check.py"],
        {"sensors", "integration"},
        {"faults", "backfill"},
    ),
    "a sensor that a text with a gap names": (
        ["airflow_lakestream/sensors/iceberg_snapshot_freshness.py"],
        {"sensors", "integration"},
        {"faults", "backfill", "matrix"},
    ),
    "a module of the provider that the oldest Airflow imports": (
        ["airflow_lakestream/operators/kafka_connect.py"],
        {"compat", "engines"},
        {"spark", "mirrors"},
    ),
    "what such a module uses": (["airflow_lakestream/connect/client.py"], {"engines"}, {"compat"}),
    "an operator whose docstring is a page": (
        ["airflow_lakestream/operators/kafka_mirror.py"],
        {"docs", "mirrors"},
        set(),
    ),
    "an event's guard": (["airflow_lakestream/events.py"], {"events", "units", "dags"}, SLOW - {"events", "dags"}),
    "a dashboard": (["airflow_lakestream/dashboards/grafana.json"], {"units", "dev"}, SLOW - {"dev"}),
    "a DAG": (["dags/orders_cdc.py"], {"dags", "mirrors", "units"}, {"faults", "engines", "matrix"}),
    "a Spark app": (["spark_apps/maintain_iceberg.py"], {"spark", "units"}, {"faults", "backfill", "events"}),
    "the app that a DAG of the demo submits": (["spark_apps/kafka_to_iceberg.py"], {"spark", "page"}, {"faults"}),
    "a test": (["tests/spark/test_submit_worker.py"], {"lint", "spark"}, ALL - {"lint", "spark"}),
    "a marked unit": (["tests/unit/test_wheel.py"], {"lint", "units", "long"}, SLOW),
    "a fixture of a suite": (["tests/page/conftest.py"], {"lint", "page"}, ALL - {"lint", "page"}),
    "a test that another suite imports": (
        ["tests/integration/test_foreign_rows.py"],
        {"lint", "integration", "long", "engines"},
        ALL - {"lint", "integration", "long", "engines"},
    ),
    "support of two suites": (
        ["tests/support/pipelines.py"],
        {"lint", "integration", "engines", "compat"},
        {"spark", "mirrors", "units", "page", "services"},
    ),
    "support that is a plugin for all and used by few": (
        ["tests/support/connecting.py"],
        {"lint", "engines"},
        {"units", "integration", "mirrors", "sensors", "spark"},
    ),
    "support that is a program": (["tests/support/task_process.py"], {"integration", "spark"}, {"units", "page"}),
    "support of each suite": (["tests/support/airflow_home.py"], ALL - {"docs"}, set()),
    "what starts the real parts": (["dev/stack.py"], ALL - {"docs"}, set()),
    "the benchmark": (["dev/bench/figures.py"], {"dev"}, SLOW - {"dev", "mirrors", "dags"}),
    "the site": (["dev/mkdocs.yml"], {"docs", "dags", "page", "start"}, {"spark", "mirrors", "engines", "matrix"}),
    "the entry point of the plugin": (
        ["airflow_lakestream/ui/plugin.py"],
        {"page", "dags", "compat"},
        {"spark", "mirrors"},
    ),
    "a manifest": (["dev/kubernetes/flink.yaml"], {"dev"}, ALL - {"dev"}),
    "the guide": (["dev/CONTRIBUTING.md"], {"units", "dags"}, SLOW - {"dags"}),
    "the core": (["airflow_lakestream/core/ranges.py"], ALL, set()),
    "the tools' versions": (["dev/constraints.txt"], ALL, set()),
    "the project": (["pyproject.toml"], ALL, set()),
    "what all tests load": (["tests/conftest.py"], ALL, set()),
    "a file of no known kind": (["somewhere/new.toml"], ALL, set()),
    "a module that is gone": (["airflow_lakestream/cdc/gone.py"], ALL, set()),
    "one of each": (["CHANGELOG.md", "airflow_lakestream/exceptions.py"], ALL, set()),
    "nothing": ([], set(), ALL),
}


@pytest.mark.parametrize(("changed", "reached", "not_reached"), CHANGES.values(), ids=CHANGES)
def test_a_change_reaches_its_suites(
    changed: list[str], reached: set[str], not_reached: set[str], graph: UsesGraph
) -> None:
    found = Choice(graph, changed)
    names = set(found.names)
    assert (reached - names, not_reached & names) == (set(), set()), "\n".join(found.lines())


def test_each_module_reaches_a_suite_that_runs_it(graph: UsesGraph) -> None:
    """Else a change of it runs everything: not wrong, and not what anybody waits for."""
    modules = matching("airflow_lakestream/*.py", graph.files)
    by_rule = "no rule knows who uses it"
    assert [path for path in modules if by_rule in str(Choice(graph, [path]).reaches["docs"])] == []


def test_a_line_says_by_which_way(graph: UsesGraph) -> None:
    lines = {line.split()[0]: line for line in Choice(graph, ["airflow_lakestream/flink/stream.py"]).lines()}
    assert list(lines) == [suite.name for suite in SUITES]
    way = "-> tests/support/flink.py -> airflow_lakestream/flink/program.py -> airflow_lakestream/flink/stream.py ("
    assert way in lines["engines"]
    assert lines["engines"].startswith("engines      reached by airflow_lakestream/flink/stream.py: tests/engines/")
    assert lines["sensors"] == (
        "sensors      not reached: no import path from its files to airflow_lakestream/flink/stream.py"
    )
    [line] = [one for one in Choice(graph, ["Makefile", "LICENSE"]).lines() if one.startswith("mirrors")]
    assert f"reached by Makefile: {EVERYTHING['Makefile']}" in line


def test_files_of_a_suite_are_those_that_feel_the_change(graph: UsesGraph) -> None:
    assert Choice(graph, ["docs/sql.md"]).files("dags") == ["tests/dags/test_documentation.py"]
    assert Choice(graph, ["Makefile"]).files("dags") == matching("tests/dags/*", graph.files)
    assert Choice(graph, ["docs/sql.md"]).files("spark") == []


def test_each_folder_of_tests_is_in_one_suite(graph: UsesGraph) -> None:
    tests = [path for path in graph.files if fnmatch.fnmatchcase(path, "tests/*/test_*.py")]
    suites = [suite for suite in SUITES if suite.follows and suite.name != "long"]
    of = {path: [one.name for one in suites if path.startswith(one.folders)] for path in tests}
    assert {path: names for path, names in of.items() if len(names) != 1} == {}
    assert {name for names in of.values() for name in names} == {suite.name for suite in suites}


def test_each_suite_is_in_a_run_or_a_target_and_what_prepares_it_is_one() -> None:
    targets = set(re.findall(r"^([a-z0-9.-]+):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))
    in_runs = {name for run in RUNS for name in run.suites}
    assert {suite.name for suite in SUITES if suite.follows} == in_runs
    assert {suite.name for suite in SUITES if not suite.follows} - targets == set()
    assert {target for suite in SUITES for target in suite.prepared_by} - targets == set()
    assert max(Counter(suite.name for suite in SUITES).values()) == 1


def test_a_run_takes_the_folders_of_its_suites_or_the_files_that_a_change_reaches(graph: UsesGraph) -> None:
    units, services = RUNS[0], RUNS[1]
    chosen = known(["units", "dags", "long"])
    assert paths_of(units, chosen, None) == ["tests/unit/", "tests/contract/"]
    assert paths_of(services, known(["spark", "integration"]), None) == ["tests/spark/", "tests/integration/"]
    assert paths_of(services, known(["long"]), None) == ["tests/integration/", "tests/dags/", "tests/faults/"]
    choice = Choice(graph, ["docs/sql.md"])
    assert "tests/unit/test_public_names.py" in paths_of(units, chosen, choice)
    assert paths_of(services, chosen, choice) == ["tests/dags/test_documentation.py"]


def test_a_suite_is_red_without_a_test_that_passed_and_long_tests_may_be_none() -> None:
    assert not SuiteResult("spark", "services", {}).passed
    assert not SuiteResult("spark", "services", {"skipped": 3}).passed
    assert not SuiteResult("spark", "services", {"passed": 9, "failed": 1}).passed
    assert SuiteResult("spark", "services", {"passed": 1, "skipped": 1}).passed
    assert SuiteResult("long", "services", {}).passed
    assert not SuiteResult("long", "services", {"failed": 1}).passed


# Passes once the other has begun.
MEETING = """
import time
from pathlib import Path

def test_meets():
    Path({own!r}).touch()
    until = time.monotonic() + 120
    while not Path({other!r}).exists():
        assert time.monotonic() < until
        time.sleep(0.1)
"""


def test_a_run_of_one_process_goes_on_beside_those_that_spread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    names = ("spread", "alone")
    for name, other in (names, names[::-1]):
        text = MEETING.format(own=str(tmp_path / name), other=str(tmp_path / other))
        (tmp_path / f"test_{name}.py").write_text(text)
    files = [(str(tmp_path / f"test_{name}.py"),) for name in names]
    runs = (
        PytestRun(names[0], ("sensors",), only=files[0], spreads=True),
        PytestRun(names[1], ("start",), only=files[1]),
    )
    monkeypatch.setattr(running, "RUNS", runs)
    # The two tests are of no suite's folder.
    assert not run_suites(["sensors", "start"], jobs=1)
    said = capfd.readouterr().out
    assert said.count(" 1 passed in ") == 2, said
    assert said.count("RED ") == said.count("no test ran") == 2


def test_tests_that_would_begin_after_the_end_of_the_time_are_skipped_by_name_and_counted_apart() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/unit/dev/test_progress.py"]
    environment = {**os.environ, "LAKESTREAM_UNTIL": "1"}
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False)
    assert re.search(r"SKIPPED .* tests/unit/dev/test_progress.py.*: out of time", done.stdout), done.stdout
    assert not re.search(r"\d+ passed", done.stdout), done.stdout
    place = ("tests/x.py", 1, f"Skipped: {OUT_OF_TIME}")
    skipped = pytest.TestReport("tests/x.py::test_x", ("tests/x.py", 1, "x"), {}, "skipped", place, "setup")
    assert outcome_of(skipped) == OUT_OF_TIME
    result = SuiteResult("spark", "services", {OUT_OF_TIME: 3})
    assert str(result).startswith("  RED  spark")
    assert "3 out of time" in str(result)


# Fails at its first time.
ONCE = """
from pathlib import Path

def test_once():
    seen = Path({seen!r})
    before, _ = seen.exists(), seen.touch()
    assert before
"""


@pytest.mark.parametrize(("again", "passes"), [(True, True), (False, False)])
def test_a_test_that_failed_is_tried_once_more_and_named(
    again: bool, passes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # The suite of a test is known by its folder.
    folder = tmp_path / "tests/sensors"
    folder.mkdir(parents=True)
    (folder / "test_once.py").write_text(ONCE.format(seen=str(tmp_path / "seen")))
    (folder / "test_other.py").write_text("def test_other():\n    pass\n")
    plugins = "-p tests.support.parts -p tests.support.durations"
    environment = {"PYTHONPATH": str(CHECKOUT), "PYTEST_ADDOPTS": plugins}
    run = PytestRun("example", ("sensors",), sys.executable, ("tests/sensors/",), environment=environment)
    monkeypatch.setattr(running, "RUNS", (run,))
    monkeypatch.setattr(running, "CHECKOUT", tmp_path)
    monkeypatch.delenv("LAKESTREAM_UNTIL", raising=False)
    assert run_suites(["sensors"], jobs=1, again=again) is passes
    said = capfd.readouterr().out
    line = "failed beside others, passed once more: tests/sensors/test_once.py::test_once"
    assert (line in said) is passes, said
    assert ("  ok   sensors      1 passed, 1 passed once more" in said) is passes, said


def test_suites_take_turns_and_the_longest_file_of_each_comes_first() -> None:
    files = ["tests/spark/test_a.py", "tests/spark/test_b.py", "tests/dags/test_c.py", "tests/dags/test_d.py"]
    seconds = dict(zip(files, (1.0, 9.0, 4.0, 2.0), strict=True))
    places = places_in_turns(["tests/dags/test_new.py", *files], seconds)
    assert sorted(places, key=lambda file: places[file]) == [
        *("tests/dags/test_new.py", "tests/spark/test_b.py"),
        *("tests/dags/test_c.py", "tests/spark/test_a.py", "tests/dags/test_d.py"),
    ]


def test_a_suite_whose_parts_take_minutes_is_left_out_with_a_line_until_they_are_made_or_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "lacking", lambda: ["kubelet"])
    (suite,) = [suite for suite in SUITES if suite.where_made]
    for names in (["all"], ["reached"]):
        chosen, left_out = running._without_unmade(known(names), names)
        assert suite not in chosen
        assert len(chosen) == len(known(names)) - 1
        assert [line.split()[:2] for line in left_out] == [["--", suite.name]]
        assert f"it needs kubelet; made once by `make test SUITES={suite.name}`" in left_out[0]
    assert running._without_unmade(known([suite.name]), [suite.name]) == ([suite], [])
    monkeypatch.setattr(running, "lacking", list)
    assert running._without_unmade(known(["all"]), ["all"]) == (known(["all"]), [])


def test_each_row_of_nightly_tests_has_tests_and_leaves_others_in_their_suite(graph: UsesGraph) -> None:
    paths = [path for path in graph.files if fnmatch.fnmatchcase(path, "tests/*/test_*.py")]
    trees = {path: ast.walk(ast.parse((CHECKOUT / path).read_text())) for path in paths}
    functions = {path: [one.name for one in tree if isinstance(one, ast.FunctionDef)] for path, tree in trees.items()}
    tests = [f"{path}::{name}" for path, names in functions.items() for name in names if name.startswith("test_")]
    # Parameters of a test are no part of its source.
    rows = {glob: fnmatch.filter(tests, glob.partition("[[]")[0] + "*") for glob, _ in NIGHTLY}
    assert [glob for glob, found in rows.items() if not found] == []
    whole = {glob: found for glob, found in rows.items() if "[[]" not in glob}
    left = {test for found in whole.values() for test in found}
    suites = {suite.name: suite.folders for suite in SUITES if suite.folders and not suite.nightly}
    stay = [test for test in tests if test not in left]
    assert [
        name for name, folders in suites.items() if not [*filter(lambda test: test.startswith(folders), stay)]
    ] == []


def test_nightly_suites_and_tests_are_left_to_all_with_a_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    played: list[list[str]] = []
    monkeypatch.setattr(running, "_make", lambda targets: True)
    monkeypatch.setattr(running, "choice_of", lambda root: None)

    def play(run: PytestRun, suites: list[Suite], paths: list[str], options: list[str], kept: bool) -> PlayedRun:
        played.append([*(suite.name for suite in suites), *options])
        return PlayedRun(run, 0, [])

    monkeypatch.setattr(running, "_play", play)
    assert run_suites(["reached"], jobs=1)
    said = capfd.readouterr().out
    assert all("--nightly=without" in one for one in played)
    assert "matrix" not in {name for one in played for name in one}
    assert re.search("-- +matrix +left to `make test-all`", said)
    assert all(f"{glob} left to `make test-all`: {why}" in said for glob, why in NIGHTLY)
    played.clear()
    assert run_suites(["all"], jobs=1)
    assert "left to" not in capfd.readouterr().out
    assert {"matrix", "engines"} <= {name for one in played for name in one}
    assert not any("--nightly=without" in one for one in played)


@pytest.mark.parametrize(("changed", "reached"), [("dev/pins.txt", True), ("dev/demo.py", False)])
def test_a_change_of_the_packaging_has_the_wheel_installed(changed: str, reached: bool, graph: UsesGraph) -> None:
    choice = Choice(graph, [changed])
    assert [suite.name for suite in SUITES if choice.has_what_reaches(suite)] == ["install"] * reached


def test_an_unknown_suite_is_refused_before_anything_runs() -> None:
    with pytest.raises(UnknownSuite, match="No suite sparks: there are lint, docs, units"):
        known(["units", "sparks"])
    assert {suite.name for suite in SUITES} - {suite.name for suite in known(["all"])} == {
        "install",
        "events",
        "backfill",
    }


def test_no_row_is_left_of_what_is_gone(graph: UsesGraph) -> None:
    names = {name for _, suites, _ in READ for name in suites}
    globs = [*EVERYTHING, *LOADING, *(row[0] for row in READ), *(row[1] for row in (*USES, *BRANCHES))]
    globs += [row[0] for row in USES] + [user for row in BRANCHES for user in row[0]]
    assert names - ALL == set()
    assert [glob for glob in globs if not matching(glob.partition("::")[0], graph.files)] == []


def tools(path: str, *suites: str) -> subprocess.CompletedProcess[str]:
    """Check the machine's programs as `make test` does: before packages are installed."""
    command = [sys.executable, "-S", "-m", "dev.suites.tools", *suites]
    return subprocess.run(command, cwd=CHECKOUT, env={"PATH": path}, capture_output=True, text=True, check=False)


def test_what_make_test_needs_is_a_jdk_and_what_is_missing_is_named(tmp_path: Path) -> None:
    quick = re.findall(r"^SUITES \?= (.*)$", (CHECKOUT / "Makefile").read_text(), re.MULTILINE)[0].split()
    with_java, nothing = tmp_path / "java", tmp_path / "nothing"
    with_java.mkdir()
    nothing.mkdir()
    (with_java / "java").symlink_to(find_jdk().java)
    assert tools(str(with_java), *quick).returncode == 0
    without = tools(str(nothing), *quick)
    assert without.returncode == 1
    assert "No Java found: install a JDK 17" in without.stderr
    assert "(for integration, dags, faults)" in without.stderr
    of_matrix = tools(str(with_java), "matrix", "dev").stderr.splitlines()
    assert [line.partition(":")[0] for line in of_matrix] == ["No go on PATH", "No npm on PATH", "No git on PATH"]
    assert all("apt install" in line and "brew install" in line for line in of_matrix)
    assert tools(str(with_java), "sparks").stderr.startswith("No suite sparks: there are lint, ")


def git(folder: Path, *arguments: str) -> str:
    settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", "-C", str(folder), *settings, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(folder: Path, files: Iterable[str]) -> str:
    for name in files:
        (folder / name).write_text(name)
    git(folder, "add", "--all")
    git(folder, "commit", "--message", "m", "--allow-empty")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a clone of a repository with one commit."""
    monkeypatch.delenv(BASE, raising=False)
    (tmp_path / "origin").mkdir()
    git(tmp_path, "init", "origin")
    commit(tmp_path / "origin", ["a", "b", "c"])
    git(tmp_path, "clone", "origin", "clone")
    return tmp_path / "clone"


def test_a_fresh_clone_has_no_base(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert base_of(clone, None) is None
    # An empty variable is none.
    monkeypatch.setenv(BASE, "")
    assert base_of(clone, None) is None
    git(clone, "remote", "remove", "origin")
    assert base_of(clone, None) is None
    assert base_of(clone.parent, None) is None


def test_a_change_began_where_it_left_the_main_branch(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = git(clone, "rev-parse", "HEAD")
    commit(clone.parent / "origin", ["theirs"])
    second = commit(clone, ["ours"])
    git(clone, "fetch")
    assert base_of(clone, None) == base_of(clone, "origin/main") == first
    assert base_of(clone, second) == second
    monkeypatch.setenv(BASE, second)
    assert base_of(clone, None) == second
    assert base_of(clone, first) == first
    with pytest.raises(UnknownBase, match="No common commit of nowhere and HEAD: fetch it, or"):
        base_of(clone, "nowhere")


def test_a_change_is_what_differs_committed_or_not(clone: Path) -> None:
    base = git(clone, "rev-parse", "HEAD")
    commit(clone, ["committed", "ä ö"])
    git(clone, "mv", "a", "moved")
    (clone / "b").unlink()
    (clone / "c").write_text("differs")
    (clone / "new").touch()
    assert changed_since(clone, base) == ["a", "b", "c", "committed", "moved", "new", "ä ö"]


def test_without_a_base_each_suite_is_reached(clone: Path) -> None:
    lines = list(report(clone, None, every=False, why=False, names=False, files=None))
    assert [line.split()[0] for line in lines] == [suite.name for suite in SUITES if not suite.by_hand]
    assert lines[0] == "lint         reached: no base: neither --base, LAKESTREAM_BASE nor another origin/main"


def test_the_command_knows_no_airflow_and_prints_names() -> None:
    code = "import sys; sys.modules['airflow'] = None; from dev.__main__ import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "suites", "--names"]
    done = subprocess.run([*command, "--all"], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [suite.name for suite in table.SUITES if not suite.by_hand]
    environment = {**os.environ, BASE: "no-such-commit"}
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: No common commit of no-such-commit and HEAD")
