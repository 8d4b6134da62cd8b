"""A connection: what a client gets of it, and what nobody sees of it."""

import ssl

from lmerge_service.kafka.connection import Connection


def test_an_address_alone_is_the_simple_case() -> None:
    assert Connection("k:1,l:2").arguments == {
        "bootstrap_servers": "k:1,l:2",
        "security_protocol": "PLAINTEXT",
    }


def test_tls_and_sasl_choose_the_protocol() -> None:
    tls = ssl.create_default_context()
    sasl = {"mechanism": "SCRAM-SHA-256", "username": "u", "password": "p"}
    assert Connection("k:1", tls=tls).arguments == {
        "bootstrap_servers": "k:1",
        "security_protocol": "SSL",
        "ssl_context": tls,
    }
    assert Connection("k:1", None, **sasl).arguments == {
        "bootstrap_servers": "k:1",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "u",
        "sasl_plain_password": "p",
    }
    assert Connection("k:1", tls, **sasl).arguments["security_protocol"] == "SASL_SSL"


def test_its_repr_names_the_address_and_no_secret() -> None:
    shown = repr(Connection("k:1", None, "PLAIN", "user", "hunter2"))
    assert "k:1" in shown
    assert "hunter2" not in shown
