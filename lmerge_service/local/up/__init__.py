"""A set of processes as one thing: started from a topology's `up` section, kept, ended.

`plan` says what is to run, `supervisor` keeps it running, `runs` is what is written down of it, by
which all of it can be ended whatever became of the supervisor, and `processes` starts and ends one.
"""
