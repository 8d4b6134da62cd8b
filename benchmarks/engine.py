"""What the engine takes by itself: from fetched bytes to bytes to send, and memory, without Kafka.

Processor time is what counts, so that other work on the machine matters less. Memory is what the
process has more, by the operating system, with so many events live in three inputs.
"""

import gc
import time
from collections.abc import Callable, Iterable, Sequence

import psutil
from lmerge_engine import Decoder, Encoded, Fetched, Records

from benchmarks.inputs import interleaved, replicas
from lmerge_service.core import LMerge, lmerge
from lmerge_service.core.batches import as_batch
from lmerge_service.elements import Element, Insert, Stable
from lmerge_service.formats.wire import encode

__all__ = ("run",)

Report = Callable[[str, str, Sequence[float]], None]
_CHUNK = 4_000
_PAYLOAD_BYTES = 46
"""Of a payload's longest field: a payload has some 70 bytes."""
_LIVE = 300_000


def run(runs: int, events: int, report: Report) -> None:
    """Rates with and without revisions, and bytes a live event."""
    for what, revised in (("no revisions", 0.0), ("a fifth of the events revised", 0.2)):
        streams = replicas(events, payload_bytes=_PAYLOAD_BYTES, revised=revised)
        fetched = [(n, _fetched(batch)) for n, batch in interleaved(streams, _CHUNK)]
        count = sum(map(len, streams))
        rates = [count / _seconds(fetched) / 1000 for _ in range(runs)]
        report(f"read, decode, merge, encode, seal: {what}", "k elements/s of processor", rates)
    report("memory of a live event, payloads of 70 bytes", "bytes", [_bytes_an_event()])


def _fetched(elements: Iterable[Element]) -> bytes:
    encoded = Encoded((), 1 << 18)
    encoded += [(None, encode(element)) for element in elements]
    return _sealed(encoded)


def _sealed(encoded: Encoded) -> bytes:
    return b"".join(encoded.sealed(n, (7, 1, 1, 0)) for n in range(len(encoded.sizes())))


def _operator() -> LMerge:
    merge = lmerge("R3", engine="native")
    for number in range(3):
        merge.attach(f"{number}")
    return merge


def _seconds(fetched: Sequence[tuple[int, bytes]]) -> float:
    gc.collect()
    merge, decoder, started = _operator(), Decoder(False, False, 64, 1 << 20), time.process_time()
    for number, data in fetched:
        records = Fetched(data, 0, [], True, lambda *_: None).take()
        emitted = as_batch(merge.process_batch(f"{number}", _decoded(decoder, records)))
        assert emitted is not None
        encoded = Encoded((), 1 << 18)
        encoded.extend(emitted)
        _sealed(encoded)
    return time.process_time() - started


def _decoded(decoder: Decoder, records: Records) -> Sequence[Element]:
    batch, at, size = decoder.empty(), 0, len(records)
    while at < size:
        at, stable = decoder.take(records, at, (), batch)
        if at < size:
            assert stable is not None, "all that is written here is for the engine"
            batch.append(Stable(stable))
            at += 1
    return batch


def _bytes_an_event() -> float:
    merge, process = _operator(), psutil.Process()
    gc.collect()
    before = process.memory_info().rss
    for begin in range(0, _LIVE, _CHUNK):
        events = [
            Insert(b'{"data":"%046d","key":1%07d}' % (n, n), n, n + 2 * _LIVE)
            for n in range(begin, begin + _CHUNK)
        ]
        for number in range(3):
            merge.process_batch(f"{number}", events)
    del events
    gc.collect()
    assert len(merge) == len(range(0, _LIVE, _CHUNK)) * _CHUNK
    return (process.memory_info().rss - before) / len(merge)
