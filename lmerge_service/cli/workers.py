"""The worker that a command asks: its address, our token, and its answers or errors.

Who owns what
    A request has a client of its own, which goes to the address that it is given and nowhere else:
    no proxy, no redirect.

What happens when the worker does not answer
    A decision carries an id that is chosen here. If it is unknown whether the worker received it,
    the error reports that and names the id, with which the decision may be requested again.
"""

import getpass
import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from lmerge_service.cli.options import Json, option
from lmerge_service.cli.words import printable, report
from lmerge_service.errors import (
    ConfigurationError,
    DecisionRefusedError,
    LMergeError,
    TransportError,
    fault_message,
)

if TYPE_CHECKING:
    import httpx

    from lmerge_service.config.credentials import ClientTls
    from lmerge_service.config.http import Http

__all__ = ("AT", "DecisionOptions", "WorkerAccess", "WorkerClient", "address_of", "somebody")

AT: Final = "http://127.0.0.1:8321"

_CONNECT_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 20.0
_LONGEST_TOKEN: Final = 8_192
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


def address_of(text: str) -> str:
    """The address of a worker, checked and without a last slash.

    >>> address_of("http://127.0.0.1:8321/")
    'http://127.0.0.1:8321'
    """
    try:
        url = urlsplit(text)
        known = url.scheme in {"http", "https"} and url.hostname and url.port != 0
    except ValueError:
        known = False
    if not known or not text.isascii() or not text.isprintable():
        raise typer.BadParameter(f"{text!r} is no address such as {AT}")
    if url.path not in {"", "/"} or url.query or url.fragment or "@" in url.netloc:
        raise typer.BadParameter(f"{text!r} is more than http://HOST:PORT")
    return text.rstrip("/")


@dataclass(frozen=True)
class WorkerAccess:
    """As whom a worker is asked, and which one is trusted."""

    token_file: Annotated[
        Path | None,
        option("FILE", "Holds the token that a worker asks for; else $LMERGE_TOKEN does."),
    ] = None
    ca: Annotated[Path | None, option("FILE", "Who signs the worker's certificate.")] = None
    certificate: Annotated[
        Path | None,
        option("FILE", "Our own certificate with its key, where a worker asks for one."),
    ] = None

    def settings(self, at: str) -> dict[str, Any]:
        """What an HTTP client of the worker at an address is made with.

        Raises:
            ConfigurationError: a file cannot be read or holds something else, or the token would go
                over the wire in the clear.
        """
        token, url = _token(self.token_file), urlsplit(at)
        if token and url.scheme == "http" and url.hostname not in _LOOPBACK:
            raise ConfigurationError(f"a token is not sent in the clear: use https, not {at}")
        return {
            "base_url": at,
            "headers": {"authorization": f"Bearer {token}"} if token else {},
            "verify": self._trust() if url.scheme == "https" else False,
            "trust_env": False,
        }

    def settings_of(self, at: str, http: "Http") -> dict[str, Any]:
        """The same of a worker whose topology is on this machine: without options it is asked with
        the topology's token for reading, and trusted by the topology's certificate.

        Raises:
            ConfigurationError: as `settings` does.
        """
        found = self.settings(at)
        if self.token_file is None and http.read_token is not None:
            token = http.read_token.read().get_secret_value()
            found["headers"] = {"authorization": f"Bearer {token}"}
        if self.ca is None and http.tls is not None:
            found["verify"] = http.tls.trusting(self._tls())
        return found

    def can_ask(self, http: "Http", named: object) -> bool:
        """Whether we have the certificate that a topology's workers demand, if they do; prints a
        line about them if not."""
        found = self.certificate is not None or not http.demands_certificate
        if not found:
            why = "its workers demand a certificate: without --certificate they are not shown"
            typer.echo(f"{named}: {why}", err=True)
        return found

    def _trust(self) -> Any:
        return self._tls().context()

    def _tls(self) -> "ClientTls":
        from pydantic import ValidationError

        from lmerge_service.config.credentials import ClientTls

        try:
            return ClientTls(ca=self.ca, certificate=self.certificate)
        except ValidationError as error:
            raise ConfigurationError(fault_message(error.errors()[0])) from None


def _token(file: Path | None) -> str | None:
    if file is None and "LMERGE_TOKEN" not in os.environ:
        return None
    where = "LMERGE_TOKEN" if file is None else str(file)
    try:
        text = os.environ[where] if file is None else file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot read {where}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{where} holds no token: it is not text") from None
    token = text.strip()
    if not token or len(token) > _LONGEST_TOKEN or not token.isascii() or not token.isprintable():
        raise ConfigurationError(f"{where} holds no token: one line of ASCII is needed")
    return token


