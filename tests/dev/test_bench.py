"""What the benchmark says about its runs is true, also when it met only some of them."""

from __future__ import annotations

import io
import json
import os
import random
import struct
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import avro.io
import avro.schema
import psutil
import pytest
from google.protobuf import json_format, message_factory

from airflow_lakestream.decode.protobuf.schema import compile_proto
from dev.bench import report
from dev.bench.against import MOST, NARROW, Comparison, commit, merge, parse
from dev.bench.bounds import FIRST_COMMIT_ROW, RATIOS, verdicts
from dev.bench.builds import install_commit_or_wheel
from dev.bench.figures import Figure
from dev.bench.lake import NAMESPACE, new_lake
from dev.bench.peers import resolve_peer
from dev.bench.process_tree import CommandFailed, PeakMemory, run_measured
from dev.bench.programs.mirroring import KINDS
from dev.bench.results import Results, Sample
from dev.bench.rows import ROWS, groups
from dev.bench.shop import records as shop_records
from dev.bench.summary import lines
from dev.bench.topics import TOPICS, Topic, render
from dev.errors import BuildFailed
from dev.service import CHECKOUT
from tests.support.broker import poll_until

MIB = 2**20
AT = datetime(2026, 11, 20, 5, 5, 0, 123000, UTC)


def sample(row: str, run: int = 1, seconds: float = 1.0, **others: Any) -> Sample:
    values = {"records": 1000, "value_bytes": 200_000, "cpu_seconds": 2.0, "peak_rss": 300 * MIB, "peak_pss": 200 * MIB}
    if not others.get("watched", True):
        values |= {"peak_rss": 0, "peak_pss": 0}
    return Sample(row=row, run=run, seconds=seconds, **(values | others))


def results(*samples: Sample, **others: Any) -> Results:
    return Results({"machine": "2 cores", "dlt": "1.0"}, 1000, "2026-11-22T00:00:00", list(samples), **others)


def records(topic: Topic, count: int) -> tuple[list[bytes], list[tuple[str, str]]]:
    """Return the first records of a topic, and the schemas that were registered."""
    registered: list[tuple[str, str]] = []

    def register(text: str, kind: str) -> int:
        registered.append((text, kind))
        return 7

    encoder, pool = render(topic, random.Random(7), register)
    return [encoder.head(AT) + tail for _, tail in pool[:count]], registered


def avro_events(values: list[bytes], schema: str) -> list[dict[str, Any]]:
    reader = avro.io.DatumReader(avro.schema.parse(schema))
    assert {value[:5] for value in values} == {struct.pack(">bI", 0, 7)}
    return [reader.read(avro.io.BinaryDecoder(io.BytesIO(value[5:]))) for value in values]


