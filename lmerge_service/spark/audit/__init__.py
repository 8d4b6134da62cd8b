"""The audit at scale: streams of any size held to their own word and to each other, by Spark.

    streams ─▶ counting ─▶ legality ─▶ equivalence ─▶ findings ─▶ page
    side by     per slice   own stables  keys, chains,   what was    for people
    side                                 ends

It says what `offline.audit` says (a test holds it to that over thousands of streams), and more:
how many replicas there may be, duplicates, freshness, progress.
"""
