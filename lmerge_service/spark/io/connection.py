"""From the topology's `kafka` section to the options by which Spark reaches the same brokers.

Who owns what
    Certificates and the password are read here, when a query is made, and handed to Spark as
    options of that query: the JVM reads PEM, so nothing is written anywhere. A running query
    keeps what it was given.

    Spark shows options in plans, and hides those whose name or text matches its setting
    `spark.redaction.regex`. A password is hidden by Spark's own default; a private key needs the
    setting that `session` makes (a session of your own needs it too).
"""

from pathlib import Path
from typing import Final

from lmerge_service.config.credentials import ClientTls, Sasl
from lmerge_service.config.topology import Kafka
from lmerge_service.errors import ConfigurationError

__all__ = ("kafka_options", "kafka_section")

_MODULES: Final = "org.apache.kafka.common.security"


def kafka_section(kafka: Kafka | str) -> Kafka:
    """`host:port` is short for a section with nothing else."""
    return kafka if isinstance(kafka, Kafka) else Kafka(bootstrap=kafka)


def kafka_options(kafka: Kafka | str) -> dict[str, str]:
    """Options for Spark's `kafka` format, read and write.

    >>> kafka_options("127.0.0.1:9092")
    {'kafka.bootstrap.servers': '127.0.0.1:9092', 'kafka.security.protocol': 'PLAINTEXT'}

    Raises:
        ConfigurationError: a certificate, key or password cannot be read, or is of a kind that
            Java does not know.
    """
    section = kafka_section(kafka)
    tls, sasl = section.tls, section.sasl
    protocol = ("SASL_" if sasl else "") + ("SSL" if tls else "PLAINTEXT")
    options = {"bootstrap.servers": section.bootstrap, "security.protocol": protocol}
    try:
        options |= _tls(tls) if tls else {}
        options |= _sasl(sasl) if sasl else {}
    except (ValueError, OSError) as error:
        raise ConfigurationError(f"connecting to {section.bootstrap}: {error}") from None
    return {f"kafka.{name}": value for name, value in options.items()}


def _tls(tls: ClientTls) -> dict[str, str]:
    options: dict[str, str] = {}
    if tls.ca is not None:
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _pem(tls.ca)}
    if tls.certificate is not None:
        options |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": _blocks(tls.certificate, "CERTIFICATE"),
            "ssl.keystore.key": _blocks(tls.key or tls.certificate, "PRIVATE KEY"),
        }
        if tls.key_password is not None:
            options["ssl.key.password"] = tls.key_password.read().get_secret_value()
    return options


def _pem(path: Path) -> str:
    return path.read_text(encoding="ascii", errors="replace")


def _blocks(path: Path, kind: str) -> str:
    """The blocks of a kind in a PEM file; Java reads keys in PKCS #8 only."""
    found, inside = [], False
    for line in _pem(path).splitlines():
        if line.startswith("-----BEGIN "):
            label = line.strip("-")[len("BEGIN ") :]
            inside = label in {kind, f"ENCRYPTED {kind}"}
            if label.endswith(kind) and not inside:
                raise ValueError(
                    f"{path} holds a key in the form {label!r}, which Java does not know: "
                    "`openssl pkcs8 -topk8` writes one that it does"
                )
        if inside:
            found.append(line)
        inside = inside and not line.startswith("-----END ")
    return "\n".join(found) + "\n"


def _sasl(sasl: Sasl) -> dict[str, str]:
    module = "plain.PlainLoginModule" if sasl.mechanism == "PLAIN" else "scram.ScramLoginModule"
    password = sasl.password.read().get_secret_value()
    words = f"username={_quoted(sasl.username)} password={_quoted(password)}"
    return {
        "sasl.mechanism": sasl.mechanism,
        "sasl.jaas.config": f"{_MODULES}.{module} required {words};",
    }


def _quoted(text: str) -> str:
    """For Java's configuration of logins, in which nothing but these two is special."""
    if any(sign < " " for sign in text):
        raise ValueError("a user name or password has a control character, which Java cannot take")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
