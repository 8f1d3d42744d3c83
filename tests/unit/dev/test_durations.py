"""The record of durations: what a run replaces, which files come first, what the report shows."""

from __future__ import annotations

from pathlib import Path

from dev.durations import Durations, RunRecord, report_durations

HERE = "tests/unit/dev/test_durations.py"
JAVA = "tests/unit/dev/test_java.py"


def run(began: float) -> RunRecord:
    return RunRecord(began, 12.5, {"units": {"passed": 2, "failed": 1}})


def test_a_run_replaces_its_own_tests_and_fixtures_and_leaves_those_of_others(tmp_path: Path) -> None:
    record = tmp_path / "durations.json"
    assert Durations.read(record) == Durations()
    first = Durations()
    first.add("a", run(1), {f"{HERE}::one": {"call": 1.0}, f"{JAVA}::two": {"call": 5.0}}, {"kafka (session)": [9.0]})
    first.write(record)
    second = Durations.read(record)
    second.add("b", run(2), {f"{HERE}::one": {"setup": 2.0, "call": 6.0}}, {"kafka (session)": [1.0, 2.0]})
    second.write(record)
    found = Durations.read(record)
    assert found.seconds_of_files() == {HERE: 8.0, JAVA: 5.0}
    assert found.fixtures == {"a": {"kafka (session)": [9.0]}, "b": {"kafka (session)": [1.0, 2.0]}}
    assert found.runs == {"a": run(1), "b": run(2)}


def test_tests_of_a_file_that_is_gone_leave_the_record() -> None:
    found = Durations({"tests/unit/gone.py::one": {"call": 1.0}})
    found.add("a", run(1), {f"{HERE}::one": {"call": 1.0}}, {})
    assert found.seconds_of_files() == {HERE: 1.0}


def test_a_record_of_another_form_is_none(tmp_path: Path) -> None:
    record = tmp_path / "durations.json"
    for text in ("", "[]", '{"tests": {}}', '{"tests": {}, "fixtures": {}, "runs": {"a": {"seconds": 1}}}'):
        record.write_text(text)
        assert Durations.read(record) == Durations()


def test_the_report_names_the_longest_and_sums_starts() -> None:
    found = Durations()
    tests = {f"{HERE}::one": {"setup": 2.0, "call": 6.0}, f"{JAVA}::two": {"call": 5.0}}
    found.add("a", run(1), tests, {"kafka (session)": [9.0, 3.0], "lake (function)": [0.5]})
    lines = "\n".join(report_durations(found, 1))
    assert "12.5 s  a (units 3)" in lines
    assert f"8.0 s      2.0      6.0      0.0  {HERE}::one" in lines
    assert "two" not in lines
    assert "2      12.0 s      9.0 s  kafka (session)" in lines
    assert "lake" not in lines
