"""A replica's records decoded by the engine and by Python: equal elements, evidence and counts."""

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from lmerge_service.elements import Insert, Stable
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.formats.headers import incarnation_headers
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.merge.decoding import ReplicaDecoder
from tests.merge.test_step import Record

values = st.one_of(
    st.builds(lambda vs: encode(Insert(b'"%d"' % (vs % 7), vs, vs + 5)), st.integers(0, 30)),
    st.builds(lambda vc: encode(Stable(vc)), st.integers(0, 40)),
    st.just(b"junk"),
)
chunks = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.lists(st.tuples(values, st.sampled_from([0, 0, 1, 1, 2])), min_size=1, max_size=12),
    ),
    max_size=6,
)
STABLE = encode(Stable(0))


def decoded(drawn: Any, *, native: bool) -> Any:
    """What a replica's chunks come to, with all that is remembered of them."""
    wire = WireDecoder(native=native)
    decoder = ReplicaDecoder("a", wire, topic="t", partitions=2)
    dead: list[DeadLetter] = []
    ends: list[int] = [0, 0]
    found = []
    for partition, chunk in drawn:
        records = [
            Record(value, ends[partition] + n, partition, incarnation_headers(i))
            for n, (value, i) in enumerate(chunk)
        ]
        ends[partition] += len(chunk)
        found += [
            (list(piece.elements), piece.following, piece.stable, piece.began)
            for piece in decoder.pieces(partition, records, dead, by_stable=True)
        ]
    return found, dead, sorted(decoder.parts()), decoder.incarnation, decoder.stale


@given(chunks)
@example([(0, [(STABLE, 1), (STABLE, 0), (STABLE, 1)])])
def test_the_engine_decodes_as_python_does(drawn: Any) -> None:
    """The example: a run of an older incarnation ends with the next record of the newer one."""
    assert decoded(drawn, native=True) == decoded(drawn, native=False)


def test_what_the_engine_leaves_to_python_is_counted_whatever_the_reason() -> None:
    plain, escaped = (
        encode(Insert(b'"a"', 1, 2)),
        encode(Insert(b'"a"', 1, 2)).replace(b'"a"', b'"\\u0061"'),
    )
    values = [plain, escaped, plain]
    records = [Record(value, at, 0, []) for at, value in enumerate(values)]
    for native, unusual in ((True, 1), (False, 0)):
        decoder = ReplicaDecoder("a", WireDecoder(native=native), topic="t", partitions=1)
        (piece,) = decoder.pieces(0, records, [])
        assert list(piece.elements) == 3 * [Insert(b'"a"', 1, 2)]
        assert decoder.unusual == unusual
    decoder = ReplicaDecoder(
        "a", WireDecoder(native=True), topic="t", partitions=1, routes=lambda _: 0
    )
    assert len([*decoder.pieces(0, records, [])]) == 1
    assert decoder.unusual == 3, "who is co-partitioned is decoded in Python"
