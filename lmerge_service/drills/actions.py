"""The faults and other steps of a drill, as actions of the Chaos Toolkit.

Workers are w1, w2, …, or `leader` and `standby`; replicas a, b, c, or `leader`; brokers 1, 2, 3, or
`output-leader` (of partition 0), `transaction-coordinator` (of its writer) and `group-coordinator`
(of the workers). An action returns the name of the process that it affected. A fault that could not
be injected fails its action, and with it the drill, which would prove nothing.
"""

import asyncio
from collections.abc import Callable
from typing import Literal, TypeAlias, TypeVar

from lmerge_service.drills.environment import DrillError, Environment
from lmerge_service.drills.proxy import API_KEYS, Direction, Moment, Proxy, toxic
from lmerge_service.drills.roles import Role
from lmerge_service.drills.session import current, in_environment

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
    return in_environment(lambda env: env.kill_replica(replica))


def restart_replica(replica: str) -> str:
    """It continues where it was."""
    return in_environment(lambda env: env.start_replica(replica))


def restore_replica(replica: str, records: int = 300) -> str:
    """It comes back from an old state and publishes its last records again, in the same
    incarnation."""
    return in_environment(lambda env: env.start_replica(replica, repeat=records))


def start_over(replica: str) -> str:
    """It has lost its state and starts a new incarnation, which is correct from now on."""
    return in_environment(lambda env: env.start_over(replica))


def deploy_replica(replica: str, **manner: float) -> str:
    """Another version of it, with these manners (`replica.FaultProfile`): lag, skew, lying,
    corrupt, leap."""
    return in_environment(lambda env: env.deploy(replica, manner))


def pause_replica(replica: str) -> str:
    """SIGSTOP."""
    return _synchronously(lambda env: env.pause_replica(replica))


def resume_replica(replica: str) -> str:
    """SIGCONT."""
    return _synchronously(lambda env: env.resume_replica(replica))


# --- workers --------------------------------------------------------------------------------------


def kill_worker(worker: str = "leader") -> str:
    """kill -9."""
    return in_environment(lambda env: env.kill_worker(worker))


def end_worker(worker: str = "leader") -> str:
    """SIGTERM, and its end is waited for."""
    return in_environment(lambda env: env.end_worker(worker))


def start_worker(worker: str) -> str:
    """A worker in the place of one that has gone; returns when it leads or follows."""
    in_environment(lambda env: env.start_worker(worker))
    return worker


def start_missing_workers() -> list[str]:
    """A worker in each place that is empty; returns when they lead or follow."""

    async def start(env: Environment) -> list[str]:
        missing = env.missing_workers()
        await asyncio.gather(*map(env.start_worker, missing))
        return missing

    return in_environment(start)


def pause_worker(worker: str = "leader") -> str:
    """SIGSTOP."""

    def pause(env: Environment) -> str:
        name = env.name_of(worker)
        env.workers[name].pause()
        return name

    return _synchronously(pause)


def resume_worker(worker: str) -> str:
    """SIGCONT."""

    def resume(env: Environment) -> str:
        name = env.name_of(worker)
        env.workers[name].resume()
        return name

    return _synchronously(resume)


def limit_memory(worker: str = "leader", megabytes: int = 64) -> str:
    """It may have so much more address space than it has now (RLIMIT_AS)."""
    return _synchronously(lambda env: env.limit_memory(worker, megabytes))


def throttle(name: str, share: float = 0.2) -> str:
    """A worker or a replica runs for this share of the time only."""
    return in_environment(lambda env: env.throttle(name, share))


def unthrottle(name: str) -> None:
    """As fast as before."""
    _synchronously(lambda env: env.unthrottle(name))


def decide_at_once() -> list[str]:
    """Requests another policy from all workers at the same time, against the same version; returns
    their answers. The judge compares the answers with the control log (K9)."""
    return in_environment(lambda env: env.decide_at_once())


def begin_cutover(leaving: str, coming: str, watch: int = 5_000) -> None:
    """One replica is to take another's place; `watch` is in milliseconds of the streams' time."""
    in_environment(lambda env: env.begin_cutover(leaving, coming, watch))


def abort_cutover() -> None:
    """Aborts the running cutover."""
    in_environment(lambda env: env.abort_cutover())


def record_output(file: str) -> int:
    """Saves the output's current content as a checkpoint in the drill's folder; returns its size in
    bytes."""
    return in_environment(lambda env: env.record(file))


