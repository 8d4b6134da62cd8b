"""A broker that asks who we are: TLS with client certificates, SASL over TLS, and ACLs."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Int8, Int16, Int32, Schema, String

from lmerge_service.local.broker import SETTINGS, LocalBroker
from tests.certificates import Authority, Identity

__all__ = ("PASSWORD", "Acl", "Secured", "allow", "secured")

PASSWORD = "correct-horse-battery-staple"
"""Every user's."""

_MODULE = "org.apache.kafka.common.security"
_TOPIC, _GROUP, _TRANSACTIONAL_ID = 2, 3, 5
_LITERAL, _PREFIXED, _ALLOW = 3, 4, 3
_OPERATIONS = {"Read": 3, "Write": 4, "Create": 5, "Describe": 8, "DescribeConfigs": 10}
_RESOURCES = {"Topic": _TOPIC, "Group": _GROUP, "TransactionalId": _TRANSACTIONAL_ID}


@dataclass(frozen=True)
class Secured:
    """The broker, and whom it lets in: the client of `client`, and every user of `users`."""

    broker: LocalBroker
    folder: Path
    authority: Authority
    client: Identity


@contextmanager
def secured(folder: Path, users: Iterable[str]) -> Iterator[Secured]:
    """Listeners in the clear (all may), MUTUAL, SASL, EXPIRED and ELSEWHERE.

    `users` log in with PLAIN; `scram` logs in with SCRAM-SHA-256.
    """
    authority = Authority(folder)
    server = authority.sign("server")
    expired = authority.sign("expired", expired=True)
    elsewhere = authority.sign("elsewhere", "DNS:kafka.example")
    tls = {"MUTUAL": server, "SASL": server, "EXPIRED": expired, "ELSEWHERE": elsewhere}
    plain = " ".join(f'user_{name}="{PASSWORD}"' for name in users)
    settings = {
        "listener.security.protocol.map": SETTINGS["listener.security.protocol.map"]
        + ",MUTUAL:SSL,SASL:SASL_SSL,EXPIRED:SSL,ELSEWHERE:SSL",
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.truststore.type": "PEM",
        "listener.name.mutual.ssl.truststore.location": str(authority.certificate),
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.sasl.plain.sasl.jaas.config": (
            f"{_MODULE}.plain.PlainLoginModule required {plain};"
        ),
        "listener.name.sasl.scram-sha-256.sasl.jaas.config": (
            f"{_MODULE}.scram.ScramLoginModule required;"
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:CN=client;User:scram;User:plain",
    }
    for name, identity in tls.items():
        settings[f"listener.name.{name.lower()}.ssl.keystore.type"] = "PEM"
        settings[f"listener.name.{name.lower()}.ssl.keystore.location"] = str(identity.both)
    scram = f"SCRAM-SHA-256=[name=scram,password={PASSWORD}]"
    with LocalBroker(
        folder / "kafka",
        settings=settings,
        listeners=tuple(tls),
        formatting=("--add-scram", scram),
    ) as broker:
        yield Secured(broker, folder, authority, authority.sign("client"))


class Acl(NamedTuple):
    """What a user may do with a resource; a name that ends in * is a prefix."""

    operation: str
    resource: str
    name: str


class _Created(Response):  # type: ignore[misc]
    API_KEY = 30
    API_VERSION = 1
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("results", Array(("error_code", Int16), ("error_message", String("utf-8")))),
    )


class _CreateAcls(RequestStruct):  # type: ignore[misc]
    API_KEY = 30
    API_VERSION = 1
    RESPONSE_TYPE = _Created
    SCHEMA = Schema(
        (
            "creations",
            Array(
                ("resource_type", Int8),
                ("resource_name", String("utf-8")),
                ("pattern_type", Int8),
                ("principal", String("utf-8")),
                ("host", String("utf-8")),
                ("operation", Int8),
                ("permission", Int8),
            ),
        )
    )


class CreateAcls(Request[_CreateAcls]):  # type: ignore[misc]
    """Kafka's own request, which the client does not have."""

    API_KEY = 30

    def __init__(self, acls: Iterable[tuple[str, Acl]]):
        self._creations = [
            (
                _RESOURCES[acl.resource],
                acl.name.removesuffix("*"),
                _PREFIXED if acl.name.endswith("*") else _LITERAL,
                f"User:{user}",
                "*",
                _OPERATIONS[acl.operation],
                _ALLOW,
            )
            for user, acl in acls
        ]

    def build(self, request_struct_class: type[_CreateAcls]) -> _CreateAcls:
        return request_struct_class(self._creations)


def allow(broker: LocalBroker, acls: Iterable[tuple[str, Acl]]) -> None:
    """Gives users rights."""

    async def create() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        try:
            response = await admin._send_request(CreateAcls(acls))
        finally:
            await admin.close()
        assert all(code == 0 for code, _ in response.results), response.results

    asyncio.run(create())
