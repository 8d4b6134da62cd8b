"""What the stages of the hot path cost in one process, without Kafka."""

import gc
import time
from collections.abc import Callable, Sequence
from tempfile import TemporaryDirectory

from benchmarks.inputs import interleaved, ordered, replicas
from lmerge_service.core import lmerge
from lmerge_service.elements import INFINITY, Element, Insert, Stable
from lmerge_service.formats.ndjson import ElementWriter, read_elements
from lmerge_service.formats.payload import PayloadCache
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.offline.merge import merge_streams
from lmerge_service.service.tuning import quieten_garbage_collector

__all__ = ("run",)

Report = Callable[[str, str, Sequence[float]], None]
_CHUNK = 500


def run(runs: int, elements: int, report: Report) -> None:
    """Decode, merge, encode, all three, and the merge of files."""
    quieten_garbage_collector()
    streams = replicas(elements)
    total = sum(map(len, streams))
    batches = interleaved(streams, _CHUNK)
    records = [(number, [encode(e) for e in batch]) for number, batch in batches]
    flat = [e for _, batch in batches for e in batch]

    def per_second(work: Callable[[], object]) -> list[float]:
        return [total / _seconds(work) / 1000 for _ in range(runs)]

    unit = "k elements/s"
    report("decode, each payload once new", unit, per_second(lambda: _decode(records)))
    report("encode", unit, per_second(lambda: [encode(e) for e in flat]))
    for case in ("R3", "R4"):
        values = per_second(lambda case=case: _merge(case, batches, 3))  # type: ignore[misc]
        report(f"LM{case}, decoded elements, 3 inputs", unit, values)
    in_order = interleaved(streams_in_order := ordered(elements), _CHUNK)
    total_in_order = sum(map(len, streams_in_order))
    for case in ("R0", "R1", "R2", "R3", "R4"):
        values = [
            total_in_order / _seconds(lambda case=case: _merge(case, in_order, 3)) / 1000  # type: ignore[misc]
            for _ in range(runs)
        ]
        report(f"LM{case}, the same in order and without adjusts", unit, values)
    for half_frozen in (1_000, 100_000):
        work = _with_half_frozen(half_frozen)
        values = [work() / 1000 for _ in range(runs)]
        report(f"LMR3 with {half_frozen:,} half-frozen events", unit, values)
    report("decode, merge, encode", unit, per_second(lambda: _whole_path(records, 3)))
    with TemporaryDirectory() as folder:
        names = [f"{folder}/{number}.ndjson" for number in range(len(streams))]
        for name, stream in zip(names, streams, strict=True):
            with ElementWriter(name) as writer:
                for element in stream:
                    writer.write(element)
        report("merge of 3 files", unit, per_second(lambda: _files(names, f"{folder}/out.ndjson")))


def _seconds(work: Callable[[], object]) -> float:
    gc.collect()
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _decode(records: Sequence[tuple[int, Sequence[bytes]]]) -> None:
    decode = WireDecoder().decode
    for _, batch in records:
        for record in batch:
            decode(record)


def _merge(case: str, batches: Sequence[tuple[int, Sequence[Element]]], inputs: int) -> None:
    merge = lmerge(case)
    for number in range(inputs):
        merge.attach(str(number))
    for number, batch in batches:
        merge.process_batch(str(number), batch)


def _with_half_frozen(count: int) -> Callable[[], float]:
    """Elements a second of short events beside so many long ones, a stable every 100 elements."""
    long = [Insert(k, 0, INFINITY) for k in range(count)]
    stream: list[Element] = []
    for k in range(1, 30_000):
        stream.append(Insert(-k, k, k + 5))
        if k % 100 == 0:
            stream.append(Stable(k))

    def work() -> float:
        merge = lmerge()
        for name in ("a", "b"):
            merge.attach(name)
            merge.process_batch(name, long)
        merge.process("a", Stable(1))
        started = time.perf_counter()
        for start in range(0, len(stream), _CHUNK):
            for name in ("a", "b"):
                merge.process_batch(name, stream[start : start + _CHUNK])
        return 2 * len(stream) / (time.perf_counter() - started)

    return work


def _whole_path(records: Sequence[tuple[int, Sequence[bytes]]], inputs: int) -> None:
    merge, decode = lmerge(), WireDecoder().decode
    for number in range(inputs):
        merge.attach(str(number))
    for number, batch in records:
        for said in merge.process_batch(str(number), [decode(record) for record in batch]):
            encode(said)


def _files(names: Sequence[str], output: str) -> None:
    with ElementWriter(output) as writer:
        cache = PayloadCache()
        streams = [read_elements(name, WireDecoder(cache=cache)) for name in names]
        merge_streams(list(names), streams, writer.write)
