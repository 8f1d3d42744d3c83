"""The tables of mutants: each can be put in, and the graph chooses the suite of the test that catches it."""

from __future__ import annotations

import ast
from fnmatch import fnmatchcase

import pytest

from dev.service import CHECKOUT
from dev.suites.choice import Choice
from dev.suites.graph import UsesGraph
from dev.suites.table import SUITES
from tests.dev.crossing_mutants import MUTANTS, CrossingMutant
from tests.dev.play_mutants import ALL

EACH = pytest.mark.parametrize("mutant", ALL, ids=lambda one: one.name)
GLOBS = {suite.name: suite.globs for suite in SUITES}


@pytest.fixture(scope="module")
def graph() -> UsesGraph:
    return UsesGraph(CHECKOUT)


@EACH
def test_the_graph_chooses_the_suite_that_catches_it(mutant: CrossingMutant, graph: UsesGraph) -> None:
    choice = Choice(graph, [mutant.file])
    assert mutant.suite in choice.names, "\n".join(choice.lines())
    assert mutant.test.partition("::")[0] in choice.files(mutant.suite)


@EACH
def test_it_can_be_put_in(mutant: CrossingMutant) -> None:
    content = (CHECKOUT / mutant.file).read_text()
    wrong = mutant.applied_to(content)
    assert wrong != content
    if mutant.file.endswith(".py"):
        compile(wrong, mutant.file, "exec")


@EACH
def test_its_test_is_one_of_its_suite(mutant: CrossingMutant) -> None:
    file, _, test = mutant.test.partition("::")
    tree = ast.parse((CHECKOUT / file).read_text())
    [found] = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == test.partition("[")[0]]
    marks = [node for node in tree.body if isinstance(node, ast.Assign)] + list(found.decorator_list)
    is_long = any("pytest.mark.long" in ast.unparse(one) for one in marks)
    assert any(fnmatchcase(file, glob) for glob in GLOBS[mutant.suite])
    assert is_long == (mutant.suite == "long")


def test_together_they_need_most_suites() -> None:
    assert len(MUTANTS) >= 20
    assert len({one.name for one in ALL}) == len(ALL)
    assert len({one.suite for one in MUTANTS}) >= 12
