"""Plans of queries as Structured Streaming jobs, from topics of facts and elements to a topic of
elements.

    stages           a plan cut where its rows must be divided anew
    intake_bucket    what one partition of a source becomes, where its records hang together
    stage_bucket     what one bucket of a stage does with a batch; `resuming`, with an output of
                     which nothing is left but itself
    moves            the bytes that go from task to task
    compiling        stages as a query of Spark's; `stage_processor`, its stateful operators
    native           a plan that Spark's own aggregation computes
    identity         what a replica is, by its checkpoint and its topic; `held_output`, what that
                     topic holds
    running          a replica as a process
"""
