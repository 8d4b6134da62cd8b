"""The meaning of a JSON text, slowly and by other means: the standard library's parser and decimal.

Knows nothing of canonical text: two payloads are equal when their meanings are.
"""

import json
from collections.abc import Hashable
from decimal import Decimal, InvalidOperation
from typing import Any

MAX_DEPTH = 64


class RefusedError(Exception):
    pass


def meaning(raw: bytes, max_depth: int = MAX_DEPTH) -> Hashable:
    """A value that is equal for equal payloads, or None when the rule refuses `raw`."""
    try:
        return tagged(parsed(raw), max_depth)
    except (RefusedError, UnicodeError, ValueError, ArithmeticError):
        return None


def parsed(raw: bytes) -> Any:
    """Objects are `Pairs`, numbers `Decimal`s; a key given twice is still there twice."""
    return json.loads(
        raw.decode(),
        object_pairs_hook=Pairs,
        parse_int=Integer,
        parse_float=number,
        parse_constant=_refused,
    )


class Integer(Decimal):
    """A number written without fraction and exponent."""


def number(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent beyond decimal's own, which is the largest there is
        if Decimal(text.lower().partition("e")[0]) == 0:
            return Decimal(0)
        raise RefusedError from None


class Pairs(list[tuple[str, Any]]):
    pass


def tagged(value: Any, depth: int) -> Hashable:
    match value:
        case None | True | False:
            return "literal", str(value)
        case str():
            value.encode()
            return "string", value
        case Decimal():
            return "number", carried(value)
        case Pairs():
            names = [name for name, _ in value]
            if len(set(names)) < len(names) or depth == 0:
                raise RefusedError
            assert all(name.encode() is not None for name in names)
            return "object", frozenset((name, tagged(v, depth - 1)) for name, v in value)
        case list():
            if depth == 0:
                raise RefusedError
            return "array", tuple(tagged(item, depth - 1) for item in value)
    raise AssertionError(value)


def carried(number: Decimal) -> Decimal:
    if -(2**63) <= number < 2**63 and number == int(number):
        return number
    if Decimal(repr(float(number))) == number:
        return number
    raise RefusedError


def _refused(text: str) -> None:
    raise RefusedError


def element_meaning(record: bytes) -> Hashable:
    """(op, the payload's meaning, times), or None when the record is no element."""
    try:
        pairs = parsed(record)
    except (RefusedError, ValueError):
        return None
    if not isinstance(pairs, Pairs) or len(dict(pairs)) < len(pairs):
        return None
    fields = dict(pairs)
    try:
        match fields:
            case {"op": "insert", "payload": payload, "vs": vs, "ve": ve} if len(fields) == 4:
                element: tuple[Any, ...] = ("insert", tagged(payload, MAX_DEPTH), time(vs), end(ve))
                legal = element[2] < element[3]
            case {"op": "adjust", "payload": payload, "vs": vs, "vold": vold, "ve": ve} if (
                len(fields) == 5
            ):
                element = ("adjust", tagged(payload, MAX_DEPTH), time(vs), end(vold), end(ve))
                legal = element[2] < element[3] and element[2] <= element[4]
            case {"op": "stable", "vc": vc} if len(fields) == 2:
                element, legal = ("stable", end(vc)), True
            case _:
                return None
    except (RefusedError, ValueError, ArithmeticError):
        return None
    return element if legal else None


def time(value: Any) -> int:
    if not isinstance(value, Integer) or not -(2**63) <= value < 2**63:
        raise RefusedError
    return int(value)


def end(value: Any) -> int:
    return 2**63 - 1 if value is None else time(value)
