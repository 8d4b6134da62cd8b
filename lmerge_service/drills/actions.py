"""The faults and other steps of a drill, as actions of the Chaos Toolkit.

Workers are w1, w2, …, or `leader` and `standby`; replicas a, b, c, or `leader`; brokers 1, 2, 3, or
`output-leader` (of partition 0), `transaction-coordinator` (of its writer) and `group-coordinator`
(of the workers). An action returns the name of the process that it affected. A fault that could not
be injected fails its action, and with it the drill, which would prove nothing.
"""

import asyncio
import time
from itertools import cycle
from typing import Final, Literal

import psutil

from lmerge_service.drills.brokers import Node
from lmerge_service.drills.control_log_check import Answer
from lmerge_service.drills.environment import Environment
from lmerge_service.drills.plan import OUTPUT, DrillError
from lmerge_service.drills.proxy import API_KEYS, Direction, Moment, Proxy, Trap, toxic
from lmerge_service.drills.replica import FaultProfile
from lmerge_service.drills.roles import Role
from lmerge_service.drills.session import current, in_environment
from lmerge_service.kafka.topics import Topics

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

_REFUSED: Final = 409

# --- replicas -------------------------------------------------------------------------------------


@in_environment
async def kill_replica(env: Environment, replica: str) -> str:
    """kill -9."""
    return await env.kill_replica(replica)


@in_environment
async def restart_replica(env: Environment, replica: str, plan: int | None = None) -> str:
    """It continues where it was; one that runs a query, by another plan if that is given."""
    changes = {} if plan is None else {"plan": plan}
    return await env.start_replica(replica, **changes)


@in_environment
async def restore_replica(env: Environment, replica: str, records: int = 300) -> str:
    """It comes back from an old state and publishes its last records again, in the same
    incarnation."""
    return await env.start_replica(replica, repeat=records)


@in_environment
async def start_over(env: Environment, replica: str) -> str:
    """It has lost its state and starts a new incarnation, which is correct from now on, without the
    events that have ended before."""
    incarnation = env.replica(replica).part.incarnation + 1
    return await env.start_replica(replica, incarnation=incarnation, joining_at=_now())


@in_environment
async def deploy_replica(env: Environment, /, replica: str, **manner: float) -> str:
    """Another version of it, with these manners (`replica.FaultProfile`): lag, skew, lying,
    corrupt, leap. From now on it is not trusted, unless only its delay or its clock is wrong."""
    slot, profile = env.replica(replica), FaultProfile(**manner)
    if profile.lying or profile.leap:
        slot.bad_since = _now()
    return await env.start_replica(slot.name, manner=profile)


@in_environment
async def pause_replica(env: Environment, replica: str) -> str:
    """SIGSTOP."""
    slot = env.replica(replica)
    slot.running.pause()
    return slot.name


@in_environment
async def resume_replica(env: Environment, replica: str) -> str:
    """SIGCONT."""
    slot = env.replica(replica)
    if slot.process is not None:
        slot.process.resume()
    return slot.name


def _now() -> int:
    return int(time.time() * 1_000)


# --- workers --------------------------------------------------------------------------------------


@in_environment
async def kill_worker(env: Environment, worker: str = "leader") -> str:
    """kill -9."""
    return await env.kill_worker(worker)


@in_environment
async def end_worker(env: Environment, worker: str = "leader") -> str:
    """SIGTERM, and its end is waited for."""
    return await env.end_worker(worker)


@in_environment
async def start_worker(env: Environment, worker: str) -> str:
    """A worker in the place of one that has gone; returns when it leads or follows."""
    await env.start_worker(worker)
    return worker


@in_environment
async def start_missing_workers(env: Environment) -> list[str]:
    """A worker in each place that is empty; returns when they lead or follow."""
    missing = env.missing_workers()
    await asyncio.gather(*map(env.start_worker, missing))
    return missing


@in_environment
async def pause_worker(env: Environment, worker: str = "leader") -> str:
    """SIGSTOP."""
    name = env.name_of(worker)
    env.workers[name].pause()
    return name


@in_environment
async def resume_worker(env: Environment, worker: str) -> str:
    """SIGCONT."""
    name = env.name_of(worker)
    env.workers[name].resume()
    return name