def protobuf_events(values: list[bytes], schema: str) -> list[dict[str, Any]]:
    kind = message_factory.GetMessageClass(compile_proto(schema, ()).descriptor((0,)))
    assert {value[:6] for value in values} == {struct.pack(">bIb", 0, 7, 0)}
    messages = [kind.FromString(value[6:]) for value in values]
    return [
        json_format.MessageToDict(m, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        for m in messages
    ]


@pytest.mark.parametrize("size", [None, 1000])
def test_the_same_events_in_each_format(size: int | None) -> None:
    json_values, _ = records(Topic("json", size=size), 50)
    events = [json.loads(value) for value in json_values]
    assert {event["timestamp"] for event in events} == {"2026-11-20T05:05:00.123Z"}
    assert all(size is None or abs(len(value) - size) < 60 for value in json_values)

    values, ((schema, kind),) = records(Topic("avro", size=size), 50)
    assert kind == "AVRO"
    assert avro_events(values, schema) == [{**event, "timestamp": AT} for event in events]

    values, ((schema, kind),) = records(Topic("protobuf", size=size), 50)
    assert kind == "PROTOBUF"
    as_text = [{**event, "on_site_seconds": str(event["on_site_seconds"])} for event in events]
    assert protobuf_events(values, schema) == as_text


def test_one_record_in_a_hundred_is_bad() -> None:
    values, _ = records(Topic("json", bad_every=100), 2000)
    kinds = []
    for value in values:
        try:
            kinds.append(type(json.loads(value)["on_site_seconds"]).__name__)
        except ValueError:
            kinds.append("no document")
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {"int": 1980, "str": 10, "no document": 10}


def test_every_row_has_its_topic_its_peer_and_a_name_of_its_own() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    for row in ROWS:
        assert row.topic in TOPICS
        assert callable(resolve_peer(row).run)
    assert {ratio.row for ratio in RATIOS} | {ratio.over for ratio in RATIOS} | {FIRST_COMMIT_ROW} <= set(names)
    assert [row.name for row in groups(ROWS)[[g[0].name for g in groups(ROWS)].index("spark-warm")]] == [
        "spark-warm",
        "spark-cold",
        "spark-start",
    ]


def test_rows_are_picked_by_name_group_and_peer() -> None:
    picked = {
        pattern: [row.name for row in ROWS if row.matches(pattern)] for pattern in ("json", "spark", "avro*", "no")
    }
    assert picked["json"] == ["json"]
    assert picked["spark"] == ["spark-warm", "spark-cold", "spark-start", "spark-joined-warm"]
    assert picked["avro*"] == ["avro", "avro-1", "avro-1k", "avro-1k-1"]
    assert picked["no"] == []


def told(figures: list[Figure]) -> dict[tuple[str, str], tuple[float, bool | None]]:
    return {(f.case, f.metric): (round(f.value, 3), f.holds) for f in figures}


def test_ratios_are_those_of_the_medians() -> None:
    found = told(
        list(
            verdicts(
                [
                    *(sample("kcat", run, seconds) for run, seconds in enumerate((1, 2, 100))),
                    *(sample("json", run, seconds) for run, seconds in enumerate((1, 4, 5))),
                    sample("raw", seconds=2.5),
                    sample("spark-warm", seconds=12, peak_pss=900 * MIB),
                ]
            )
        )
    )
    assert found[("json", "rate / kcat")] == (0.5, True)
    assert found[("raw", "rate / kcat")] == (0.8, True)
    assert found[("json", "rate / spark-warm")] == (3.0, True)
    # Only what is ours is held to our memory, and nothing is said of rows that were not measured.
    assert found[("json", "peak PSS, the largest of all extract rows")] == (200, True)
    assert not any("dlt" in metric for _, metric in found)


def test_a_bound_of_cpu_is_at_most_so_much() -> None:
    plain = sample("spark-joined-warm", cpu_seconds=4.0)
    for cpu, holds in ((2.5, True), (3.0, False)):
        found = told(list(verdicts([plain, sample("app-joined-warm", cpu_seconds=cpu)])))
        assert found[("app-joined-warm", "CPU / spark-joined-warm")] == (cpu / 4, holds)


def test_a_bound_that_does_not_hold_is_told() -> None:
    few = sample("json-few", first_commit_seconds=3.5)
    slow = [
        sample("json", seconds=2.1),
        sample("kcat"),
        sample("json-1mib", 1),
        sample("json-1mib", 2, peak_pss=800 * MIB),
    ]
    found = told(list(verdicts([few, *slow])))
    assert found[("json", "rate / kcat")] == (0.476, False)
    assert found[("json-1mib", "peak PSS, the largest of all extract rows")] == (800, False)
    assert found[("json-few", "execute() to first commit")] == (3.5, False)


def test_the_table_has_the_medians_and_the_spread() -> None:
    heading, *rows = lines(
        results(
            sample("json", 1, 1.0, files=3, commits=1, commit_seconds=0.02, first_commit_seconds=1.5),
            sample("json", 2, 2.0, files=3, commits=1, commit_seconds=0.04, first_commit_seconds=1.7),
            sample("json", 3, 4.0, files=5, commits=2, commit_seconds=0.03, first_commit_seconds=1.6),
            sample("kcat", 1, 0.5),
        )
    )
    kcat, own = (dict(zip(heading, row, strict=True)) for row in rows)
    assert own == {
        "": "extract JSON 200 B, n processes",
        "records": "1,000",
        "records/s": "500",
        "spread": "150%",
        "MB/s": "0.1",
        "peak PSS, MiB": "200",
        "peak RSS, MiB": "300",
        "CPU s per million": "2,000.00",
        "files": "3",
        "commits": "1",
        "a commit, ms": "30",
        "first commit after, s": "1.60",
        "runs": "3",
    }
    assert (kcat["records/s"], kcat["files"], kcat["spread"]) == ("2,000", "-", "-")


def test_a_watched_run_tells_the_memory_and_the_others_the_times() -> None:
    runs = [
        sample("json", 1, 8.0, cpu_seconds=9.0, commit_seconds=0.5),
        sample("json", 2, 1.0, watched=False, commit_seconds=0.02),
        sample("json", 3, 3.0, watched=False, commit_seconds=0.02),
        sample("kcat", 1, 5.0),
        sample("kcat", 2, 1.0, watched=False),
    ]
    heading, kcat, own = lines(results(*runs))
    assert dict(zip(heading, own, strict=True)).items() >= {
        ("records/s", "667"),
        ("spread", "100%"),
        ("peak PSS, MiB", "200"),
        ("peak RSS, MiB", "300"),
        ("CPU s per million", "2,000.00"),
        ("a commit, ms", "20"),
        ("runs", "2"),
    }
    assert dict(zip(heading, kcat, strict=True)).items() >= {("records/s", "1,000"), ("spread", "-"), ("runs", "1")}
    found = told(list(verdicts(runs)))
    assert found[("json", "rate / kcat")] == (0.667, True)
    assert found[("json", "peak PSS, the largest of all extract rows")] == (200, True)
    assert "runs of each row: 1 to 2" in report.render(results(*runs))


def test_results_survive_and_make_a_page_when_only_part_is_there(tmp_path: Path) -> None:
    some = results(
        sample("json"),
        left_out={"dlt": "not installed\nTraceback"},
        figures=[Figure("a", "b", 2.0, "ms", "< 1", False)],
    )
    some.save(tmp_path / "latest.json")
    again = Results.load(tmp_path / "latest.json")
    assert again == some
    page = report.render(again)
    assert "| extract JSON 200 B, n processes | 1,000 |" in page
    assert "| extract JSON 200 B, n processes | 1,000 | 1,000 |" in report.render_bounds(again)
    assert "- dlt, Kafka to Iceberg: not installed\n" in page
    assert "Traceback" not in page
    assert "| a | b | 2.00 ms |\n" in page
    assert "| a | b | 2.00 ms | < 1 | **does not hold** |" in report.render_bounds(again)
    assert "2 cores" in page


def test_cases_with_the_same_metrics_are_columns_of_one_table_and_the_others_are_lines() -> None:
    figures = [
        Figure("alone", "size", 2.0, "MB"),
        *(Figure(case, "rate", value, "rows/s", ">= 5", value >= 5) for case, value in (("a", 6000.0), ("b", 4.0))),
    ]
    page, bounds = (
        render(results(sample("json"), figures=figures)) for render in (report.render, report.render_bounds)
    )
    assert "| alone | size | 2.00 MB |  |  |\n\n| | a | b | bound |\n| --- | --: | --: | --- |\n" in bounds
    assert "| rate, rows/s | 6,000 | 4.00 | >= 5: **does not hold** (b) |\n" in bounds
    assert "| alone | size | 2.00 MB |\n\n| | a | b |\n| --- | --: | --: |\n| rate, rows/s | 6,000 | 4.00 |\n" in page
    assert "peak RSS" not in page
    assert "spread" not in page


def test_the_steps_of_a_batch_and_the_bounds_of_rows_are_for_maintainers() -> None:
    batch = [("decode", 2.0), ("decode: CPU", 3.0), ("whole batch", 5.0), ("whole batch: CPU", 6.0), ("files", 7.0)]
    some = results(sample("json"), sample("kcat"), figures=[Figure("a", *one, "s") for one in batch])
    assert [one for one, _ in batch if f"| a | {one} |" in report.render(some)] == [one for one, _ in batch[2:]]
    bounds = report.render_bounds(some)
    assert [one for one, _ in batch if f"| a | {one} |" in bounds] == [one for one, _ in batch]
    assert "| rate / kcat to nowhere: the limit of reading | 1.00 | >= 0.5 | holds |" in bounds
    assert " | spread | " in bounds
    assert "None measured." in report.render_bounds(results())


def python(code: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code)]


