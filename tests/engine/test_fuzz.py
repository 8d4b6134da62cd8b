"""Long streams through both engines, from records to records: a million elements in `make test`.

Where `test_equal` has elements of little variety that meet all the time, here replicas present one
logical stream, honestly or with lies, and what is compared is what a worker makes of bytes: batches
of Kafka's records are read, decoded, merged in batches of any length, and encoded.
"""

from collections.abc import Iterator, Sequence
from random import Random

from lmerge_engine import Decoder, Encoded, Fetched, Records

from lmerge_service.core import Policy
from lmerge_service.core.batches import as_batch
from lmerge_service.elements import Element, Stable
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.kafka.records import _decompressed as decompressed
from lmerge_service.workloads.generator import workload
from lmerge_service.workloads.lies import KINDS, Lie, lie
from lmerge_service.workloads.presentation import Variation, present
from tests.engine.streams import NAMES
from tests.engine.test_equal import Pair, _fault_of
from tests.seeds import seeds

_EVENTS = 700
_LEAST = 3_080
"""So many elements a case has at least, on the average."""
_SECOND = 1_000


def streams(rng: Random) -> list[list[Element]]:
    """Three presentations of a stream, of which none, one or all lie."""
    active = rng.choice((20, 200))
    lives = list(
        workload(
            events=_EVENTS,
            seed=rng.randrange(1 << 30),
            payload_bytes=20,
            active=active,
            varied=True,
        )
    )
    liars, share = rng.choice(((0, 0.0), (1, 0.01), (1, 0.1), (3, 0.02)))
    lies = Lie(**dict.fromkeys(KINDS, share), by=rng.choice((1, 60 * _SECOND)))
    found = []
    for number in range(3):
        variation = Variation(
            ends=rng.choice(("all", "first", "final")),
            provisional=rng.choice((0.0, 0.3)), revisions=2, spread=60 * _SECOND,
            endless=rng.choice((0.0, 0.1)), reinserted=rng.choice((0.0, 0.1)),
            phantoms=rng.choice((0.0, 0.05)), disorder=0.3, displacement=60 * _SECOND,
            stable_every=rng.choice((7, 50, 400)), stable_lag=rng.choice((0, 30 * _SECOND)),
            closed=rng.random() < 0.7,
        )  # fmt: skip
        presented = present(lives, variation, rng.randrange(1 << 30))
        found.append(list(lie(presented, lies, number) if number < liars else presented))
    return found


def _records(elements: Sequence[Element]) -> Records:
    """As they come from Kafka, in a batch."""
    encoded = Encoded((), 1 << 20)
    encoded += [(None, encode(element)) for element in elements]
    data = b"".join(encoded.sealed(n, (7, -1, -1, -1)) for n in range(len(encoded.sizes())))
    return Fetched(data, 0, [], True, decompressed).take()


def _by_python(decoder: WireDecoder, records: Records) -> list[Element]:
    return [decoder.decode(record.value) for record in records]


def _by_the_engine(decoder: Decoder, reference: WireDecoder, records: Records) -> Sequence[Element]:
    batch, at = decoder.empty(), 0
    while at < len(records):
        at, stable = decoder.take(records, at, (), batch)
        if at < len(records):
            batch.append(reference.decode(records[at].value) if stable is None else Stable(stable))
            at += 1
    return batch


def _turns(rng: Random, given: Sequence[Sequence[Element]]) -> Iterator[tuple[int, Records]]:
    """Pieces of all streams, in turn by chance."""
    at, longest = [0] * len(given), rng.choice((3, 60, 900))
    while left := [n for n, stream in enumerate(given) if at[n] < len(stream)]:
        number, size = rng.choice(left), rng.randrange(1, 2 * longest)
        yield number, _records(given[number][at[number] : at[number] + size])
        at[number] += size


@seeds(325, most=65)
def test_a_million_elements_are_merged_as_by_python(seeds: range) -> None:
    taken = 0
    for seed in seeds:
        rng = Random(seed)
        given = streams(rng)
        taken += sum(map(len, given))
        pair = Pair(rng.choice((Policy(), Policy(stable="lag(20000)"))))
        partitions = [rng.choice((1, 1, 2)) for _ in given]
        for name, count in zip(NAMES, partitions, strict=False):
            pair.both(lambda merge, n=name, c=count: merge.attach(n, partitions=c))  # type: ignore[misc]
        _merge(pair, rng, given, partitions)
        if seed % 5 == 0:
            _replay(pair, rng, given)
    assert taken > _LEAST * len(seeds)


def _merge(
    pair: Pair, rng: Random, given: Sequence[Sequence[Element]], partitions: Sequence[int]
) -> None:
    reference, native = WireDecoder(), Decoder(False, False, 64, 1 << 20)
    for number, records in _turns(rng, given):
        elements = _by_python(reference, records)
        batch = _by_the_engine(native, reference, records)
        name, partition = NAMES[number], rng.randrange(partitions[number])
        one = pair.python.process_batch(name, elements, partition)
        other = pair.native.process_batch(name, batch, partition)
        pair.same(one, other)
        emitted = as_batch(other)
        assert emitted is not None
        encoded = Encoded((), 1 << 20)
        encoded.extend(emitted)
        assert [value for _, value in encoded] == [encode(element) for element in one]
        if rng.random() < 0.02:
            pair.exchange(rng)
    pair.exchange(rng)


def _replay(before: Pair, rng: Random, given: Sequence[Sequence[Element]]) -> None:
    """Two that follow: by a part of what was emitted, and then by the inputs from the beginning."""
    pair = Pair(before.python.policy)
    output = before.emitted[: rng.randrange(len(before.emitted) + 1)]
    faults = pair.both(lambda merge: _fault_of(merge, output))
    assert faults[0] == faults[1]
    if faults[0] is not None:
        return
    for name in NAMES[: len(given)]:
        pair.both(lambda merge, name=name: merge.attach(name))  # type: ignore[misc]
    for name, stream in zip(NAMES, given, strict=False):
        half = stream[: len(stream) // 2]
        pair.same(*pair.both(lambda m, n=name, s=half: m.replay_input(n, s)))  # type: ignore[misc]
    pair.exchange(rng)
