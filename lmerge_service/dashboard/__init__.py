"""The dashboard: one page about all workers of a merge, to look at and to act from.

`polling` asks the workers and `model` keeps what they answered, `merged` makes one picture of it,
`history` the last ten minutes, `happenings` a log of what changed, `quiet` who brings nothing new.
`panels` and `charts` are that as HTML and as options of ECharts; `actions` asks for decisions,
`page` shows all of it, `serving` serves it. Only `page` needs the extra `dashboard`.
"""
