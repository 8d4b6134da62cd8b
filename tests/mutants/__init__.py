"""Mistakes that somebody could make where elements pass, each of which the tests must notice.

Theory
    A test suite is worth what it would catch. Each mutant (`mutants`) changes one text of the
    operators, or of what decodes and keeps records, into one that looks as plausible and breaks a
    named promise or rule. The runner (`__main__`, `make test-mutants`) gives each a copy of package
    and tests, and runs those of its own package there, as tests/core and the doctests of
    lmerge_service/core (`order`): literal tests first, so that most mutants die in seconds, then
    properties over the same drawn examples in every run, without shrinking. A mutant that lives
    calls for a literal test (tests/core/test_killed.py).

Invariants
    G1  A mutant's old text occurs exactly once in its file, and the mutated file compiles; so a
        text that has moved is found out by `make test` (tests/test_mutants.py).
    G2  No mutant is equivalent: `breaks` says what a user, or the count of work, would see.
    G3  The copy without a mutant passes, and what runs is the copy, never the installed package.
"""
