"""Sharing tasks out: each has one holder, what is warm stays warm, and nothing moves in vain."""

import random
from collections import Counter
from collections.abc import Mapping

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.kafka.assignor import Member, Share, share

TASKS = 6


@st.composite
def groups(draw: st.DrawFn) -> dict[str, Member]:
    """Members with any claims, true or not."""
    some = st.sets(st.integers(0, TASKS + 1), max_size=TASKS)
    warm = st.dictionaries(st.integers(0, TASKS - 1), st.integers(0, 3), max_size=TASKS)
    members = draw(
        st.lists(
            st.builds(
                Member,
                worker=st.sampled_from(["a", "b", "c"]),
                standby_only=st.booleans(),
                generation=st.integers(-1, 3),
                active=some,
                standby=some,
                promised=some,
                warm=warm,
            ),
            min_size=1,
            max_size=5,
        )
    )
    return {f"id-{place}": member for place, member in enumerate(members)}


def taken(
    members: Mapping[str, Member], shares: Mapping[str, Share], *, warm: bool
) -> dict[str, Member]:
    """The members after they took their shares, with everything they follow warm or nothing."""
    return {
        id_: Member(
            members[id_].worker,
            members[id_].standby_only,
            generation=9,
            active=set(mine.active),
            standby=set(mine.standby),
            promised=set(mine.promised),
            warm=dict.fromkeys([*mine.active, *mine.standby], 0) if warm else {},
        )
        for id_, mine in shares.items()
    }


def holders(shares: Mapping[str, Share]) -> dict[int, str]:
    return {task: id_ for id_, mine in shares.items() for task in mine.active}


def regular(members: Mapping[str, Member]) -> list[str]:
    ids = [id_ for id_, member in members.items() if not member.standby_only]
    return ids or list(members)


def spread(counts: Mapping[str, int]) -> int:
    return max(counts.values()) - min(counts.values())


@given(groups(), st.integers(0, 3))
def test_each_task_has_one_holder_and_other_members_as_standbys(
    members: dict[str, Member], standbys: int
) -> None:
    shares = share(members, TASKS, standbys)
    assert shares.keys() == members.keys()
    active = Counter(task for mine in shares.values() for task in mine.active)
    assert active == dict.fromkeys(range(TASKS), 1)
    for mine in shares.values():
        assert not set(mine.active) & set(mine.standby)
        assert set(mine.promised) <= set(mine.standby)
        assert sorted(mine.active + mine.standby) == sorted({*mine.active, *mine.standby})
    following = Counter(task for mine in shares.values() for task in mine.standby)
    promised = Counter(task for mine in shares.values() for task in mine.promised)
    idle = [id_ for id_, mine in shares.items() if not mine.active and not mine.promised]
    for task in range(TASKS):
        wanted = min(standbys, len(members) - 1) if standbys else min(1, len(idle))
        assert promised[task] <= 1
        assert wanted <= following[task] <= min(wanted + promised[task], len(members) - 1)
    if not standbys:
        assert all(id_ in idle or mine.standby == mine.promised for id_, mine in shares.items())


@given(groups())
def test_homes_are_balanced_among_the_regular_members(members: dict[str, Member]) -> None:
    shares = share(members, TASKS)
    homes = holders(shares) | {task: id_ for id_, s in shares.items() for task in s.promised}
    counts = Counter(homes.values())
    assert counts.keys() <= set(regular(members))
    assert spread({id_: counts[id_] for id_ in regular(members)}) <= 1


@given(groups())
def test_a_standby_only_member_holds_only_what_no_other_is_warm_for(
    members: dict[str, Member],
) -> None:
    for task, id_ in holders(share(members, TASKS)).items():
        if id_ not in regular(members):
            assert not any(task in members[other].warm for other in regular(members))


@given(groups())
def test_a_task_goes_to_a_cold_member_only_if_nobody_else_has_it(
    members: dict[str, Member],
) -> None:
    for task, id_ in holders(share(members, TASKS)).items():
        if task not in members[id_].warm and task not in members[id_].active:
            assert not any(task in each.warm or task in each.active for each in members.values())


@given(groups(), st.integers(0, 2), st.integers(0, 9))
def test_the_order_of_the_members_does_not_matter(
    members: dict[str, Member], standbys: int, seed: int
) -> None:
    shuffled = list(members.items())
    random.Random(seed).shuffle(shuffled)
    assert share(dict(shuffled), TASKS, standbys) == share(members, TASKS, standbys)


