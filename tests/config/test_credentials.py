"""Secrets and certificates in a topology: found where it refers to them, shown nowhere."""

import ssl
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from lmerge_service.config.topology import Kafka, load, load_kafka
from lmerge_service.errors import ConfigurationError, TransportError
from lmerge_service.kafka.connection import connection_of
from tests.certificates import Authority, Identity, locked

Write = Callable[[str], Path]
PASSWORD = "hunter2-and-more"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("credentials")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder)


@pytest.fixture(scope="module")
def client(authority: Authority) -> Identity:
    return authority.sign("client")


@pytest.fixture
def write(folder: Path, client: Identity) -> Write:
    """Writes a topology whose kafka section goes on with `rest`; line 3 is its first."""
    (folder / "password").write_text(PASSWORD + "\n")
    (folder / "empty").write_text("\n")

    def write(rest: str) -> Path:
        path = folder / "t.yaml"
        section = textwrap.indent(textwrap.dedent(rest).strip("\n"), "  ")
        path.write_text(
            f"kafka:\n  bootstrap: 127.0.0.1:9093\n{section}\n"
            "name: t\noutput: {topic: out}\nreplicas: [{name: a, topic: a}]\n"
        )
        return path

    return write


SASL = "sasl: {mechanism: SCRAM-SHA-256, username: u, password: "


def test_a_password_comes_from_a_file_beside_the_topology(write: Write) -> None:
    kafka = load(write(SASL + "{file: password}}")).kafka
    arguments = connection_of(kafka).arguments
    assert arguments["sasl_plain_password"] == PASSWORD
    assert (arguments["sasl_plain_username"], arguments["security_protocol"]) == (
        "u",
        "SASL_PLAINTEXT",
    )
    assert PASSWORD not in f"{kafka!r} {kafka} {kafka.model_dump()} {kafka.model_dump_json()}"


def test_a_password_comes_from_the_environment(
    write: Write,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OUR_PASSWORD", PASSWORD)
    kafka = load(write(SASL + "{env: OUR_PASSWORD}}")).kafka
    assert connection_of(kafka).password == PASSWORD
    assert PASSWORD not in repr((kafka, connection_of(kafka)))


def test_a_secret_that_changed_counts_from_the_next_connection_on(
    write: Write,
    folder: Path,
) -> None:
    kafka = load(write(SASL + "{file: password}}")).kafka
    (folder / "password").write_text("changed")
    assert connection_of(kafka).password == "changed"
    (folder / "password").unlink()
    with pytest.raises(TransportError, match=r"^connecting to 127.0.0.1:9093: cannot read .*pass"):
        connection_of(kafka)


def test_tls_takes_our_authority_and_our_certificate(
    write: Write,
    client: Identity,
) -> None:
    locked(client.key, PASSWORD)
    path = write("""
        tls:
          ca: ca.pem
          certificate: client.pem
          key: client.locked
          key_password: {file: password}
    """)
    tls = connection_of(load(path).kafka).tls
    assert tls is not None
    assert (tls.verify_mode, tls.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert len(tls.get_ca_certs()) == 1
    assert connection_of(load(path).kafka).arguments["security_protocol"] == "SSL"


def test_empty_tls_trusts_the_system(write: Write) -> None:
    assert connection_of(load(write("tls: {}")).kafka).arguments["security_protocol"] == "SSL"


@pytest.mark.parametrize(
    ("rest", "line", "expected"),
    [
        (SASL + "hunter2-and-more}", 3, "kafka.sasl.password: a secret is not written here"),
        (SASL + "{file: password, env: X}}", 3, "kafka.sasl.password: exactly one of file and env"),
        (SASL + "{}}", 3, "kafka.sasl.password: exactly one of file and env"),
        (SASL + "{file: none}}", 3, "kafka.sasl.password.file: cannot read {folder}/none: No such"),
        (SASL + "{file: .}}", 3, "kafka.sasl.password.file: cannot read {folder}: Is a dir"),
        (SASL + "{file: empty}}", 3, "kafka.sasl.password: {folder}/empty is empty"),
        (SASL + "{env: NOT_SET}}", 3, "the environment variable NOT_SET is not set"),
        ("sasl: {mechanism: PLAIN, username: u}", 3, "kafka.sasl.password: is missing"),
        (
            "sasl:\n  mechanism: KERBEROS\n  username: u\n  password: {file: password}",
            4,
            "kafka.sasl.mechanism: Input should be 'PLAIN'",
        ),
        ("tls:", 3, "kafka.tls: is empty"),
        ("tls:\n  ca: none.pem", 4, "kafka.tls.ca: cannot read {folder}/none.pem: No such file"),
        ("tls:\n  ca: password", 3, "kafka.tls: ca: {folder}/password holds no certificate"),
        ("tls:\n  key: client.key", 3, "kafka.tls: a key needs its certificate"),
        ("tls: {certificate: client.pem, key: ca.key}", 3, "KEY_VALUES_MISMATCH"),
        ("tls: {certificate: client.pem}", 3, "are no certificate with its private key in PEM"),
        (
            "tls: {certificate: client.pem, key: client.locked}",
            3,
            "or key_password is wrong or missing",
        ),
        (
            "tls: {certificate: client.pem, key: client.locked, key_password: {file: t.yaml}}",
            3,
            "or key_password is wrong or missing",
        ),
    ],
)
def test_a_mistake_is_one_line_with_its_place_and_no_secret(
    write: Write,
    folder: Path,
    client: Identity,
    rest: str,
    line: int,
    expected: str,
) -> None:
    locked(client.key, "another")
    path = write(rest)
    with pytest.raises(ConfigurationError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}: kafka.")
    assert expected.format(folder=folder) in message
    assert "\n" not in message
    assert PASSWORD not in message


def test_plain_without_tls_is_for_this_machine_only(write: Write) -> None:
    path = write("sasl: {mechanism: PLAIN, username: u, password: {file: password}}")
    for here in ("127.0.0.1:1,localhost:2", "[::1]:1"):
        assert load(path, bootstrap=here).kafka.bootstrap == here
    with pytest.raises(ConfigurationError, match=r":1: kafka: sasl PLAIN without tls sends the pa"):
        load(path, bootstrap="127.0.0.1:1,kafka:2")


def test_another_address_keeps_the_settings_of_tls_and_sasl(write: Write) -> None:
    kafka = load(write(SASL + "{file: password}}"), bootstrap="k:1").kafka
    assert (kafka.bootstrap, kafka.sasl and kafka.sasl.username) == ("k:1", "u")


def test_clients_read_the_kafka_section_of_a_topology_or_of_a_file_without_more(
    write: Write,
    folder: Path,
) -> None:
    path = write(SASL + "{file: password}}")
    assert load_kafka(path) == load(path).kafka
    alone = folder / "alone.yaml"
    alone.write_text("kafka: {bootstrap: 'k:1'}\n")
    assert load_kafka(alone) == Kafka(bootstrap="k:1")
    assert load_kafka(alone, bootstrap="l:2") == Kafka(bootstrap="l:2")
    alone.write_text("bootstrap: k:1\n")
    with pytest.raises(ConfigurationError, match=r"alone.yaml:1: kafka: is missing$"):
        load_kafka(alone)
