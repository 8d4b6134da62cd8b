"""A command's client of a worker: its address, our token, and its answers or errors.

Who owns what
    A `Worker` owns one HTTP client. It goes to the address it is given and nowhere else: no
    proxy, no redirect.

What happens when the worker does not answer
    A decision carries an id that is chosen here. If it is unknown whether the worker received it,
    the error reports that and names the id, with which the decision may be requested again.
"""

import getpass
import os
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import httpx

from lmerge_service.cli.words import printable
from lmerge_service.errors import (
    ConfigurationError,
    DecisionRefusedError,
    LMergeError,
    TransportError,
    fault_message,
)

__all__ = ("Worker", "settings_of")

_CONNECT_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 20.0
_LONGEST_TOKEN: Final = 8_192
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


def settings_of(
    at: str,
    token_file: Path | None = None,
    ca: Path | None = None,
    certificate: Path | None = None,
) -> dict[str, Any]:
    """What an HTTP client of a worker is made with, by the options of a command.

    Raises:
        ConfigurationError: a file cannot be read or holds something else, or the token would go
            over the wire in the clear.
    """
    token, url = _token(token_file), httpx.URL(at)
    if token and url.scheme == "http" and url.host not in _LOOPBACK:
        raise ConfigurationError(f"a token is not sent in the clear: use https, not {at}")
    return {
        "base_url": at,
        "headers": {"authorization": f"Bearer {token}"} if token else {},
        "verify": _trust(ca, certificate) if url.scheme == "https" else False,
        "trust_env": False,
    }


def _token(file: Path | None) -> str | None:
    if file is None:
        where, text = "LMERGE_TOKEN", os.environ.get("LMERGE_TOKEN")
        if text is None:
            return None
    else:
        where = str(file)
        try:
            text = file.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"cannot read {where}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigurationError(f"{where} holds no token: it is not text") from None
    token = text.strip()
    if not token or len(token) > _LONGEST_TOKEN or not token.isascii() or not token.isprintable():
        raise ConfigurationError(f"{where} holds no token: one line of ASCII is needed")
    return token


def _trust(ca: Path | None, certificate: Path | None) -> Any:
    from pydantic import ValidationError

    from lmerge_service.config.credentials import ClientTls

    try:
        return ClientTls(ca=ca, certificate=certificate).context()
    except ValidationError as error:
        raise ConfigurationError(fault_message(error.errors()[0])) from None


class Worker:
    """One worker; use as `with`. `settings` are those of `settings_of`."""

    def __init__(self, settings: Mapping[str, Any]):
        self.at: str = settings["base_url"]
        self._has_token = bool(settings["headers"])
        timeout = httpx.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS)
        self._client = httpx.Client(**settings, timeout=timeout)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(self, path: str) -> dict[str, Any]:
        """A document.

        Raises:
            TransportError: the worker cannot be reached, or is not ready.
            DecisionRefusedError: there is no such thing.
            ConfigurationError: it lets us not in, or is no worker.
        """
        try:
            answer = self._client.get(path)
        except httpx.TransportError as error:
            raise self._unreachable(error) from None
        return self._document(answer)

    def decide(
        self, path: str, body: Mapping[str, Any], decision_id: str | None = None
    ) -> dict[str, Any]:
        """Requests a decision; returns the answer.

        Raises:
            DecisionRefusedError: it was refused.
            TransportError: it was not made, or its outcome is unknown, as the message states.
            ConfigurationError: the worker lets us not in, or does not understand.
        """
        asked = uuid.uuid4().hex if decision_id is None else decision_id
        given = {key: value for key, value in body.items() if value is not None}
        try:
            answer = self._client.post(path, json={**given, "id": asked, "who": _somebody()})
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise self._unreachable(error) from None
        except httpx.TransportError as error:
            raise TransportError(
                f"{self.at} did not answer ({_reason(error)}); whether the decision holds is not "
                f"known: `lmerge decisions {asked}` shows it, or ask again with --id {asked}"
            ) from None
        return self._document(answer)

    def _unreachable(self, error: httpx.TransportError) -> TransportError:
        return TransportError(
            f"no worker can be reached at {self.at} ({_reason(error)}); --at or LMERGE_WORKER "
            "names one"
        )

    def _document(self, answer: httpx.Response) -> dict[str, Any]:
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
            how = "another one" if self._has_token else "one"
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


def _reason(error: httpx.TransportError) -> str:
    return str(error) or type(error).__name__


def _somebody() -> str:
    """Who decides, as the machine knows them."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"[:200]
