"""What decoding and encoding one element costs, by the kind of record and of payload."""

import gc
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from lmerge_service.formats import payload
from lmerge_service.formats.payload import PayloadCache, canonical
from lmerge_service.formats.wire import WireDecoder, encode

__all__ = ("flight", "run")

Report = Callable[[str, str, Sequence[float]], None]
_RECORDS: Final = 500
_ROUNDS: Final = 40


def run(runs: int, report: Report) -> None:
    """Payloads of about 120 bytes; batches that fit into the processor's caches, as polls do."""
    flights = [flight(number) for number in range(_RECORDS)]
    for kind, form in _RECORD_FORMS.items():
        records = [form % (flight, 1_700_000_000_000 + i) for i, flight in enumerate(flights)]
        decode = WireDecoder().decode
        elements = [decode(record) for record in records]
        report(f"decode {kind}, payload seen", "µs", _each(runs, decode, records))
        report(f"encode {kind}", "µs", _each(runs, encode, elements))
        if kind == "insert":
            first, again = _kept(runs, records)
            report(f"decode {kind}, payload seen, and keep it", "µs", first)
            report(f"decode {kind}, seen before in another replica", "µs", again)
    for kind, raw in _payload_forms().items():
        way = "short cut" if payload._short_cut(raw) else "long way"
        report(f"payload, first seen: {kind} ({way})", "µs", _each(runs, canonical, [raw] * 500))


_RECORD_FORMS: Final = {
    "insert": b'{"op":"insert","payload":%b,"vs":%d,"ve":1800000000000}',
    "insert without end": b'{"op":"insert","payload":%b,"vs":%d,"ve":null}',
    "insert, spaced": b'{"op": "insert", "payload": %b, "vs": %d, "ve": 1800000000000}',
    "adjust": b'{"op":"adjust","payload":%b,"vs":%d,"vold":1800000000000,"ve":1800000000001}',
}


def flight(number: int, **more: Any) -> bytes:
    """A canonical payload of about 120 bytes, unless there is more."""
    fields = {"arr_delay": 11, "carrier": "UA", "dep_delay": 2, "dest": "IAH", "distance": 1400}
    fields |= {"flight": f"UA{number:04}", "origin": "EWR", "tail": "N14228"} | more
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def _payload_forms() -> dict[str, bytes]:
    canonical_one = flight(1)
    return {
        "canonical": canonical_one,
        "other order": flight(1, arr_delay=12, a=1),
        "spaced": json.dumps(json.loads(canonical_one)).encode(),
        "two fractions": flight(1, arr_delay=11.5, dep_delay=2.25),
        "two fractions of 17 digits": flight(1, arr_delay=0.1 + 0.2, dep_delay=2.2511111111111112),
        "two whole fractions": flight(1, arr_delay=11.0, dep_delay=2.0),
        "an exponent": flight(1, arr_delay=1e-7),
        "1 KB": flight(1, text="x" * 900),
    }


def _each(runs: int, work: Callable[[Any], object], items: Sequence[Any]) -> list[float]:
    """Microseconds an item, the loop included; the best of several rounds in each run."""
    gc.collect()
    return [min(_round(work, items) for _ in range(_ROUNDS)) for _ in range(runs)]


def _kept(runs: int, records: Sequence[bytes]) -> tuple[list[float], list[float]]:
    """Microseconds a record when it is published first, and when another replica repeats it; as
    `_each` has it."""
    gc.collect()
    cache = WireDecoder().cache
    rounds = [[_first_and_again(records, cache) for _ in range(_ROUNDS)] for _ in range(runs)]
    first, again = ([min(each[i] for each in run) for run in rounds] for i in (0, 1))
    return first, again


def _first_and_again(records: Sequence[bytes], cache: PayloadCache) -> tuple[float, float]:
    decoder = WireDecoder(cache=cache)
    times = []
    for _ in range(2):
        records = [bytes(bytearray(each)) for each in records]  # a hash is computed once an object
        started = time.perf_counter()
        for record in records:
            decoder.seen[record]
        times.append((time.perf_counter() - started) / len(records) * 1e6)
    return times[0], times[1]


def _round(work: Callable[[Any], object], items: Sequence[Any]) -> float:
    started = time.perf_counter()
    for item in items:
        work(item)
    return (time.perf_counter() - started) / len(items) * 1e6
