"""What is done to a drill under way, as actions of the Chaos Toolkit.

Workers are w1, w2, …, or `leader` and `standby`; replicas a, b, c, or `leader`; brokers 1, 2, 3, or
`output-leader` (of partition 0), `transaction-coordinator` (of who writes that) and
`group-coordinator` (of the workers). What an action gives is the name of whom it has met. A fault
that has not come about fails its action, and with it the drill: nothing would be known of what it
was to show.
"""

import asyncio
from collections.abc import Callable
from typing import Literal, TypeAlias, TypeVar

from lmerge_service.drills.environment import Rig, Unplayable
from lmerge_service.drills.proxy import API_KEYS, Direction, Moment, Proxy, toxic
from lmerge_service.drills.roles import Role
from lmerge_service.drills.session import current, on_rig

__all__ = (
    "abort_cutover",
    "add_toxic",
    "begin_cutover",
    "cut_broker",
    "cut_link",
    "damage_file",
    "decide_at_once",
    "delete_topic",
    "deploy_replica",
    "end_broker",
    "end_worker",
    "fill_disk",
    "finish",
    "heal",
    "jumpstart",
    "kill_broker",
    "kill_replica",
    "kill_worker",
    "limit_memory",
    "mend_links",
    "pause_broker",
    "pause_replica",
    "pause_worker",
    "record_output",
    "restart_replica",
    "restore_replica",
    "resume_broker",
    "resume_replica",
    "resume_worker",
    "start_broker",
    "start_missing_workers",
    "start_over",
    "start_worker",
    "strike_in_transaction",
    "throttle",
    "unthrottle",
)

T = TypeVar("T")
Node: TypeAlias = int | Role | None
"""A broker by its number or by what it does now; None: all."""

# --- replicas -------------------------------------------------------------------------------------


def kill_replica(replica: str) -> str:
    """kill -9."""
    return on_rig(lambda rig: rig.kill_replica(replica))


def restart_replica(replica: str) -> str:
    """It goes on where it stood."""
    return on_rig(lambda rig: rig.start_replica(replica))


def restore_replica(replica: str, records: int = 300) -> str:
    """It comes back with old data: its last records are said again, without a word of it."""
    return on_rig(lambda rig: rig.start_replica(replica, repeat=records))


def start_over(replica: str) -> str:
    """It has lost its memory, and says so: another incarnation, correct from now on."""
    return on_rig(lambda rig: rig.start_over(replica))


def deploy_replica(replica: str, **manner: float) -> str:
    """Another version of it, with these manners (`replica.FaultProfile`): lag, skew, lying,
    corrupt, leap."""
    return on_rig(lambda rig: rig.deploy(replica, manner))


def pause_replica(replica: str) -> str:
    """SIGSTOP."""
    return _plainly(lambda rig: rig.pause_replica(replica))


def resume_replica(replica: str) -> str:
    """SIGCONT."""
    return _plainly(lambda rig: rig.resume_replica(replica))


# --- workers --------------------------------------------------------------------------------------


def kill_worker(worker: str = "leader") -> str:
    """kill -9."""
    return on_rig(lambda rig: rig.kill_worker(worker))


def end_worker(worker: str = "leader") -> str:
    """SIGTERM, and its end is waited for."""
    return on_rig(lambda rig: rig.end_worker(worker))


def start_worker(worker: str) -> str:
    """A worker in the place of one that has gone; returns when it leads or follows."""
    on_rig(lambda rig: rig.start_worker(worker))
    return worker


def start_missing_workers() -> list[str]:
    """A worker in each place that is empty; returns when they lead or follow."""

    async def start(rig: Rig) -> list[str]:
        missing = rig.missing_workers()
        await asyncio.gather(*map(rig.start_worker, missing))
        return missing

    return on_rig(start)


def pause_worker(worker: str = "leader") -> str:
    """SIGSTOP."""

    def pause(rig: Rig) -> str:
        name = rig.name_of(worker)
        rig.workers[name].pause()
        return name

    return _plainly(pause)


def resume_worker(worker: str) -> str:
    """SIGCONT."""

    def resume(rig: Rig) -> str:
        name = rig.name_of(worker)
        rig.workers[name].resume()
        return name

    return _plainly(resume)


def limit_memory(worker: str = "leader", megabytes: int = 64) -> str:
    """It may have so much more address space than it has now (RLIMIT_AS)."""
    return _plainly(lambda rig: rig.limit_memory(worker, megabytes))


def throttle(name: str, share: float = 0.2) -> str:
    """A worker or a replica runs for this share of the time only."""
    return on_rig(lambda rig: rig.throttle(name, share))


def unthrottle(name: str) -> None:
    """As fast as before."""
    _plainly(lambda rig: rig.unthrottle(name))


def decide_at_once() -> list[str]:
    """All workers are asked for another policy at the same time, against the same version; what
    they have answered. The judge holds the answers to the log (K9)."""
    return on_rig(lambda rig: rig.decide_at_once())


def begin_cutover(leaving: str, coming: str, watch: int = 5_000) -> None:
    """One replica is to take another's place; `watch` is in milliseconds of the streams' time."""
    on_rig(lambda rig: rig.begin_cutover(leaving, coming, watch))


def abort_cutover() -> None:
    """The cutover that runs is not wanted any more."""
    on_rig(lambda rig: rig.abort_cutover())


