"""The mutants are ready: each has its place in the code as it is (tests/mutants runs them)."""

from collections import Counter

import pytest

from tests.mutants.mutants import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_a_mutant_has_its_one_place_and_compiles(mutant: Mutant) -> None:
    path = ROOT / mutant.path
    assert path.read_text().count(mutant.old) == 1, f"the text has moved: {mutant.old}"
    assert mutant.old != mutant.new
    compile(mutant.applied(), str(path), "exec")


def test_each_has_an_id_of_its_own_and_says_what_it_breaks() -> None:
    assert [each for each, n in Counter(m.id for m in MUTANTS).items() if n > 1] == []
    assert all(m.breaks for m in MUTANTS)


def test_there_are_enough_of_each_algorithm() -> None:
    counts = Counter(mutant.file for mutant in MUTANTS)
    assert counts["lmr3"] + counts["in2t"] >= 20
    assert counts["lmr4"] + counts["in3t"] >= 20
    assert counts.keys() >= {"base", "ordered", "lmr0", "lmr1", "lmr2", "policy", "wire"}
