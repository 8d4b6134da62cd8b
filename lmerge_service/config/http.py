"""Where a process serves health, status and metrics, and to whom: the `http` section."""

import ipaddress
import re
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from lmerge_service.config.credentials import Secret, ServerTls

__all__ = ("Http",)

_TOKEN: Final = re.compile(r"[!-~]{16,}")


class Http(BaseModel):
    """Where health, status and metrics are served, and to whom; see `http.access`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    """An address of this machine. Other than loopback needs tls, and tokens or tls.client_ca."""
    port: int = Field(default=8321, ge=0, le=65_535)
    """0 takes any free port; the log shows which."""
    names: tuple[Annotated[str, Field(pattern=r"^[a-zA-Z0-9.-]+$")], ...] = ()
    """Host names under which clients know it, beside its addresses and localhost."""
    read_token: Secret | None = None
    """Of who may read; without one, everybody on this machine may."""
    control_token: Secret | None = None
    """Of who may change what is merged; without one, nobody may."""
    tls: ServerTls | None = None

    @property
    def demands_certificate(self) -> bool:
        """Whether clients have to prove who they are."""
        return self.tls is not None and self.tls.client_ca is not None

    @field_validator("host")
    @classmethod
    def _address(cls, host: str) -> str:
        try:
            return host if host == "localhost" else str(ipaddress.ip_address(host))
        except ValueError:
            raise ValueError("an IP address of this machine is needed, or localhost") from None

    @field_validator("read_token", "control_token")
    @classmethod
    def _strong(cls, token: Secret | None) -> Secret | None:
        if token is not None and not _TOKEN.fullmatch(token.read().get_secret_value()):
            raise ValueError(
                "a token has 16 or more visible ASCII characters: `openssl rand -hex 32` makes one"
            )
        return token

    @model_validator(mode="after")
    def _guarded(self) -> "Http":
        tokens = [each.read() for each in (self.read_token, self.control_token) if each]
        if len(tokens) == 2 and tokens[0] == tokens[1]:
            raise ValueError("read_token and control_token are the same: who reads could control")
        known = bool(tokens) or self.demands_certificate
        if not self.on_loopback and not (known and self.tls is not None):
            raise ValueError(
                f"host {self.host} can be reached by others, who could read what is merged and "
                "change it: that needs tls (so that nobody listens in on tokens), and read_token, "
                "control_token or tls.client_ca (so that it is known who asks)"
            )
        return self

    @property
    def on_loopback(self) -> bool:
        return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
