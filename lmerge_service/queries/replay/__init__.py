"""Revisions answered by replay: an archive of the input, and what a revision touches once more.

As long as the output's stable point is below it, a revision of the input is an adjust or an insert
like any other, and operators answer it from their state (the *direct* answer). Replay is the other
way: it keeps no state for that, but an archive of the input (`archive`), finds which of it the
touched results rest on (`reach`, `lineage`), computes these with and without the revision, and
emits the difference (`revising`). Windows can be computed so as a whole (`replayed_windows`).

After A. Maskey and M. Cherniack, Replay-Based Approaches to Revision Processing in Stream Query
Engines (SSPS 2008).
"""
