"""Mistakes made on purpose where elements pass: the tests must notice each.

Theory
    A test suite is worth what it would catch. `operators` makes every mutant of a package: a
    statement dropped, a branch always or never taken, an operand left out, a bound moved by one,
    and so on, in one function. `runner` runs the package's tests and doctests against a sample of
    them (`make test-mutants`), properties over the same drawn examples in every run. A mutant that
    survives calls for a literal test (operators': tests/core/test_killed.py), or it is equivalent:
    nothing that is promised depends on what it changes (`equivalent`, with the reason).

Invariants
    G1  A mutant is named by module, function, operator and number in the function; no name within
        the function, comment or line break is part of it.
    G2  Whether a mutant is in the sample depends on its name and the seed alone.
    G3  What is mutated is the function that the tests have imported, in a process of its own.
    G4  The tests pass without a mutant, or nothing else is run.

Limits
    Module and class level code, defaults of arguments, strings and assertions are not mutated. What
    a test module calls when it is collected, as in `parametrize`, is called before the mutant is
    made, and kills nothing: call it in the test.

Why no tool
    mutmut 3 drops no statement or operand and leaves out decorated functions; cosmic-ray rewrites
    files in place and starts pytest, some seconds of imports, for each mutant.
"""