@in_environment
async def limit_memory(env: Environment, worker: str = "leader", megabytes: int = 64) -> str:
    """It may have so much more address space than it has now (RLIMIT_AS)."""
    name = env.name_of(worker)
    process = psutil.Process(env.workers[name].pid)
    most = process.memory_info().vms + (megabytes << 20)
    process.rlimit(psutil.RLIMIT_AS, (most, most))
    return name


@in_environment
async def throttle(env: Environment, name: str, share: float = 0.2) -> str:
    """A worker or a replica runs for this share of the time only."""
    return await env.throttle(name, share)


@in_environment
async def unthrottle(env: Environment, name: str) -> None:
    """As fast as before."""
    env.unthrottle(name)


# --- decisions ------------------------------------------------------------------------------------


@in_environment
async def decide_at_once(env: Environment) -> list[str]:
    """Requests another policy from all workers at the same time, against the same version; returns
    their answers: `holds`, or why it was refused. The judge compares them with the control log
    (K9)."""
    version = (await env.decider().running()).version
    requests = zip(env.workers, cycle(("eager", "lazy")), strict=False)
    answers = [await each for each in asyncio.as_completed(
        [_decide(env, name, adjust, version) for name, adjust in requests]
    )]  # fmt: skip
    env.answers += answers
    return sorted(answer.refused or "holds" for answer in answers)


async def _decide(env: Environment, name: str, adjust: str, version: int) -> Answer:
    policy = {"insert": "first", "adjust": adjust, "stable": env.plan.policy.get("stable", "max")}
    document = {**policy, "expects": version, "who": name}
    worker = env.decider(name)
    answer = await worker.request("policy", document, env.token, refused=_REFUSED)
    return Answer(answer["id"], answer["version"], answer.get("error"))


@in_environment
async def begin_cutover(env: Environment, leaving: str, coming: str, watch: int = 5_000) -> None:
    """One replica is to take another's place; `watch` is in milliseconds of the streams' time."""
    document = {"leaving": leaving, "coming": coming, "watch": watch}
    await env.decider().request("cutover/begin", document, env.token)


@in_environment
async def abort_cutover(env: Environment) -> None:
    """Aborts the running cutover."""
    await env.decider().request("cutover/abort", {}, env.token)


# --- checkpoints ----------------------------------------------------------------------------------


@in_environment
async def record_output(env: Environment, file: str) -> int:
    """Saves the output's current content as a checkpoint in the drill's folder; returns its size in
    bytes."""
    bootstrap = env.brokers.bootstrap
    reading = await env.stage.lmerge("read", OUTPUT, "--bootstrap", bootstrap, log=f"{file}.raw")
    if await reading.wait():
        raise DrillError(f"the output cannot be recorded: {reading.log_tail()}")
    lines = reading.log.read_bytes().splitlines(keepends=True)
    # The command's messages are in the same log, as lines that are no elements.
    recorded = b"".join(line for line in lines if line.startswith(b'{"op"'))
    return (env.folder / file).write_bytes(recorded)


