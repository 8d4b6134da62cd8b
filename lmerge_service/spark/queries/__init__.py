"""Replicated queries: continuous queries over a topic of facts, each in several plans that differ
in all but their meaning, as Structured Streaming jobs that write topics of elements.

    facts ──▶ SQL ──▶ one operator for each output partition ──▶ elements
          └─▶ how far each partition is, which rows are late ──┘

What is decided about a batch is in `bucket`, `lateness` and the operators (`windows`, `airborne`),
which need no Spark; `pipeline` makes a job of them, `running` a process. The queries that
come along are in `catalogue`; docs/replicas.md makes one of one's own.

Plans of the algebra run as jobs, too: `stages` cuts them, `stage_bucket` is what one bucket of a
stage does, `compiling` and `stage_processor` make a job of it, and `running` a process;
`native` has Spark's own aggregation compute what it can.
"""