@given(groups(), st.integers(0, 2))
def test_sharing_again_changes_nothing_while_nothing_gets_warm(
    members: dict[str, Member], standbys: int
) -> None:
    shares = share(members, TASKS, standbys)
    for _ in range(3):
        members = taken(members, shares, warm=False)
        assert share(members, TASKS, standbys) == shares


@given(groups(), st.integers(0, 2))
def test_promises_are_kept_as_soon_as_all_is_warm_and_then_nothing_moves(
    members: dict[str, Member], standbys: int
) -> None:
    first = share(members, TASKS, standbys)
    promised = {task: id_ for id_, mine in first.items() for task in mine.promised}
    members = taken(members, first, warm=True)
    second = share(members, TASKS, standbys)
    assert holders(second) == holders(first) | promised
    assert not any(mine.promised for mine in second.values())
    assert share(taken(members, second, warm=True), TASKS, standbys) == second


def settled(members: dict[str, Member]) -> dict[str, Member]:
    """The members once everything is warm and at home."""
    for _ in range(3):
        members = taken(members, share(members, TASKS), warm=True)
    return members


@given(groups(), st.dictionaries(st.integers(0, TASKS - 1), st.integers(0, 3)))
def test_what_is_balanced_stays_where_it_is_whoever_is_warm(
    members: dict[str, Member], warm: dict[int, int]
) -> None:
    before = settled(members)
    members = {
        id_: Member(each.worker, each.standby_only, 9, each.active, warm=warm)
        for id_, each in before.items()
    }
    assert holders(share(members, TASKS)) == holders(share(before, TASKS))


@given(groups(), st.booleans())
def test_one_that_joins_cold_changes_no_holder_and_is_promised_its_part(
    members: dict[str, Member], standby_only: bool
) -> None:
    before = settled(members)
    joined = before | {"new": Member("new", standby_only)}
    shares = share(joined, TASKS)
    assert holders(shares) == holders(share(before, TASKS))
    moving = [id_ for id_, mine in shares.items() if mine.promised]
    if "new" not in regular(joined):
        assert not moving
    else:
        assert moving == ["new"]
        part = TASKS / len(regular(joined))
        assert part - 1 < len(shares["new"].promised) < part + 1


@given(groups(), st.data())
def test_what_a_member_leaves_is_taken_by_those_that_were_warm_for_it(
    members: dict[str, Member], data: st.DataObject
) -> None:
    before = settled(members)
    gone = data.draw(st.sampled_from(sorted(before)))
    left = {id_: member for id_, member in before.items() if id_ != gone}
    followed = {task for each in left.values() for task in each.warm}
    for task, id_ in holders(share(left, TASKS)).items() if left else ():
        assert task in left[id_].warm or task not in followed
    if len(left) > 0:
        assert followed == set(range(TASKS))


MANY, MOST = 64, 4


def moved(members: dict[str, Member], standbys: int, rng: random.Random) -> Counter[int]:
    """Shares until nothing changes any more, what is followed getting warm one by one; how often
    each task has got another holder. `members` are as they are then."""
    moves = Counter[int]()
    for _ in range(50):
        shares = share(members, MANY, standbys)
        before = {task: id_ for id_, each in members.items() for task in each.active}
        moves.update(t for t, id_ in holders(shares).items() if before.get(t) != id_)
        now = taken(members, shares, warm=True)
        for id_, each in now.items():
            cold = each.standby - members[id_].warm.keys()
            still = {task for task in cold if rng.random() < 0.3}
            warm = {task: 0 for task in each.warm if task not in still}
            now[id_] = msgspec.structs.replace(each, warm=warm)
        if now == members and not any(each.promised for each in now.values()):
            return moves
        members.clear()
        members.update(now)
    raise AssertionError("it never ends")


@given(st.integers(0, 1_000), st.integers(0, 2))
def test_of_64_tasks_only_those_move_that_must_when_one_of_4_comes_or_goes(
    seed: int, standbys: int
) -> None:
    members, rng = {"w0": Member("w0")}, random.Random(seed)
    moved(members, standbys, rng)
    for number in range(1, 7):
        if len(members) == MOST or (len(members) > 1 and rng.random() < 0.4):
            gone = members.pop(rng.choice(sorted(members)))
            assert moved(members, standbys, rng).keys() == gone.active
        else:
            members[f"w{number}"] = Member(f"w{number}")
            moves = moved(members, standbys, rng)
            assert len(moves) == moves.total() == MANY // len(members)
        assert spread({id_: len(each.active) for id_, each in members.items()}) <= 1


