"""`lmerge publish` and `lmerge audit kafka:TOPIC`, through a real broker."""

from collections.abc import Callable
from pathlib import Path

from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from tests.cli.conftest import Lmerge
from tests.offline.streams import on_the_wire, write

STREAM: list[Element] = [
    *(Insert(f"{n}", n, n + 9) for n in range(50)),
    Adjust("49", 49, 58, 60),
    Stable(40),
    Stable(INFINITY),
]


def test_a_published_stream_means_what_its_file_means(
    lmerge: Lmerge, bootstrap: str, topic_name: Callable[..., str]
) -> None:
    at, topic = ("--bootstrap", bootstrap), topic_name()
    write(Path("stream"), map(on_the_wire, STREAM))
    write(Path("other"), map(on_the_wire, STREAM[1:]))
    published = lmerge("publish", "stream", topic, "--partitions", "2", *at)
    assert (published.code, published.out) == (0, "")
    assert published.err == f"53 elements of stream are in {topic}\n"
    same = lmerge("audit", f"kafka:{topic}", "stream", *at)
    assert (same.code, same.err) == (0, "")
    assert same.out.splitlines()[0] == (
        f"kafka:{topic}: legal, 50 events by 50 inserts, 1 adjusts, 4 stables; complete"
    )
    other = lmerge("audit", "other", f"kafka:{topic}", *at)
    assert other.code == 1
    assert f'payload "0" vs 0: no event in other, ve 9 in kafka:{topic}' in other.out


def test_a_topic_that_is_not_there_is_named(
    lmerge: Lmerge, bootstrap: str, topic_name: Callable[..., str]
) -> None:
    topic = topic_name()
    done = lmerge("audit", f"kafka:{topic}", "kafka:x", "--bootstrap", bootstrap)
    assert (done.code, done.out) == (2, "")
    assert done.error == f"kafka:{topic}: there is no such topic at {bootstrap}"