@in_environment
async def damage_file(
    env: Environment, file: str, to: str, how: Literal["cut", "flip"] = "flip"
) -> int:
    """A copy of a file of the drill's folder that ends within its last line, or in which a byte in
    the middle is another one, so that a line is no element; where."""
    content = (env.folder / file).read_bytes()
    place, rest = len(content) - 5, b""
    if how == "flip":
        place = content.index(b'"vs":', len(content) // 2)
        rest = bytes([content[place] ^ 0x20]) + content[place + 1 :]
    (env.folder / to).write_bytes(content[:place] + rest)
    return place


@in_environment
async def jumpstart(env: Environment, replica: str, file: str, refused: bool = False) -> str:
    """A new replica begins with a checkpoint; or, if that must be `refused`, nothing is attached.
    Returns the command's output."""
    starting = await env.stage.lmerge(
        "jumpstart", replica, env.topic(replica), "--from", str(env.folder / file),
        "--bootstrap", env.brokers.bootstrap, "--at", env.decider().address,
        "--token-file", str(env.token_file), log=f"jumpstart-{file}.log",
    )  # fmt: skip
    code, text = await starting.wait(), starting.log_tail()
    if bool(code) != refused or (refused and replica in await env.decider().attached()):
        raise DrillError(f"jumpstart ended with {code}: {text}")
    return text


# --- the broker -----------------------------------------------------------------------------------


@in_environment
async def kill_broker(env: Environment, node: Node = None) -> str:
    """kill -9; of one of several brokers, or of all."""
    return await env.brokers.kill(node)


@in_environment
async def end_broker(env: Environment, node: Node = None) -> str:
    """SIGTERM, and its end is waited for."""
    return await env.brokers.end(node)


@in_environment
async def start_broker(env: Environment, node: int | None = None) -> None:
    """With the data that it had, or all that are down; returns when they answer."""
    await env.brokers.start(node)


@in_environment
async def pause_broker(env: Environment, node: Node = None) -> str:
    """SIGSTOP."""
    return await env.brokers.pause(node)


@in_environment
async def resume_broker(env: Environment) -> None:
    """SIGCONT, to all."""
    env.brokers.resume()


@in_environment
async def cut_broker(env: Environment, node: int | Role) -> str:
    """Partitions it from all other brokers: bytes between them are dropped silently in both
    directions. Clients still reach it. `mend_links` ends it."""
    return await env.brokers.cut(node)


@in_environment
async def fill_disk(env: Environment) -> None:
    """None of the brokers' files can grow any more, until they are started again."""
    env.brokers.fill_disk()


@in_environment
async def delete_topic(env: Environment, topic: str) -> None:
    """With all that it holds."""
    async with Topics(env.connection) as topics:
        await topics.delete(topic)


# --- links ----------------------------------------------------------------------------------------


@in_environment
async def add_toxic(
    env: Environment, /, link: str, kind: str, stream: Direction = "downstream", **attributes: int
) -> str:
    """On the link of a worker or a replica, by toxiproxy's names (`proxy`); returns the toxic's
    name."""
    return _proxy(env, link).add(toxic(kind, stream, **attributes))


@in_environment
async def cut_link(env: Environment, link: str) -> str:
    """Drops all bytes silently in both directions. `leader` and `standby` are workers."""
    name = _party(env, link)
    env.brokers.links[name].cut()
    return name


@in_environment
async def mend_links(env: Environment, link: str | None = None) -> None:
    """Removes all toxics of a link, or of all links."""
    if link is None:
        env.brokers.mend()
    else:
        _proxy(env, link).reset()


def _proxy(env: Environment, link: str) -> Proxy:
    return env.brokers.links[_party(env, link)]


def _party(env: Environment, link: str) -> str:
    return link if link in env.brokers.links else env.name_of(link)


# --- transactions ---------------------------------------------------------------------------------


@in_environment
async def strike_in_transaction(
    env: Environment,
    request: str,
    moment: Moment = "before",
    victim: Literal["worker", "broker", "replica"] = "worker",
    worker: str = "leader",
    replica: str = "leader",
    node: Node = None,
) -> str:
    """kill -9 of the worker or of the broker (all, or one of several) at a step of the worker's
    transaction: `before` such a request reaches the broker, or `after`, when it has and is not
    answered yet. Or of a replica that runs a query, at a step of its own transaction."""
    if request not in API_KEYS:
        raise DrillError(f"no request {request!r}: choose from {', '.join(API_KEYS)}")
    struck = asyncio.Event()
    if victim == "replica":
        slot = env.replica(replica)
        if slot.plan is None:
            raise DrillError(f"replica {slot.name} runs no query, so that it has no transactions")
        name = slot.name
    else:
        name = env.name_of(worker)

    async def strike() -> bool:
        match victim:
            case "worker":
                await env.kill_worker(name)
            case "replica":
                await env.kill_replica(name)
            case "broker":
                await env.brokers.kill(node)
        struck.set()
        return False  # the connection ends

    env.brokers.links[name].trap = Trap(API_KEYS[request], moment, strike)
    await env.until(struck.is_set, "the trap to be sprung")
    return name


# --- the end --------------------------------------------------------------------------------------


@in_environment
async def heal(env: Environment) -> None:
    """Resumes, unthrottles and reconnects everything."""
    env.brokers.mend()
    env.brokers.resume()
    for worker in env.workers.values():
        worker.resume()
    for slot in env.slots.values():
        env.unthrottle(slot.name)
        if slot.process is not None:
            slot.process.resume()


def finish() -> None:
    """The replicas publish the rest, and the output ends; the final status, metrics and logs are
    kept."""
    current().finish()
