"""A total order of payloads, for whatever must choose among them in the same way everywhere.

Theory
    Payloads of one plan are of one shape, but a column may be null, and operators take payloads of
    any shape. So kinds are ordered first: None < bool < number < str < bytes < tuple. Numbers
    compare by value, an int and a float exactly; strings by code points; tuples item by item, a
    prefix first. It depends on no hash, hence on no PYTHONHASHSEED.

    >>> sorted(["b", 2, None, (1, "x"), 1.5, True, (1,), "a"], key=payload_order)
    [None, True, 1.5, 2, 'a', 'b', (1,), (1, 'x')]

Invariants
    O1  payload_order(p) = payload_order(q) exactly if p and q are the same payload: 1 and 1.0 are,
        True and 1 are not.

Cost
    One small tuple per value.
"""

from typing import Any, Final

__all__ = ("payload_order",)

_NUMBER: Final = 2
_TUPLE: Final = 5
_RANKS: Final = {type(None): 0, bool: 1, int: _NUMBER, float: _NUMBER, str: 3, bytes: 4}


def payload_order(payload: Any) -> tuple[Any, ...]:
    """A sort key for payloads made of None, bool, int, float, str, bytes and tuples of these.

    Raises:
        TypeError: a value is of another kind.
        ValueError: a value is NaN, which has no place in any order.
    """
    kind = type(payload)
    rank = _RANKS.get(kind)
    if rank is None:
        if isinstance(payload, tuple):
            return (_TUPLE, tuple([payload_order(item) for item in payload]))
        raise TypeError(f"a payload of type {kind.__name__} has no place in the order")
    if not rank:
        return (0,)
    if payload != payload:
        raise ValueError("NaN has no place in the order")
    return (rank, payload)
