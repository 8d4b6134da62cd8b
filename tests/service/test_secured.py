"""A broker that asks who we are: the worker is let in by each of the ways, exactly as far as it
must be, and names in one line what keeps it out."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

from lmerge_service.cli import main
from lmerge_service.config.topology import load
from lmerge_service.elements import INFINITY, Element, Insert, Stable
from lmerge_service.errors import TransportError
from lmerge_service.service import process
from lmerge_service.service import worker as service
from lmerge_service.tdb import TDB
from tests.certificates import Authority
from tests.kafka.secured import PASSWORD, Acl, Secured, allow, secured
from tests.service.cluster import Merge, Worker

pytestmark = pytest.mark.kafka

STREAM: list[Element] = [Insert(b'"x"', 1, 5), Stable(INFINITY)]
MEANING = TDB([(b'"x"', 1, 5)], INFINITY)
WRONG = "wrong-horse"
TOKEN = "control-token-of-the-tests"

LEAST = (  # docs/operations/security.md, "What the worker may do"
    Acl("Read", "Topic", "{replica}"),
    Acl("Create", "Topic", "{output}*"),
    Acl("Read", "Topic", "{output}*"),
    Acl("Write", "Topic", "{output}*"),
    Acl("DescribeConfigs", "Topic", "{output}*"),
    Acl("Write", "TransactionalId", "lmerge.{output}.*"),
    Acl("Read", "Group", "lmerge.{name}.workers"),
)
LIMITED = (*(f"without{number}" for number in range(len(LEAST))), "least")


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    (folder / "password").write_text(PASSWORD + "\n")
    (folder / "wrong").write_text(WRONG + "\n")
    (folder / "token").write_text(TOKEN)
    with secured(folder, ("plain", *LIMITED)) as running:
        yield running


def section(kafka: Secured, listener: str, **rest: Any) -> dict[str, Any]:
    """A topology's kafka section."""
    tls = {"ca": "ca.pem"} | rest.pop("tls", {})
    return {"bootstrap": kafka.broker.address(listener), "tls": tls, **rest}


def sasl(mechanism: str, username: str, file: str = "password") -> dict[str, Any]:
    return {"mechanism": mechanism, "username": username, "password": {"file": file}}


def merge_of(kafka: Secured, how: dict[str, Any], replicas: Sequence[str] = "a") -> Merge:
    """A topology beside the certificates; its replicas have published all that they have."""
    merge = Merge(kafka.broker.bootstrap, kafka.folder, replicas)
    merge.extra = {"kafka": how, "http": {"port": 0, "control_token": {"file": "token"}}}
    merge.write()
    for replica in replicas:
        merge.publish(replica, STREAM)
    return merge


def refused(merge: Merge) -> str:
    """What ends a worker that is not let in."""

    async def run() -> None:
        async with asyncio.timeout(20):
            await process.run(load(merge.path))

    with pytest.raises(TransportError) as caught:
        asyncio.run(run())
    assert caught.value.exit_code == 3
    message = str(caught.value)
    assert "\n" not in message
    assert not {PASSWORD, WRONG} & set(message.split())
    return message


def ways(kafka: Secured) -> dict[str, dict[str, Any]]:
    return {
        "scram": section(kafka, "SASL", sasl=sasl("SCRAM-SHA-256", "scram")),
        "mutual": section(kafka, "MUTUAL", tls={"certificate": "client.pem", "key": "client.key"}),
    }


@pytest.mark.full
@pytest.mark.parametrize("way", ["scram", "mutual"])
def test_a_worker_is_let_in_merges_and_shows_no_secret(kafka: Secured, way: str) -> None:
    merge = merge_of(kafka, ways(kafka)[way])
    with merge.worker() as running:
        running.wait_until_ended()
        shown = [running.get(path) for path in ("/status", "/metrics", "/healthz", "/readyz")]
        assert running.terminate() == 0
    _merged_and_revealed_nothing(merge, running, shown)


def _merged_and_revealed_nothing(
    merge: Merge, running: Worker, shown: Sequence[httpx.Response | None] = ()
) -> None:
    assert merge.output_is(MEANING)
    printed = running.log.read_text() + "".join(each.text for each in shown if each is not None)
    assert all(each is not None for each in shown)
    assert "running" in printed
    for secret in (PASSWORD, TOKEN, "PRIVATE KEY"):
        assert secret not in printed


def test_client_commands_take_the_same_section_from_a_file(
    kafka: Secured, capsys: pytest.CaptureFixture[str]
) -> None:
    merge = merge_of(kafka, ways(kafka)["scram"])
    stream = kafka.folder / "stream.ndjson"
    stream.write_text('{"op":"insert","payload":"x","vs":1,"ve":5}\n{"op":"stable","vc":null}\n')
    topic, config = f"{merge.name}.sent", ("--kafka-config", str(merge.path))
    for command in (
        ("publish", str(stream), topic),
        ("audit", str(stream), f"kafka:{topic}"),
        ("infer", f"kafka:{topic}"),
    ):
        with pytest.raises(SystemExit) as ended:
            main([*command, *config])
        printed = capsys.readouterr()
        assert ended.value.code == 0, printed
        assert PASSWORD not in printed.out + printed.err


