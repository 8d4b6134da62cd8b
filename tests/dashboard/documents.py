"""Documents of `/status` as workers write them."""

from typing import Any

from lmerge_service.dashboard.polling import Answer

A, B = "http://127.0.0.1:8321", "http://127.0.0.1:8322"


def replica(name: str, **more: Any) -> dict[str, Any]:
    counts = dict.fromkeys(
        ("inserts", "adjusts", "stables", "delivered_first", "late", "stale", "repeated",
         "contradicted", "dead_letters", "lost_events", "left_out"), 0
    )  # fmt: skip
    return {
        **counts, "name": name, "topic": f"t.{name}", "state": "joined", "why": None, "held": [],
        "silent_partitions": [], "incarnation": 0, "stable_point": 100, "ended": False,
        "behind_output": 0, "lag_records": 0, "open_transactions": [], "liveness": "progressing",
        "repeated_at": None, "contradicted_at": None, "outdated": [],
        "breaches": {}, "confirmed": None, "confirmed_to_the_end": False, "disagrees": False,
        "unconfirmed": False, **more,
    }  # fmt: skip


def output(**more: Any) -> dict[str, Any]:
    return {
        "topic": "merged", "case": "R3", "policy": {"insert": "first", "adjust": "lazy",
        "stable": "max"}, "stable_point": 100, "incarnation": 0, "correct_from": None,
        "ended": False, "live_events": 3, "inserts": 0, "adjusts": 0, "stables": 0, "leader": "a",
        "leader_since": 1.0, "leader_before": None, "leader_why": None, "transactions": 1,
        "commit_ms_p50": 2.0, "commit_ms_p99": 9.0, "gap": None, **more,
    }  # fmt: skip


def task(partition: int, role: str = "leads", **more: Any) -> dict[str, Any]:
    return {
        "partition": partition, "role": role, "phase": "leading", "stuck": None, "cutover": None,
        "commit_seconds": None, "output": output(**more), "replicas": [],
    }  # fmt: skip


def status(
    *replicas: dict[str, Any], tasks: tuple[dict[str, Any], ...] = (), **more: Any
) -> dict[str, Any]:
    out = more.pop("output", output())
    return {
        "name": "m", "state": "running", "health": "ok", "reasons": [], "reason_kinds": [],
        "version": 1, "time_unit": "ms", "cutover": None, "detached": {},
        "tasks": list(tasks or (task(0, leader=out["leader"]),)), "output": out,
        "replicas": list(replicas or (replica("a"), replica("b"))), **more,
    }  # fmt: skip


def answer(document: dict[str, Any] | None, away: str | None = None, **more: Any) -> Answer:
    return Answer(document, away, **more)
