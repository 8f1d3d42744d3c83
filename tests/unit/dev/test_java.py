from pathlib import Path

import pytest

from dev.errors import JavaMissing
from dev.java import find_jdk, parse_version


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_292"\nJava(TM) SE Runtime Environment', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Dfile.encoding=UTF-8\nopenjdk version "25-ea" 2025-09-16', 25),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
        ("", None),
    ],
)
def test_version_is_read_from_what_java_prints(output, version):
    assert parse_version(output) == version


def fake_jdk(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return home


def test_java_home_comes_before_path(tmp_path):
    home, on_path = fake_jdk(tmp_path / "home", "21.0.1"), fake_jdk(tmp_path / "path", "17.0.1")
    found = find_jdk({"JAVA_HOME": str(home), "PATH": str(on_path / "bin")})
    assert (found.home, found.version) == (home, 21)


def test_a_java_home_that_is_too_old_gives_way_to_path(tmp_path):
    home, on_path = fake_jdk(tmp_path / "home", "1.8.0_292"), fake_jdk(tmp_path / "path", "17.0.1")
    assert find_jdk({"JAVA_HOME": str(home), "PATH": str(on_path / "bin")}).version == 17


def test_a_java_that_is_too_new_for_spark_gives_way_to_path_and_is_taken_alone(tmp_path):
    home, on_path = fake_jdk(tmp_path / "home", "25.0.1"), fake_jdk(tmp_path / "path", "21.0.1")
    assert find_jdk({"JAVA_HOME": str(home), "PATH": str(on_path / "bin")}).version == 21
    assert find_jdk({"JAVA_HOME": str(home), "PATH": str(tmp_path)}).version == 25


def test_no_java_is_one_line_with_the_remedy(tmp_path):
    with pytest.raises(JavaMissing, match=r"No Java found: install a JDK 17 to 21 .*JAVA_HOME") as error:
        find_jdk({"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)})
    assert "\n" not in str(error.value)


def test_an_old_java_is_named_with_its_version(tmp_path):
    old = fake_jdk(tmp_path, "11.0.2") / "bin"
    with pytest.raises(JavaMissing, match=r"Java 17 is needed, and \S+/bin/java is Java 11: install a JDK"):
        find_jdk({"PATH": str(old)})


def test_a_java_without_keytool_is_no_jdk(tmp_path):
    jdk = find_jdk({"JAVA_HOME": str(fake_jdk(tmp_path, "17.0.1"))})
    with pytest.raises(JavaMissing, match="has no keytool"):
        jdk.tool("keytool")
