"""What the queries mean, written anew in the plainest way: all facts at once, no state, no plan.

Shares nothing with what it judges but the names of fields.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lmerge_service.tdb import TDB

__all__ = ("MEANING", "in_time", "meaning", "text")

MINUTE = 60_000
HOUR = 60 * MINUTE
Facts = Sequence[Mapping[str, Any]]


def text(payload: Mapping[str, Any]) -> bytes:
    """Canonical JSON: whole numbers have no fraction."""
    plain = {
        name: int(value) if isinstance(value, float) and value == int(value) else value
        for name, value in payload.items()
    }
    compact = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return compact.encode()


def in_time(partitions: Sequence[Facts], lateness: int) -> list[Mapping[str, Any]]:
    """The facts that count: at most so much below the highest time before them, and before the
    end of their partition."""
    kept = []
    for facts in partitions:
        highest = None
        for fact in facts:
            if fact["fact"] == "end":
                break
            time = fact.get("time")
            if time is None:
                continue
            if highest is None or time >= highest - lateness:
                kept.append(fact)
            highest = time if highest is None else max(highest, time)
    return kept


def meaning(query: str, partitions: Sequence[Facts], lateness: int) -> TDB:
    return TDB(MEANING[query](in_time(partitions, lateness)))


Events = Iterable[tuple[bytes, int, int]]


def delays(facts: Facts) -> Events:
    windows = defaultdict(list)
    for fact in facts:
        if fact["fact"] == "departed":
            for start in range(
                fact["time"] // (20 * MINUTE) * 20 * MINUTE - 2 * HOUR,
                fact["time"] + 1,
                20 * MINUTE,
            ):
                if start <= fact["time"] < start + HOUR:
                    windows[fact["origin"], start].append(fact["delay"])
    for (origin, start), each in windows.items():
        payload = {"origin": origin, "flights": len(each), "delay": sum(each), "longest": max(each)}
        yield text(payload), start, start + HOUR


def in_air(facts: Facts) -> Events:
    arrivals = defaultdict(list)
    departures = set()
    for fact in facts:
        names = ("carrier", "date", "dest", "flight", "origin", "tail")
        flight = text({name: fact.get(name) for name in names})
        if fact["fact"] == "departed":
            departures.add((flight, fact["time"]))
        elif fact["fact"] == "arrived":
            arrivals[flight, fact["departs"]].append(fact["time"])
    for flight, left in departures:
        limit = left + 24 * HOUR
        came = [time for time in arrivals[flight, left] if left < time <= limit]
        yield flight, left, min(came, default=limit)


def top_carriers(facts: Facts) -> Events:
    sums: defaultdict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for fact in facts:
        if fact["fact"] == "departed":
            start = fact["time"] // (3 * HOUR) * 3 * HOUR
            sums[fact["origin"], start][fact["carrier"]] += fact["delay"]
    for (origin, start), carriers in sums.items():
        delayed = [(-delay, carrier) for carrier, delay in carriers.items() if delay > 0]
        for rank, (delay, carrier) in enumerate(sorted(delayed)[:3], 1):
            payload = {"origin": origin, "carrier": carrier, "delay": -delay, "rank": rank}
            yield text(payload), start, start + 3 * HOUR


def weather(facts: Facts) -> Events:
    names = ("precip", "temp", "visib", "wind_speed")
    measured: defaultdict[tuple[str, int], list[list[Any]]] = defaultdict(list)
    departed: dict[tuple[str, int], tuple[Any, ...]] = {}
    for fact in facts:
        hour = fact["time"] // HOUR * HOUR
        if fact["fact"] == "weather":
            measured[fact["origin"], hour].append([fact.get(name) for name in names])
        elif fact["fact"] == "departed":
            identity = {name: fact[name] for name in ("origin", "carrier", "date", "flight")}
            sides = fact["dest"], fact["delay"]
            key = json.dumps(identity), hour
            departed[key] = min(departed.get(key, sides), sides, key=_compact)
    for (identity_text, hour), (dest, delay) in departed.items():
        identity = json.loads(identity_text)
        right = min(measured[identity["origin"], hour], key=_compact, default=[None] * 4)
        payload = identity | {"dest": dest, "delay": delay} | dict(zip(names, right, strict=True))
        yield text(payload), hour, hour + HOUR


def _compact(values: Iterable[Any]) -> str:
    return json.dumps(list(values), separators=(",", ":"))


MEANING: dict[str, Callable[[Facts], Events]] = {
    "delays": delays,
    "in-air": in_air,
    "top-carriers": top_carriers,
    "weather": weather,
}
