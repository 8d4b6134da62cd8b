"""Who we are and whom we trust: secrets, certificates, and the files that they are kept in.

A configuration names where a secret is, never the secret:

    password: {file: secrets/kafka}        # or {env: LMERGE_KAFKA_PASSWORD}

Invariants
    C1  A secret is read when it is used and kept by nobody here, so one that was changed counts
        from the next connection on. What is read is a `SecretStr`, which shows nothing.
    C2  What can be known to fail, fails while the configuration is validated: a file that cannot
        be read, a variable that is not set, a key that does not fit its certificate. No message
        about it quotes a secret.
    C3  Relative paths are relative to the validation context's `folder` (the folder of the file
        that holds the configuration), else to the working directory.
"""

import os
import ssl
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    model_validator,
)

__all__ = ("ClientTls", "Readable", "Sasl", "Secret", "ServerTls")


def _readable(path: Path, info: ValidationInfo) -> Path:
    """Absolute, and known to be readable."""
    found = (info.context or {}).get("folder", Path()) / path.expanduser()
    try:
        with found.open("rb"):
            return Path(found.absolute())
    except OSError as error:
        raise ValueError(f"cannot read {found}: {error.strerror}") from None


Readable = Annotated[Path, AfterValidator(_readable)]
"""A file that could be read when the configuration was validated."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Secret(_Model):
    """Where a secret is: in a file, without its last line break, or in an environment variable."""

    file: Readable | None = None
    env: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _elsewhere(cls, given: Any) -> Any:
        if isinstance(given, str):
            raise ValueError(  # noqa: TRY004 - pydantic's way of reporting
                "a secret is not written here: name where it is, {file: PATH} or {env: NAME}"
            )
        return given

    @model_validator(mode="after")
    def _there(self) -> Self:
        if (self.file is None) == (self.env is None):
            raise ValueError("exactly one of file and env is needed")
        self.read()
        return self

    def read(self) -> SecretStr:
        """The secret as it is now.

        Raises:
            ValueError: it is gone, empty or not text; the message names where it should be.
        """
        if self.env is not None:
            text, where = os.environ.get(self.env), f"the environment variable {self.env}"
            if text is None:
                raise ValueError(f"{where} is not set")
        else:
            text, where = _text(self.file), str(self.file)
        if not text:
            raise ValueError(f"{where} is empty")
        return SecretStr(text)


def _text(file: Path | None) -> str:
    assert file is not None
    try:
        return file.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise ValueError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not UTF-8") from None


class _Identity(_Model):
    """A certificate and its private key, both PEM."""

    certificate: Readable | None = None
    """Followed by the intermediate authorities', if there are any."""
    key: Readable | None = None
    """By default it is in the certificate's file."""
    key_password: Secret | None = None

    def present(self, context: ssl.SSLContext) -> None:
        """Loads our identity, if we have one.

        Raises:
            ValueError: the files do not hold it, or the password is wrong.
        """
        if self.certificate is None:
            if self.key is not None or self.key_password is not None:
                raise ValueError("a key needs its certificate")
            return
        held = self.key or self.certificate
        password = self.key_password.read().get_secret_value() if self.key_password else ""
        try:  # given as a function, so that an encrypted key never asks the terminal
            context.load_cert_chain(self.certificate, self.key, lambda: password)
        except (ssl.SSLError, OSError) as error:
            raise ValueError(
                f"{self.certificate} and {held} are no certificate with its private key in PEM, "
                f"or key_password is wrong or missing ({_reason(error)})"
            ) from None


class ClientTls(_Identity):
    """TLS towards a server: whom to trust, and who we are if it asks."""

    ca: Readable | None = None
    """The authorities that sign the server's certificate; by default the system's."""

    @model_validator(mode="after")
    def _works(self) -> Self:
        self.context()
        return self

    def context(self) -> ssl.SSLContext:
        """Checks the server's certificate and its host name, always.

        Raises:
            ValueError: a file does not hold what it should.
        """
        context = _trusting(ssl.Purpose.SERVER_AUTH, self.ca, "ca")
        self.present(context)
        return context


class ServerTls(_Identity):
    """TLS of our own server, and whom it lets in."""

    certificate: Readable
    client_ca: Readable | None = None
    """The authorities that sign clients' certificates; with it, nobody is served without one."""

    @model_validator(mode="after")
    def _works(self) -> Self:
        self.context()
        return self

    def context(self) -> ssl.SSLContext:
        """
        Raises:
            ValueError: a file does not hold what it should.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if self.client_ca is not None:
            context = _trusting(ssl.Purpose.CLIENT_AUTH, self.client_ca, "client_ca")
            context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.present(context)
        return context

    def trusting(self, ours: "ClientTls | None" = None) -> ssl.SSLContext:
        """Of a client that has our certificate's file, and so needs no authority: trusts what is in
        it, for the host names in it, and nothing else. `ours` is who that client is.

        Raises:
            ValueError: a file does not hold what it should.
        """
        context = _trusting(ssl.Purpose.SERVER_AUTH, self.certificate, "certificate")
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if ours is not None:
            ours.present(context)
        return context


def _trusting(purpose: ssl.Purpose, ca: Path | None, field: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(purpose, cafile=ca)
    except (ssl.SSLError, OSError) as error:
        raise ValueError(f"{field}: {ca} holds no certificate in PEM ({_reason(error)})") from None


def _reason(error: OSError) -> str:
    """OpenSSL's reason for it, which quotes nothing of the files."""
    return getattr(error, "reason", None) or error.strerror or type(error).__name__


class Sasl(_Model):
    """A user name and a password."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    username: Annotated[str, Field(min_length=1)]
    password: Secret