def record_output(file: str) -> int:
    """What the output holds by now, as a checkpoint in the drill's folder; its bytes."""
    return on_rig(lambda rig: rig.record(file))


def damage_file(file: str, to: str, how: Literal["cut", "flip"] = "flip") -> int:
    """A copy of a file of the drill's folder that ends within its last line, or in which a byte in
    the middle is another one, so that a line is no element; where."""
    folder = current().rig.folder
    content = (folder / file).read_bytes()
    place, rest = len(content) - 5, b""
    if how == "flip":
        place = content.index(b'"vs":', len(content) // 2)
        rest = bytes([content[place] ^ 0x20]) + content[place + 1 :]
    (folder / to).write_bytes(content[:place] + rest)
    return place


def jumpstart(replica: str, file: str, refused: bool = False) -> str:
    """A new replica begins with a checkpoint; or, if that must be `refused`, nothing is attached.
    What the command said."""

    async def begin(rig: Rig) -> str:
        code, said = await rig.jumpstart(replica, file)
        if bool(code) != refused or (refused and replica in await rig.attached()):
            raise Unplayable(f"jumpstart ended with {code}: {said}")
        return said

    return on_rig(begin)


# --- the broker -----------------------------------------------------------------------------------


def kill_broker(node: Node = None) -> str:
    """kill -9; of one of several brokers, or of all."""
    return _named(on_rig(lambda rig: rig.kill_broker(node)))


def end_broker(node: Node = None) -> str:
    """SIGTERM, and its end is waited for."""
    return _named(on_rig(lambda rig: rig.end_broker(node)))


def start_broker(node: int | None = None) -> None:
    """With the data that it had, or all that are down; returns when they answer."""
    on_rig(lambda rig: rig.start_broker(node))


def pause_broker(node: Node = None) -> str:
    """SIGSTOP."""
    return _named(on_rig(lambda rig: rig.pause_broker(node)))


def resume_broker() -> None:
    """SIGCONT, to all."""
    _plainly(lambda rig: rig.resume_brokers())


def cut_broker(node: int | Role) -> str:
    """From all other brokers, in both directions: no byte passes between them, and nobody is
    told. Clients still reach it. `mend_links` mends it."""
    return _named(on_rig(lambda rig: rig.cut_broker(node)))


def _named(nodes: list[int]) -> str:
    return f"node {', '.join(map(str, nodes))}"


def fill_disk() -> None:
    """None of the brokers' files can grow any more, until they are started again."""
    _plainly(lambda rig: rig.fill_disk())


def delete_topic(topic: str) -> None:
    """With all that it holds."""
    on_rig(lambda rig: rig.delete_topic(topic))


# --- links ----------------------------------------------------------------------------------------


def add_toxic(link: str, kind: str, stream: Direction = "downstream", **attributes: int) -> str:
    """On the link of a worker or a replica, in toxiproxy's words (`proxy`); gives the
    toxic's name."""
    return _plainly(lambda rig: _proxy(rig, link).add(toxic(kind, stream, **attributes)))


def cut_link(link: str) -> str:
    """A black hole in both directions: no byte passes, and nobody is told. `leader` and `standby`
    are the worker's."""

    def cut(rig: Rig) -> str:
        name = link if link in rig.proxies else rig.name_of(link)
        rig.proxies[name].add(toxic("timeout", "upstream"))
        rig.proxies[name].add(toxic("timeout", "downstream"))
        return name

    return _plainly(cut)


def mend_links(link: str | None = None) -> None:
    """Whatever spoils a link, or all of them, goes."""
    on_rig(lambda rig: rig.mend_links() if link is None else _proxy(rig, link).reset())


def _proxy(rig: Rig, link: str) -> Proxy:
    name = link if link in rig.proxies else rig.name_of(link)
    return rig.proxies[name]


# --- transactions ---------------------------------------------------------------------------------


def strike_in_transaction(
    request: str,
    moment: Moment = "before",
    victim: Literal["worker", "broker"] = "worker",
    worker: str = "leader",
    node: Node = None,
) -> str:
    """kill -9 of the worker or of the broker (all, or one of several) at a step of the worker's
    transaction: `before` such a request reaches the broker, or `after`, when it has and is not
    answered yet."""
    if request not in API_KEYS:
        raise Unplayable(f"no request {request!r}: choose from {', '.join(API_KEYS)}")

    async def strike(rig: Rig) -> str:
        async def struck() -> None:
            await (rig.kill_worker(name) if victim == "worker" else rig.kill_broker(node))

        name = rig.set_trap(worker, API_KEYS[request], moment, struck)
        await rig.until_sprung()
        return name

    return on_rig(strike)


# --- the end --------------------------------------------------------------------------------------


def heal() -> None:
    """What is paused, slow or cut off is so no more."""

    async def heal_all(rig: Rig) -> None:
        await rig.mend_links()
        rig.resume_brokers()
        for worker in rig.workers.values():
            if worker.ended is None:
                worker.resume()
        for seat in rig.seats.values():
            rig.unthrottle(seat.name)
            rig.resume_replica(seat.name)

    on_rig(heal_all)


def finish() -> None:
    """The replicas say everything, and the output ends; what the service shows then is kept."""
    current().finish()


def _plainly(work: Callable[[Rig], T]) -> T:
    """What needs no waiting, on the rig's thread all the same."""

    async def done(rig: Rig) -> T:
        return work(rig)

    return on_rig(done)
