"""A set of processes as one thing: started from a topology's `up` section, kept, ended.

`plan` lists what is to run, `supervisor` keeps it running, `runs` is the record of it, by
which all of it can be ended whatever became of the supervisor, and `processes` starts and ends one.
"""
