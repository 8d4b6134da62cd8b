"""The cluster's node that has a given role."""

from typing import Any, Final, Literal, TypeAlias, get_args

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError, LeaderNotAvailableError

from lmerge_service.errors import TransportError
from lmerge_service.kafka.connection import Connection, close_bounded, patient

__all__ = ("ROLES", "Role", "holder")

Role: TypeAlias = Literal["output-leader", "transaction-coordinator", "group-coordinator"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
_GROUP, _TRANSACTION = 0, 1
_SECONDS: Final = 60.0


async def holder(connection: Connection, role: Role, output: str, group: str) -> int:
    """The node that leads partition 0 of the output, or coordinates the transactions that write
    it, or the group of the workers.

    Raises:
        TransportError: no broker answers in a minute.
    """

    async def asked() -> int:
        admin = AIOKafkaAdminClient(**connection.arguments, request_timeout_ms=5_000)
        try:
            await admin.start()
            return await _ask(admin, role, output, group)
        except (KafkaError, TimeoutError) as error:
            # The broker that was asked may be down: retry with another one.
            raise LeaderNotAvailableError(repr(error)) from error
        finally:
            await close_bounded(admin.close())

    return await patient(asked, f"asking for the {role}", _SECONDS)


async def _ask(admin: AIOKafkaAdminClient, role: Role, output: str, group: str) -> int:
    match role:
        case "output-leader":
            [topic] = await admin.describe_topics([output])
            leaders: dict[int, Any] = {p["partition"]: p["leader"] for p in topic["partitions"]}
            if leaders[0] < 0:
                raise LeaderNotAvailableError(output)
            return int(leaders[0])
        case "transaction-coordinator":
            return int(await admin.find_coordinator(f"lmerge.{output}.0", _TRANSACTION))
        case "group-coordinator":
            return int(await admin.find_coordinator(group, _GROUP))
    raise TransportError(f"no such role: {role}", retriable=False)
