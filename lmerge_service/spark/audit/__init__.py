"""The audit at scale: streams of any size held to their own word and to each other, by Spark.

    streams ─▶ scanning ─▶ screening ─▶ counting ─▶ legality ─▶ equivalence ─▶ findings ─▶ page
    side by     one look    which events  whole        own          what is not   what was    for
    side        at a row    are plain     streams      stables      plain         found       people

It says what `offline.audit` says (a test holds it to that over thousands of streams), and more:
how many replicas there may be, duplicates, freshness, progress.
"""
