"""The audit at scale: streams of any size checked by Spark, each for legality, all for equivalence.

    streams ─▶ scanning ─▶ screening ─▶ counting ─▶ legality ─▶ equivalence ─▶ findings ─▶ page
    side by     one look    which events  whole        own          what is not   what was    for
    side        at a row    are plain     streams      stables      plain         found       people

Its findings are those of `offline.audit` (a test compares them over thousands of streams), and
more: how many replicas there may be, duplicates, freshness, progress.
"""
