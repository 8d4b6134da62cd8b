"""The demo: three replicas of real flights through a real Kafka, with faults, and a verdict.

`show` is the play and `queries` another one, `watch` what is seen while it runs, `verdict` what
is proved at the end, `throughput` how fast it goes beside a pass-through of the same bytes.
"""
