"""Metrics as text, in the format that the scraper prefers.

By the rules of Prometheus's own libraries: of the formats of an Accept header the one with the
highest `q` that there is here counts, of equals the first; a format without a version is its
oldest (text) or newest (OpenMetrics); without any that there is, text 0.0.4. Prometheus itself
refuses nothing, so nothing is refused here.

    Accept: application/openmetrics-text;version=1.0.0;q=0.5, text/plain;version=0.0.4;q=0.7
        → text/plain; version=0.0.4; charset=utf-8
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest as as_text
from prometheus_client.openmetrics.exposition import (
    ALLOWUTF8,
    DOTS,
    UNDERSCORES,
    VALUES,
)
from prometheus_client.openmetrics.exposition import (
    generate_latest as as_openmetrics,
)

__all__ = ("exposed",)

_OPENMETRICS: Final = "application/openmetrics-text"
_TEXT: Final = "text/plain"
_VERSIONS: Final[Mapping[tuple[str, str], str]] = {
    (_OPENMETRICS, ""): "1.0.0",
    (_OPENMETRICS, "1.0.0"): "1.0.0",
    (_OPENMETRICS, "0.0.1"): "0.0.1",
    (_TEXT, ""): "0.0.4",
    (_TEXT, "0.0.4"): "0.0.4",
    (_TEXT, "1.0.0"): "1.0.0",
}
"""By media type and version as asked for, the version that is sent."""
_ESCAPINGS: Final = (ALLOWUTF8, UNDERSCORES, DOTS, VALUES)

_Encoder: TypeAlias = Callable[[CollectorRegistry], bytes]


def exposed(registry: CollectorRegistry, accept: Iterable[str]) -> tuple[bytes, str]:
    """The text, and its content type; `accept` are the values of the request's headers."""
    encode, content_type = _chosen(",".join(accept))
    return encode(registry), content_type


def _chosen(accept: str) -> tuple[_Encoder, str]:
    for media_type, parameters in _preferred(accept):
        version = _VERSIONS.get((media_type, parameters.get("version", "")))
        if version is not None:
            return _encoder(media_type, version, parameters.get("escaping", ""))
    return _encoder(_TEXT, "0.0.4", "")


def _preferred(accept: str) -> list[tuple[str, Mapping[str, str]]]:
    """Media types with their parameters, the preferred first, without those that are ruled out."""
    accepted = [each for each in _parsed(accept) if _weight(each[1]) > 0]
    return sorted(accepted, key=lambda each: -_weight(each[1]))  # stable: of equals the first


def _parsed(accept: str) -> Iterator[tuple[str, dict[str, str]]]:
    for each in accept.split(","):
        media_type, *given = (part.strip() for part in each.split(";"))
        pairs = (part.partition("=") for part in given)
        yield (
            media_type.lower(),
            {name.strip().lower(): value.strip().strip('"') for name, _, value in pairs},
        )


def _weight(parameters: Mapping[str, str]) -> float:
    try:
        return float(parameters.get("q", "1"))
    except ValueError:
        return 0.0


def _encoder(media_type: str, version: str, asked: str) -> tuple[_Encoder, str]:
    content_type = f"{media_type}; version={version}; charset=utf-8"
    if version != "1.0.0":  # older ones know of no escaping: names are as they always were
        if media_type == _TEXT:
            return as_text, content_type
        return partial(as_openmetrics, version=version), content_type
    escaping = asked if asked in _ESCAPINGS else UNDERSCORES
    content_type += f"; escaping={escaping}"
    if media_type == _TEXT:
        return partial(as_text, escaping=escaping), content_type
    return partial(as_openmetrics, escaping=escaping, version=version), content_type