def damage_file(file: str, to: str, how: Literal["cut", "flip"] = "flip") -> int:
    """A copy of a file of the drill's folder that ends within its last line, or in which a byte in
    the middle is another one, so that a line is no element; where."""
    folder = current().environment.folder
    content = (folder / file).read_bytes()
    place, rest = len(content) - 5, b""
    if how == "flip":
        place = content.index(b'"vs":', len(content) // 2)
        rest = bytes([content[place] ^ 0x20]) + content[place + 1 :]
    (folder / to).write_bytes(content[:place] + rest)
    return place


def jumpstart(replica: str, file: str, refused: bool = False) -> str:
    """A new replica begins with a checkpoint; or, if that must be `refused`, nothing is attached.
    Returns the command's output."""

    async def begin(env: Environment) -> str:
        code, text = await env.jumpstart(replica, file)
        if bool(code) != refused or (refused and replica in await env.attached()):
            raise DrillError(f"jumpstart ended with {code}: {text}")
        return text

    return in_environment(begin)


# --- the broker -----------------------------------------------------------------------------------


def kill_broker(node: Node = None) -> str:
    """kill -9; of one of several brokers, or of all."""
    return _named(in_environment(lambda env: env.kill_broker(node)))


def end_broker(node: Node = None) -> str:
    """SIGTERM, and its end is waited for."""
    return _named(in_environment(lambda env: env.end_broker(node)))


def start_broker(node: int | None = None) -> None:
    """With the data that it had, or all that are down; returns when they answer."""
    in_environment(lambda env: env.start_broker(node))


def pause_broker(node: Node = None) -> str:
    """SIGSTOP."""
    return _named(in_environment(lambda env: env.pause_broker(node)))


def resume_broker() -> None:
    """SIGCONT, to all."""
    _synchronously(lambda env: env.resume_brokers())


def cut_broker(node: int | Role) -> str:
    """Partitions it from all other brokers: bytes between them are dropped silently in both
    directions. Clients still reach it. `mend_links` ends it."""
    return _named(in_environment(lambda env: env.cut_broker(node)))


def _named(nodes: list[int]) -> str:
    return f"node {', '.join(map(str, nodes))}"


def fill_disk() -> None:
    """None of the brokers' files can grow any more, until they are started again."""
    _synchronously(lambda env: env.fill_disk())


def delete_topic(topic: str) -> None:
    """With all that it holds."""
    in_environment(lambda env: env.delete_topic(topic))


# --- links ----------------------------------------------------------------------------------------


def add_toxic(link: str, kind: str, stream: Direction = "downstream", **attributes: int) -> str:
    """On the link of a worker or a replica, by toxiproxy's names (`proxy`); returns the toxic's
    name."""
    return _synchronously(lambda env: _proxy(env, link).add(toxic(kind, stream, **attributes)))


def cut_link(link: str) -> str:
    """Drops all bytes silently in both directions. `leader` and `standby` are workers."""

    def cut(env: Environment) -> str:
        name = link if link in env.proxies else env.name_of(link)
        env.proxies[name].add(toxic("timeout", "upstream"))
        env.proxies[name].add(toxic("timeout", "downstream"))
        return name

    return _synchronously(cut)


def mend_links(link: str | None = None) -> None:
    """Removes all toxics of a link, or of all links."""
    in_environment(lambda env: env.mend_links() if link is None else _proxy(env, link).reset())


def _proxy(env: Environment, link: str) -> Proxy:
    name = link if link in env.proxies else env.name_of(link)
    return env.proxies[name]


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
        raise DrillError(f"no request {request!r}: choose from {', '.join(API_KEYS)}")

    async def strike(env: Environment) -> str:
        async def struck() -> None:
            await (env.kill_worker(name) if victim == "worker" else env.kill_broker(node))

        name = env.set_trap(worker, API_KEYS[request], moment, struck)
        await env.until_sprung()
        return name

    return in_environment(strike)


# --- the end --------------------------------------------------------------------------------------


def heal() -> None:
    """Resumes, unthrottles and reconnects everything."""

    async def heal_all(env: Environment) -> None:
        await env.mend_links()
        env.resume_brokers()
        for worker in env.workers.values():
            if worker.ended is None:
                worker.resume()
        for slot in env.slots.values():
            env.unthrottle(slot.name)
            env.resume_replica(slot.name)

    in_environment(heal_all)


def finish() -> None:
    """The replicas publish the rest, and the output ends; the final status, metrics and logs are
    kept."""
    current().finish()


def _synchronously(work: Callable[[Environment], T]) -> T:
    """Runs a synchronous function on the environment's thread."""

    async def done(env: Environment) -> T:
        return work(env)

    return in_environment(done)
