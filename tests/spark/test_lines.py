"""A file in pieces has the lines of the file."""

from io import BytesIO

from hypothesis import example, given
from hypothesis import strategies as st

from lmerge_service.spark.io import lines
from lmerge_service.spark.io.lines import lines_of

TEXTS = st.lists(st.binary(max_size=9) | st.just(b"\n"), max_size=12).map(b"".join)


def in_pieces(text: bytes, size: int) -> list[tuple[int, bytes]]:
    found = []
    for start in range(0, max(len(text), 1), size):
        for some, offsets in lines_of(BytesIO(text), start, start + size, limit=100):
            found += [*zip(offsets, some, strict=True)]
    return found


@given(TEXTS, st.integers(1, 12), st.integers(1, 5))
@example(b"", 1, 1)
@example(b"\n\n", 1, 1)
@example(b"abc", 2, 1)
def test_pieces_have_each_line_once_at_its_place(text: bytes, size: int, block: int) -> None:
    whole = text.split(b"\n")
    if not whole[-1]:
        whole.pop()
    before = lines._BLOCK_BYTES
    lines._BLOCK_BYTES = block  # type: ignore[misc]
    try:
        found = in_pieces(text, size)
    finally:
        lines._BLOCK_BYTES = before  # type: ignore[misc]
    assert [line for _, line in found] == whole
    assert all(text[at : at + len(line)] == line for at, line in found)
    assert all(at == 0 or text[at - 1 : at] == b"\n" for at, _ in found)


def test_a_line_without_end_is_cut_and_the_next_is_found() -> None:
    text = b"a\n" + b"x" * 5000 + b"\nb\n"
    before = lines._BLOCK_BYTES
    lines._BLOCK_BYTES = 64  # type: ignore[misc]
    try:
        found = in_pieces(text, 1 << 20)
    finally:
        lines._BLOCK_BYTES = before  # type: ignore[misc]
    [first, cut, last] = found
    assert (first, last) == ((0, b"a"), (5003, b"b"))
    assert cut[0] == 2
    assert 100 < len(cut[1]) <= 64 + 101
