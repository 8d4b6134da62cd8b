"""The topology's section as Spark's options, and what is shown of them."""

from pathlib import Path

import pytest

from lmerge_service.config.credentials import ClientTls, Sasl, Secret
from lmerge_service.config.topology import Kafka
from lmerge_service.errors import ConfigurationError
from lmerge_service.spark.io.connection import kafka_options
from tests.certificates import Authority

WRONG_KIND = "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\n"


def test_an_address_is_enough() -> None:
    assert kafka_options("k:1,l:2") == {
        "kafka.bootstrap.servers": "k:1,l:2",
        "kafka.security.protocol": "PLAINTEXT",
    }


def test_tls_with_a_certificate_of_ours(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    client = authority.sign("client")
    tls = ClientTls(ca=authority.certificate, certificate=client.both)
    options = kafka_options(Kafka(bootstrap="k:1", tls=tls))
    assert options["kafka.security.protocol"] == "SSL"
    assert options["kafka.ssl.truststore.type"] == options["kafka.ssl.keystore.type"] == "PEM"
    assert options["kafka.ssl.truststore.certificates"] == authority.certificate.read_text()
    chain = options["kafka.ssl.keystore.certificate.chain"]
    key = options["kafka.ssl.keystore.key"]
    assert chain.startswith("-----BEGIN CERTIFICATE-----\n")
    assert key.startswith("-----BEGIN PRIVATE KEY-----\n")
    assert "PRIVATE" not in chain
    assert "CERTIFICATE" not in key


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [("PLAIN", "plain.PlainLoginModule"), ("SCRAM-SHA-512", "scram.ScramLoginModule")],
)
def test_a_password_is_quoted_for_java(
    mechanism: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSWORD_OF_TEST", "a\"b\\c;'ü")
    sasl = Sasl(mechanism=mechanism, username="u", password=Secret(env="PASSWORD_OF_TEST"))  # type: ignore[arg-type]
    options = kafka_options(Kafka(bootstrap="127.0.0.1:1", sasl=sasl))
    assert options["kafka.security.protocol"] == "SASL_PLAINTEXT"
    assert options["kafka.sasl.mechanism"] == mechanism
    assert options["kafka.sasl.jaas.config"] == (
        f"org.apache.kafka.common.security.{module} required "
        'username="u" password="a\\"b\\\\c;\'ü";'
    )


def test_what_java_cannot_take_is_refused_without_quoting_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PASSWORD_OF_TEST", "hunter\n2")
    secret = Secret(env="PASSWORD_OF_TEST")
    sasl = Sasl(mechanism="SCRAM-SHA-256", username="u", password=secret)
    with pytest.raises(ConfigurationError, match=r"^connecting to k:1: .*control") as refused:
        kafka_options(Kafka(bootstrap="k:1", sasl=sasl))
    assert "hunter" not in str(refused.value)
    monkeypatch.delenv("PASSWORD_OF_TEST")
    with pytest.raises(ConfigurationError, match="PASSWORD_OF_TEST is not set"):
        kafka_options(Kafka(bootstrap="k:1", sasl=sasl))


def test_a_key_that_java_does_not_know_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = ClientTls(certificate=authority.sign("client").both)
    assert tls.certificate is not None
    section = Kafka(bootstrap="k:1", tls=tls)
    tls.certificate.write_text(WRONG_KIND)
    with pytest.raises(ConfigurationError, match=r"'RSA PRIVATE KEY'.*openssl pkcs8"):
        kafka_options(section)
