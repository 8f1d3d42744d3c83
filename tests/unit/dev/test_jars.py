import threading
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dev import jars
from dev.errors import JarsUnavailable
from dev.java import Jdk

TOY = jars.JarSet("toy-1", (("org.example", "toy", "1"),))


def fake_jdk(home: Path, script: str) -> Jdk:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return Jdk(home, 17)


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_the_ivy_that_pyspark_brings_is_found():
    assert jars.ivy_jar().is_file()


def test_ivy_is_asked_for_every_module():
    tree = ElementTree.fromstring(jars.KAFKA.ivy_file())
    asked = [(d.get("org"), d.get("name"), d.get("rev")) for d in tree.iter("dependency")]
    assert asked == list(jars.KAFKA.modules)


def test_a_fetch_that_fails_leaves_no_set_behind_and_says_why(tmp_path):
    jdk = fake_jdk(tmp_path / "jdk", "mkdir lib; touch lib/toy-1.jar; echo ':: UNRESOLVED  DEPENDENCIES'; exit 1")
    with pytest.raises(JarsUnavailable, match=r"toy-1 \(:: UNRESOLVED DEPENDENCIES\): check the network"):
        jars.fetch(TOY, tmp_path / "jars", jdk)
    assert list((tmp_path / "jars").iterdir()) == []


def test_an_incomplete_answer_is_not_taken_for_the_set(tmp_path):
    jdk = fake_jdk(tmp_path / "jdk", "mkdir lib; touch lib/other-1.jar")
    with pytest.raises(JarsUnavailable, match="without toy 1"):
        jars.fetch(TOY, tmp_path / "jars", jdk)
    assert list((tmp_path / "jars").iterdir()) == []


def test_two_at_once_fetch_once(tmp_path):
    jdk = fake_jdk(tmp_path / "jdk", f"echo x >> {tmp_path}/fetches; sleep 0.2; mkdir lib; touch lib/toy-1.jar")
    found = []
    both = [threading.Thread(target=lambda: found.append(jars.fetch(TOY, tmp_path / "jars", jdk))) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert found == [tmp_path / "jars" / "toy-1"] * 2
    assert (tmp_path / "fetches").read_text() == "x\n"
