"""Records that the engine decodes and encodes mean what the reference makes of them."""

from collections.abc import Iterator
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
from lmerge_engine import Batch, Decoder

from lmerge_service.elements import Element, Stable
from lmerge_service.errors import ElementError
from lmerge_service.formats.wire import WireDecoder
from tests.seeds import seeds

RULES: tuple[dict[str, Any], ...] = (
    {},
    {"nfc": True},
    {"drop_nulls": True},
    {"max_depth": 3},
    {"max_record_bytes": 60},
)


def _decoders(rules: dict[str, Any]) -> tuple[Decoder, WireDecoder]:
    native = Decoder(
        rules.get("nfc", False),
        rules.get("drop_nulls", False),
        rules.get("max_depth", 64),
        rules.get("max_record_bytes", 1 << 20),
    )
    return native, WireDecoder(**rules)


def _decoded(decoder: Decoder, record: bytes) -> list[Element]:
    """The record's element; none where the reference has to look."""
    found = decoder.empty()
    _, stable = decoder.take([SimpleNamespace(value=record, headers=[])], 0, (), found)
    return list(found) if stable is None else [Stable(stable)]


def _reference(decoder: WireDecoder, record: bytes) -> Element | None:
    try:
        return decoder.decode(record)
    except ElementError:
        return None


def _value(rng: Random, depth: int) -> Any:
    draw = rng.random()
    if depth and draw < 0.3:
        keys = rng.sample(["a", "b", "é", "aa", "", "op", "vs", "\u0301"], rng.randrange(4))
        return {key: _value(rng, depth - 1) for key in keys}
    if depth and draw < 0.4:
        return [_value(rng, depth - 1) for _ in range(rng.randrange(3))]
    return rng.choice(
        (
            *(None, True, False, 0, -1, 12, 1.5, -0.5, 0.001, 0.0001, 1e-5, 1e16, 1e17, 2.0, -0.0),
            *(123456789012345678, 2**63 - 1, -(2**63), "", "x", "Köln", "e\u0301", 'q"', "\n", "𝄞"),
            *(1234567.891, 0.1 + 0.2, 3.141592653589793, 100.25),
        )
    )


def _records(rng: Random) -> Iterator[bytes]:
    """Texts of elements, canonical and not, and texts that are nearly some."""
    payload = msgspec.json.encode(_value(rng, 4), order=rng.choice((None, "sorted")))
    vs, ends = rng.randrange(-50, 50), (b"null", b"%d" % rng.randrange(100), b"9223372036854775807")
    op = rng.choice((b"insert", b"adjust", b"stable"))
    fields = [
        b'"op":"%b"' % op,
        b'"payload":' + payload,
        b'"vs":%d' % vs,
        b'"vold":' + rng.choice(ends),
        b'"ve":' + rng.choice(ends),
        b'"vc":' + rng.choice(ends),
    ]
    kinds = {
        b"insert": fields[:3] + fields[4:5],
        b"adjust": fields[:5],
        b"stable": [fields[0], fields[5]],
    }
    kind = kinds[op] if rng.random() < 0.9 else rng.choice([*kinds.values(), fields])
    if rng.random() < 0.3:
        kind = rng.sample(kind, len(kind))
    gap = rng.choice((b"", b"", b"", b" ", b"\n\t"))
    yield b"{" + gap + (gap + b"," + gap).join(kind) + b"}" + gap
    record = bytearray(b"{" + b",".join(kind) + b"}")
    for _ in range(rng.randrange(3)):
        at = rng.randrange(len(record))
        record[at : at + rng.randrange(2)] = rng.choice(
            (b"", b'"', b"0", b"{", b"\\", b"\xff", b",")
        )
    yield bytes(record)


@seeds(5_000)
def test_what_the_engine_decodes_is_what_the_reference_does(seeds: range) -> None:
    taken = 0
    for seed in seeds:
        rng = Random(seed)
        native, reference = _decoders(rng.choice(RULES))
        for record in _records(rng):
            found = _decoded(native, record)
            if found:
                taken += 1
                assert found == [_reference(reference, record)], record
                assert [*Batch(found)] == found
    assert taken > len(seeds) / 3, "the engine hardly ever decodes"


def test_what_writers_write_is_decoded_natively() -> None:
    native, _ = _decoders({})
    for record in (
        b'{"op":"insert","payload":{"dest":"LAX","fare":120.5,"id":7},"vs":6,"ve":null}',
        b'{"op": "insert", "vs": 6, "ve": null, "payload": {"id": 7, "dest": "K\xc3\xb6ln"}}',
        b'{"op":"stable","vc":1356998400000}',
    ):
        assert len(_decoded(native, record)) == 1
