"""What the stages of the hot path cost in one process, without Kafka."""

import gc
import time
from collections.abc import Callable, Sequence
from functools import partial
from tempfile import TemporaryDirectory

from benchmarks.inputs import interleaved, ordered, replicas
from lmerge_service.core import lmerge
from lmerge_service.elements import INFINITY, Element, Insert, Stable
from lmerge_service.formats.ndjson import ElementWriter, read_elements
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.merge.tuning import quieten_garbage_collector
from lmerge_service.offline.merge import merge_streams

__all__ = ("run",)

Report = Callable[[str, str, Sequence[float]], None]
_CHUNK = 500


def run(runs: int, elements: int, report: Report) -> None:
    """Decode, merge, encode, all three, and the merge of files.

    Each round does everything once, so that a machine that is slower for a while is slower for
    all rows alike.
    """
    quieten_garbage_collector()
    with TemporaryDirectory() as folder:
        works = _works(elements, folder)
        values: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(runs):
            for name, work in works.items():
                values[name].append(work() / 1000)
    for name, found in values.items():
        report(name, "k elements/s", found)


def _works(elements: int, folder: str) -> dict[str, Callable[[], float]]:
    """What is measured: each gives elements a second."""
    streams, in_order = replicas(elements), ordered(elements)
    batches, ordered_batches = interleaved(streams, _CHUNK), interleaved(in_order, _CHUNK)
    records = [(number, [encode(e) for e in batch]) for number, batch in batches]
    flat = [e for _, batch in batches for e in batch]

    def rate(work: Callable[[], object], of: Sequence[Sequence[Element]] = streams) -> float:
        return sum(map(len, of)) / _seconds(work)

    works: dict[str, Callable[[], float]] = {
        "decode, each payload once new": lambda: rate(lambda: _decode(records)),
        "encode": lambda: rate(lambda: [encode(e) for e in flat]),
    }
    unrevised = replicas(elements, revised=0.0)
    unrevised_batches = interleaved(unrevised, _CHUNK)
    for case in ("R3", "R4"):
        works[f"LM{case}, decoded elements, 3 inputs"] = partial(
            rate, partial(_merge, case, batches, 3)
        )
        works[f"LM{case}, the same without adjusts"] = partial(
            rate, partial(_merge, case, unrevised_batches, 3), unrevised
        )
    for case in ("R0", "R1", "R2", "R3", "R4"):
        works[f"LM{case}, the same in order and without adjusts"] = partial(
            rate, partial(_merge, case, ordered_batches, 3), in_order
        )
    for half_frozen in (1_000, 100_000):
        works[f"LMR3 with {half_frozen:,} half-frozen events"] = _with_half_frozen(half_frozen)
    works["decode, merge, encode"] = lambda: rate(lambda: _whole_path(records, 3))
    for name, inputs in (("", streams), (", the same without adjusts", unrevised)):
        names = _written(inputs, f"{folder}/{len(works)}")
        files = partial(_files, names, f"{folder}/out.ndjson")
        works[f"merge of 3 files{name}"] = partial(rate, files, inputs)
    return works


def _written(streams: Sequence[Sequence[Element]], stem: str) -> list[str]:
    names = [f"{stem}-{number}.ndjson" for number in range(len(streams))]
    for name, stream in zip(names, streams, strict=True):
        with ElementWriter(name) as writer:
            for element in stream:
                writer.write(element)
    return names


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
        for emitted in merge.process_batch(str(number), [decode(record) for record in batch]):
            encode(emitted)


def _files(names: Sequence[str], output: str) -> None:
    with ElementWriter(output) as writer:
        decoder = WireDecoder()
        streams = [read_elements(name, decoder, shared=True) for name in names]
        merge_streams(list(names), streams, writer.write)
