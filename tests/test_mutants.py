"""The mutants are named by structure, and applied to what runs (tests/mutants runs the tests)."""

import ast
import gc
import itertools
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from lmerge_service.core import LMerge, lmerge, lmr3
from lmerge_service.core.lmr3 import LMR3
from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.operators import ids_of, mutants_of
from tests.mutants.runner import Outcome, mutate

MUTANTS = (
    "lmerge_service.core.policy:Policy.witnesses/always/1",
    "lmerge_service.core.policy:Policy.check_inputs/drop/1",
)
FUNCTION = """
class Index:
    def count(self, at: int, *, strict: bool = False) -> int:
        "Not a mutant."
        for each in self.nodes[at:]:
            if each < at and not strict:
                self.found += 1
        assert self.found >= 0
        return max(self.found, key=len)
"""


def mutated() -> dict[str, str]:
    """What each mutant of FUNCTION changes, as the line that differs."""
    found = {}
    before = ast.unparse(ast.parse(FUNCTION)).splitlines()
    for number in range(len(list(mutants_of(ast.parse(FUNCTION), "m")))):
        tree = ast.parse(FUNCTION)
        mutant = next(itertools.islice(mutants_of(tree, "m"), number, None))
        mutant.apply()
        after = ast.unparse(tree).splitlines()
        found[mutant.id.removeprefix("m:Index.count/")] = "; ".join(
            line.strip() for line in after if line not in before
        )
    return found


def test_the_operators_change_one_thing_each() -> None:
    assert mutated() == {
        "once/1": "break",
        "slice/1": "for each in self.nodes[:]:",
        "always/1": "if True:",
        "never/1": "if False:",
        "operand/1": "if not strict:",
        "operand/2": "if each < at:",
        "boundary/1": "if each <= at and (not strict):",
        "drop/1": "pass",
        "arithmetic/1": "self.found -= 1",
        "number/1": "self.found += 2",
        "drop/2": "pass",
        "keyword/1": "return max(self.found)",
        "call/1": "return min(self.found, key=len)",
    }


class _Renamed(ast.NodeTransformer):
    """Other names for all variables and attributes."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        builtin = node.id in ("min", "max", "any", "all", "sorted", "len")
        return node if builtin else ast.Name(f"{node.id}_", node.ctx)

    def visit_Attribute(self, node: ast.Attribute) -> ast.Attribute:
        self.generic_visit(node)
        return ast.Attribute(node.value, f"{node.attr}_", node.ctx)


def test_a_mutant_keeps_its_id_whatever_variables_and_attributes_are_called() -> None:
    tree = ast.parse(Path(lmr3.__file__).read_text())
    ids = [each.id for each in mutants_of(tree, "lmr3")]
    assert len(ids) > 200
    assert [each.id for each in mutants_of(_Renamed().visit(tree), "lmr3")] == ids


def test_ids_are_unique_and_those_that_are_equivalent_exist() -> None:
    ids = Counter([*ids_of("core"), *ids_of("formats")])
    assert ids.total() == len(ids) > 3_000
    assert EQUIVALENT.keys() <= ids.keys()
    assert all(EQUIVALENT.values())


def test_a_mutant_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.freeze()  # as a command does that was tested in this process
    monkeypatch.setattr(LMerge.attach, "__code__", LMerge.attach.__code__)  # put back at the end
    mutate("lmerge_service.core.base:LMerge.attach/boundary/2")  # joining_at < max_stable
    merge = lmerge("R3")
    merge.attach("a")
    assert not merge.inputs["a"].joined


def test_a_method_that_calls_super_can_be_a_mutant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LMR3.__init__, "__code__", LMR3.__init__.__code__)
    mutate("lmerge_service.core.lmr3:LMR3.__init__/drop/1")  # super().__init__
    with pytest.raises(AttributeError):
        LMR3().attach("a")


def test_a_mutant_that_is_not_there_is_an_error() -> None:
    with pytest.raises(LookupError, match="no mutant"):
        mutate("lmerge_service.core.base:LMerge.attach/drop/99")


RUN = f"""
from tests.mutants.__main__ import run
print(run({MUTANTS}, ["lmerge_service/core/policy.py"], jobs=2))
"""


def test_a_test_that_fails_kills_a_mutant_and_one_that_is_not_called_survives() -> None:
    root = Path(__file__).resolve().parents[1]
    command = [sys.executable, "-c", RUN]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    doctest = "lmerge_service/core/policy.py::lmerge_service.core.policy.Policy.witnesses"
    outcomes = [Outcome("", None), Outcome(MUTANTS[0], doctest), Outcome(MUTANTS[1], None)]
    assert set(outcomes) == set(eval(done.stdout.splitlines()[-1], {"Outcome": Outcome}))  # noqa: S307