@dataclass(frozen=True)
class WorkerClient:
    """The worker that a command asks."""

    at: Annotated[
        str,
        option(
            "URL",
            "Where a worker serves HTTP; any worker of the merge will do.",
            envvar="LMERGE_WORKER",
            callback=address_of,
        ),
    ] = AT
    access: WorkerAccess = WorkerAccess()

    def get(self, path: str) -> dict[str, Any]:
        """A document.

        Raises:
            TransportError: the worker cannot be reached, or is not ready.
            DecisionRefusedError: there is no such thing.
            ConfigurationError: it lets us not in, or is no worker.
        """
        import httpx

        try:
            return self._document(self._ask("GET", path))
        except httpx.TransportError as error:
            raise self._unreachable(error) from None

    def decide(
        self, path: str, body: Mapping[str, Any], decision_id: str | None = None
    ) -> dict[str, Any]:
        """Requests a decision, without the fields of `body` that are None; returns the answer.

        Raises:
            DecisionRefusedError: it was refused.
            TransportError: it was not made, or its outcome is unknown, as the message states.
            ConfigurationError: the worker lets us not in, or does not understand.
        """
        import httpx

        asked = uuid.uuid4().hex if decision_id is None else decision_id
        given = {key: value for key, value in body.items() if value is not None}
        try:
            return self._document(
                self._ask("POST", path, json={**given, "id": asked, "who": somebody()})
            )
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise self._unreachable(error) from None
        except httpx.TransportError as error:
            raise TransportError(
                f"{self.at} did not answer ({_reason(error)}); whether the decision holds is not "
                f"known: `lmerge decisions {asked}` shows it, or ask again with --id {asked}"
            ) from None

    @cached_property
    def _settings(self) -> dict[str, Any]:
        return self.access.settings(self.at)

    def _ask(self, method: str, path: str, **content: Any) -> "httpx.Response":
        import httpx

        timeout = httpx.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS)
        with httpx.Client(**self._settings, timeout=timeout) as client:
            return client.request(method, path, **content)

    def _unreachable(self, error: "httpx.TransportError") -> TransportError:
        return TransportError(
            f"no worker can be reached at {self.at} ({_reason(error)}); --at or LMERGE_WORKER "
            "names one"
        )

    def _document(self, answer: "httpx.Response") -> dict[str, Any]:
        try:
            document = answer.json()
        except ValueError:
            document = None
        if answer.is_success and isinstance(document, dict):
            return document
        raise self._problem(answer.status_code, document if isinstance(document, dict) else {})

    def _problem(self, status: int, problem: Mapping[str, Any]) -> LMergeError:
        message = printable(str(problem.get("message") or problem.get("detail") or ""))
        if status in {401, 403}:
            how = "another one" if self._settings["headers"] else "one"
            return ConfigurationError(
                f"{self.at} does not let us: {message} (--token-file or LMERGE_TOKEN gives {how})"
            )
        if "error" not in problem:
            what = message or "this is no answer of a worker's"
            return ConfigurationError(f"{self.at} cannot do this ({status}: {what})")
        if status in {404, 409}:
            known = problem.get("version")
            return DecisionRefusedError(
                message if known is None else f"{message} (version {known})"
            )
        if status == 503:
            return TransportError(f"{self.at}: {message}{_look_for(problem)}")
        if status == 422:
            return ConfigurationError(message)
        return LMergeError(f"{self.at}: {status} {message}")


def _look_for(problem: Mapping[str, Any]) -> str:
    if problem.get("error") != "outcome_unknown":
        return ""
    asked = problem.get("id")
    return f" (`lmerge decisions {asked}`, or the same command with --id {asked})"


def _reason(error: "httpx.TransportError") -> str:
    return str(error) or type(error).__name__


def somebody() -> str:
    """Who decides, as the machine knows them."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"[:200]


@dataclass(frozen=True)
class DecisionOptions:
    """How a decision is requested, and its answer reported."""

    expects: Annotated[
        int | None,
        option("VERSION", "Refuse if the version is another one by then.", min=0),
    ] = None
    decision_id: Annotated[
        str | None,
        option("ID", "Ask once more for a decision whose outcome is unknown.", "--id"),
    ] = None
    as_json: Json = False

    def request(self, worker: WorkerClient, path: str, **body: Any) -> dict[str, Any]:
        """The answer to a decision that was accepted; fields that are None are left out.

        Raises:
            DecisionRefusedError, TransportError, ConfigurationError: as `WorkerClient.decide` does.
        """
        return worker.decide(path, {"expects": self.expects, **body}, self.decision_id)

    def report(self, made: Mapping[str, Any]) -> None:
        """Prints the answer."""
        what, version, asked = (
            printable(str(made.get(key))) for key in ("action", "version", "id")
        )
        line = f"version {version}: {what} (decision {asked})"
        report(made, line, as_json=self.as_json)

    def decide(self, worker: WorkerClient, path: str, **body: Any) -> None:
        """Requests a decision, and prints the answer."""
        self.report(self.request(worker, path, **body))