@pytest.mark.full
def test_what_keeps_us_out_is_one_line(kafka: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_START_SECONDS", 0.0)
    stranger = Authority(kafka.folder, "another").sign("stranger")
    certificate = {"certificate": str(stranger.certificate), "key": str(stranger.key)}
    wrong = sasl("SCRAM-SHA-256", "scram", "wrong")
    other = {"ca": "another.pem"}
    for how, expected in (
        (section(kafka, "SASL", sasl=wrong), "the broker refuses user scram by SCRAM-SHA-256: "),
        (section(kafka, "SASL", sasl=sasl("PLAIN", "plain", "wrong")), "refuses user plain by PLA"),
        (section(kafka, "SASL", sasl=sasl("PLAIN", "nobody")), "or it knows no such user"),
        (section(kafka, "SASL", sasl=sasl("SCRAM-SHA-512", "scram")), "no SASL SCRAM-SHA-512"),
        (
            section(kafka, "SASL"),
            "ends the connection: it is down, or SSL is the wrong protocol; kafka",
        ),
        ({"bootstrap": kafka.broker.address("SASL")}, "or PLAINTEXT is the wrong protocol"),
        (section(kafka, "SASL", tls=other, sasl=wrong), "kafka.tls.ca must hold the authority"),
        (section(kafka, "MUTUAL"), "does not accept our certificate, or that we have none"),
        (section(kafka, "MUTUAL", tls=certificate), "does not accept our certificate, or that"),
        (section(kafka, "EXPIRED"), "certificate is not accepted: certificate has expired"),
        (section(kafka, "ELSEWHERE"), "certificate is not valid for '127.0.0.1'"),
        (section(kafka, "SASL") | {"bootstrap": "no.such.host.invalid:1"}, "no host of that name"),
    ):
        error = refused(_merge_without_topics(kafka, how))
        assert error.startswith(f"connecting to {how['bootstrap']}: ")
        assert expected.replace("no SASL", "not offer SASL") in error


def _merge_without_topics(kafka: Secured, how: dict[str, Any]) -> Merge:
    merge = Merge(kafka.broker.bootstrap, kafka.folder, "a")
    merge.extra = {"kafka": how, "http": {"port": 0}}
    merge.write()
    return merge


@pytest.mark.full
def test_a_worker_that_is_kept_out_ends_with_3_and_one_line(kafka: Secured) -> None:
    how = section(kafka, "SASL", sasl=sasl("PLAIN", "plain", "wrong"))
    merge = _merge_without_topics(kafka, how)
    with merge.worker() as running:
        assert running.process.wait(20) == 3
    logged, *more = running.log.read_text().splitlines()
    assert json.loads(logged)["event"] == "serving"
    (error,) = more
    assert error.startswith(f"error: connecting to {how['bootstrap']}: the broker refuses user pl")
    assert WRONG not in logged + error


def rights(merge: Merge) -> list[Acl]:
    names = {"replica": merge.topics["a"], "output": merge.output, "name": merge.name}
    return [acl._replace(name=acl.name.format(**names)) for acl in LEAST]


@pytest.mark.full
def test_the_least_rights_are_enough_to_start_and_to_recover(
    kafka: Secured,
) -> None:
    merge = merge_of(kafka, section(kafka, "SASL", sasl=sasl("PLAIN", "least")))
    allow(kafka.broker, [("least", acl) for acl in rights(merge)])
    for _ in range(2):
        with merge.worker() as running:
            running.wait_until_ended()
            assert running.terminate() == 0
    _merged_and_revealed_nothing(merge, running)


@pytest.mark.full
def test_each_right_that_is_missing_is_named_in_one_line(kafka: Secured) -> None:
    merges = [
        merge_of(kafka, section(kafka, "SASL", sasl=sasl("PLAIN", f"without{number}")))
        for number in range(len(LEAST))
    ]
    allow(
        kafka.broker,
        [
            (f"without{number}", acl)
            for number, merge in enumerate(merges)
            for other, acl in enumerate(rights(merge))
            if other != number
        ],
    )
    kinds = {"Topic": "topic", "Group": "group", "TransactionalId": "transactional id"}
    for missing, merge in list(zip(LEAST, merges, strict=True))[1:]:
        name = missing.name.format(output=merge.output, name=merge.name)
        lacks = f"Kafka refuses: our user lacks the ACL {missing.operation} on "
        assert f"{lacks}{kinds[missing.resource]} {name.removesuffix('*')}" in refused(merge)
    _a_replica_that_may_not_be_read_waits_until_it_may(kafka, merges[0])


def _a_replica_that_may_not_be_read_waits_until_it_may(kafka: Secured, merge: Merge) -> None:
    topic = merge.topics["a"]
    why = f"topic {topic} cannot be seen: Kafka refuses: our user lacks the ACL Read on topic "
    with merge.worker() as running:
        assert running.wait_until_running()["replicas"][0]["why"] == why + topic
        allow(kafka.broker, [("without0", rights(merge)[0])])
        running.wait_until_ended()
    assert merge.output_is(MEANING)


@pytest.mark.full
def test_n5_dead_letters_that_are_not_ours_to_write_stop_nothing(kafka: Secured) -> None:
    merge = merge_of(kafka, section(kafka, "SASL", sasl=sasl("PLAIN", "least")), "ab")
    letters = f"{merge.name}.letters"
    merge.extra["output"] = {"topic": merge.output, "dead_letters": letters}
    merge.write()
    merge.send_raw(merge.topics["b"], [b"no element"])
    granted = [*rights(merge), Acl("Read", "Topic", merge.topics["b"])]
    granted += [Acl(each, "Topic", letters) for each in ("Create", "Read", "DescribeConfigs")]
    allow(kafka.broker, [("least", acl) for acl in granted])
    with merge.worker() as running:
        status = running.wait(lambda s: s["replicas"][1]["dead_letters"], "the dead letter", 90)
        assert status["tasks"][0]["unwritten"] == {"dead_letters": 1, "events": 0}
        assert f"lacks the ACL Write on topic {letters}" in status["unwritable"][letters]
        running.wait_until_ended()
        assert running.terminate() == 0
    assert merge.output_is(MEANING)
