"""`lmerge up` and `down`: the section, the plan, and real processes."""