def test_a_measured_command_counts_the_cpu_of_its_children() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    done = run_measured(python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"), os.environ)
    assert done.cpu_seconds >= 0.3


def test_memory_is_watched_where_it_is_asked_for() -> None:
    code = "import time; began = time.monotonic()\nwhile time.monotonic() < began + 0.5: pass"
    watched, other = (run_measured(python(code), os.environ, watch=watch) for watch in (True, False))
    assert (watched.watched, other.watched) == (True, False)
    assert watched.peak_rss >= watched.peak_pss > 0
    assert other.peak_rss == other.peak_pss == 0


def test_memory_is_that_of_the_whole_tree() -> None:
    holding = "import sys; block = bytearray(b'x') * (100 << 20); print('ready', flush=True); sys.stdin.read()"
    code = f"""
        import subprocess, sys
        block = bytearray(b'x') * (100 << 20)
        subprocess.run([sys.executable, '-c', {holding!r}])
    """
    with subprocess.Popen(python(code), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        peak = PeakMemory(parent.pid)
        peak.look()
        parent.communicate()
    assert 200 * MIB < peak.pss <= peak.rss < 300 * MIB


def test_a_command_that_fails_says_how() -> None:
    with pytest.raises(CommandFailed, match=r"^python\S* ended with 3: oh no\n"):
        run_measured(python("print('oh no', flush=True); raise SystemExit(3)"), os.environ)


def test_a_command_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    # Both sleep for longer than the test lasts: they end by being killed.
    code = f"""
        import subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
        time.sleep(600)
    """
    with pytest.raises(CommandFailed, match="took longer than 2 s"):
        run_measured(python(code), os.environ, timeout=2)
    pid = int((tmp_path / "pid").read_text())
    # A process that was sent SIGKILL is gone as soon as it has its turn.
    poll_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, "its end")


def test_commits_of_pyiceberg_are_timed_without_its_files(tmp_path: Path) -> None:
    code = f"""
        import json, time
        from dev.bench.programs.measured import CommitClock
        clock = CommitClock().start()
        import pyarrow as pa, pyiceberg.io.pyarrow as io
        from pyiceberg.catalog.sql import SqlCatalog
        catalog = SqlCatalog("c", uri="sqlite:///{tmp_path}/c.db", warehouse="file://{tmp_path}/w")
        catalog.create_namespace("n")
        rows = pa.table({{"a": [1, 2]}})
        table = catalog.create_table("n.t", rows.schema)
        for _ in range(3):
            began = time.perf_counter()
            table.append(rows)
            whole = time.perf_counter() - began
        print(json.dumps([clock.seconds, whole]))
    """
    done = run_measured(python(code), {**os.environ, "PYTHONPATH": str(CHECKOUT)})
    seconds, whole = json.loads(done.output.strip().splitlines()[-1])
    assert len(seconds) == 3
    assert 0 < seconds[-1] < whole


def test_what_a_task_imports_counts_as_its_own_time() -> None:
    code = "from dev.bench.programs import airflow_task; from dev.bench.programs.measured import CommitClock"
    run_measured(python(f"{code}; CommitClock().start()"), {**os.environ, "PYTHONPATH": str(CHECKOUT)})
    late = f"{code}; import pyiceberg.catalog.sql; CommitClock().start()"
    with pytest.raises(CommandFailed, match="is imported already"):
        run_measured(python(late), {**os.environ, "PYTHONPATH": str(CHECKOUT)})


def test_a_sample_without_a_column_does_not_count_in_its_median() -> None:
    runs = [sample("json", 1, commit_seconds=0.01), replace(sample("json", 2), commit_seconds=None)]
    (_, row) = lines(results(*runs))
    assert "10" in row


def blocks(ratio: float, noise: float, seed: int, most: int = MOST) -> Comparison:
    """Play blocks of a row, `ratio` times as fast as the other build, on a machine that drifts, until decided."""
    rng = random.Random(seed)
    found = Comparison(ROWS[1])
    while found.holds is None and len(found.rate.logs) < most:
        drift = rng.uniform(0.7, 1.3)
        one, two, three, four = (
            sample("json", seconds=drift * rng.gauss(1, noise) / speed, cpu_seconds=2 * rng.gauss(1, noise) / speed)
            for speed in (1.0, ratio, ratio, 1.0)
        )
        found.add_block((two, three), (one, four))
    return found


@pytest.mark.parametrize("seed", range(50))
def test_a_row_that_is_5_percent_slower_than_the_other_build_is_red_and_an_equal_one_is_not(seed: int) -> None:
    assert blocks(1 / 1.05, 0.005, seed).holds is False
    equal = blocks(1.0, 0.005, seed)
    assert equal.holds is True
    assert equal.rate.value == pytest.approx(1, abs=NARROW)


def test_a_row_whose_ratio_scatters_too_much_is_not_decided_and_says_so() -> None:
    found = blocks(1.0, 0.2, 1, most=5)
    assert found.holds is None
    assert "NOT DECIDED" in found.line


def test_import_dag_commits_and_merges_are_measured_of_the_source_that_is_named(tmp_path: Path) -> None:
    measured = (*parse(CHECKOUT), *commit(CHECKOUT, 5), *merge(CHECKOUT, 10_000, rows=10_000))
    assert all(seconds > 0 for seconds in measured)
    with pytest.raises(CommandFailed, match="airflow_lakestream"):
        parse(tmp_path)


def test_a_table_by_key_of_each_kind_has_the_rows_of_the_same_changes(tmp_path: Path) -> None:
    newest = dict.fromkeys(range(1_000), True) | {
        json.loads(key)["id"]: value is not None for key, value in shop_records(1_000, 300)
    }
    rows = dict[str, int]()
    for kind in KINDS:
        with new_lake(tmp_path / kind) as lake:
            arguments = {"folder": lake.folder, "table": f"{NAMESPACE}.orders", "kind": kind}
            arguments |= {"rows": 1_000, "changes": 100, "batches": 3}
            rows[kind] = run_program(tmp_path, "mirroring", arguments)["rows"]
    live = sum(newest.values())
    assert rows["events"] == rows["records"] == live
    # A version that a change has ended stays; with columns not each change ends one.
    assert rows["history"] > rows["columns"] > live


def test_a_build_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BuildFailed, match="no-such-commit"):
        install_commit_or_wheel("no-such-commit", print)
    with pytest.raises(BuildFailed, match="no wheel"):
        install_commit_or_wheel(str(tmp_path / "nowhere.whl"), print)


def run_program(folder: Path, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Run a program of the benchmark; return what it measured."""
    result = folder / "result.json"
    options = [word for key, value in arguments.items() for word in (f"--{key}", str(value))]
    command = [sys.executable, "-m", f"dev.bench.programs.{name}", "--result", str(result), *options]
    run_measured(command, {**os.environ, "PYTHONPATH": str(CHECKOUT)}, watch=False)
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def test_each_way_compacts_the_same_small_files(tmp_path: Path) -> None:
    def run(name: str, **arguments: Any) -> dict[str, Any]:
        return run_program(tmp_path, name, arguments)

    with new_lake(tmp_path / "lake") as lake:
        delta = lake.folder / "delta"
        sizes = {"bytes": 6_000_000, "file-bytes": 500_000}
        names = {"table": "bench.worker", "twins": "bench.pool", "delta": delta}
        made = run("small_files", folder=lake.folder, **sizes, **names)
        assert made["files"] > 5
        for by, table in {"worker": "bench.worker", "pool": "bench.pool", "delta": delta}.items():
            done = run("compacting", folder=lake.folder, by=by, tables=table)
            assert (done["files"], done["rows"]) == (1, made["rows"])
            assert done["offsets"] == sum(range(made["rows"]))