def test_a_cold_member_is_promised_its_part_and_gets_it_once_warm() -> None:
    a, b = Member("a", active={0, 1, 2, 3}), Member("b")
    first = share({"a": a, "b": b}, 4)
    assert first["a"] == Share(active=[0, 1, 2, 3], standby=[], promised=[])
    assert first["b"] == Share(active=[], standby=[0, 1, 2, 3], promised=[0, 1])
    half_warm = Member("b", standby={0, 1, 2, 3}, promised={0, 1}, warm={1: 7})
    second = share({"a": a, "b": half_warm}, 4)
    assert second["a"] == Share(active=[0, 2, 3], standby=[1], promised=[])
    assert second["b"] == Share(active=[1], standby=[0, 2, 3], promised=[0])


def test_a_dead_members_task_goes_to_its_warm_standby_and_not_to_the_idle_one() -> None:
    warm = Member("b", active={1}, standby={0}, warm={0: 2, 1: 0})
    idle = Member("c")
    shares = share({"b": warm, "c": idle}, 2)
    assert shares["b"].active == [0, 1]
    assert shares["c"] == Share(active=[], standby=[0, 1], promised=[0])


def test_a_standby_only_member_bridges_until_a_regular_one_is_warm() -> None:
    dr = Member("dr", standby_only=True, standby={0, 1}, warm={0: 0, 1: 0})
    alone = share({"dr": dr}, 2)
    assert alone["dr"].active == [0, 1]
    dr = Member("dr", standby_only=True, generation=4, active={0, 1}, warm={0: 0, 1: 0})
    joined = share({"dr": dr, "a": Member("a")}, 2)
    assert joined["dr"].active == [0, 1]
    assert joined["a"] == Share(active=[], standby=[0, 1], promised=[0, 1])
    ready = Member("a", standby={0, 1}, warm={0: 3, 1: 3})
    back = share({"dr": dr, "a": ready}, 2)
    assert back["a"].active == [0, 1]
    assert back["dr"] == Share(active=[], standby=[0, 1], promised=[])


def test_of_two_that_claim_a_task_the_later_claim_counts() -> None:
    stale = Member("a", generation=3, active={0})
    owner = Member("b", generation=5, active={0})
    assert holders(share({"x": stale, "y": owner}, 1)) == {0: "y"}


def test_the_least_behind_of_two_equally_loaded_standbys_takes_over() -> None:
    slow, fast = Member("a", warm={0: 9}), Member("b", warm={0: 1})
    assert holders(share({"x": slow, "y": fast}, 1)) == {0: "y"}


def test_standbys_are_spread() -> None:
    members = {id_: Member(id_) for id_ in "abcd"}
    shares = share(members, 12)
    assert [len(mine.active) for mine in shares.values()] == [3, 3, 3, 3]
    assert [len(mine.standby) for mine in shares.values()] == [3, 3, 3, 3]


def test_where_no_standbys_are_asked_for_who_leads_follows_nothing_and_who_does_not_does() -> None:
    busy = {id_: Member(id_) for id_ in "ab"}
    assert share(busy, 2, 0) == {
        "a": Share(active=[0], standby=[], promised=[]),
        "b": Share(active=[1], standby=[], promised=[]),
    }
    shares = share(busy | {"dr": Member("dr", standby_only=True)}, 2, 0)
    assert shares["dr"] == Share(active=[], standby=[0, 1], promised=[])
    assert [shares[id_].standby for id_ in "ab"] == [[], []]


def test_where_no_standbys_are_asked_for_a_task_still_moves_only_to_a_member_that_is_warm() -> None:
    a, b = Member("a", generation=1, active={0, 1}), Member("b")
    first = share({"a": a, "b": b}, 2, 0)
    assert first["a"] == Share(active=[0, 1], standby=[], promised=[])
    assert first["b"] == Share(active=[], standby=[0], promised=[0])
    warm = Member("b", standby={0}, promised={0}, warm={0: 0})
    second = share({"a": a, "b": warm}, 2, 0)
    assert second["a"] == Share(active=[1], standby=[], promised=[])
    assert second["b"] == Share(active=[0], standby=[], promised=[])


def test_nobody_is_given_nothing() -> None:
    assert share({}, 4) == {}
