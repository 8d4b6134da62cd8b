"""Families of metrics, made at each scrape; what is not known is absent, never 0."""

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

__all__ = ("Families", "Samples", "registry_of")

Samples: TypeAlias = Iterable[tuple[tuple[str, ...], float | None]]
"""Values of labels, and the number; None: it is not known."""


class Families:
    """Makes families whose names begin with `prefix`."""

    def __init__(self, prefix: str) -> None:
        self._prefix: Final = prefix

    def gauge(self, name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
        """Numbers that rise and fall."""
        family = GaugeMetricFamily(f"{self._prefix}_{name}", text, labels=labels)
        return _filled(family, samples)

    def counter(self, name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
        """Numbers that only rise while the process lives; `_total` is added to the name."""
        family = CounterMetricFamily(f"{self._prefix}_{name}", text, labels=labels)
        return _filled(family, samples)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, samples: Samples) -> Metric:
    for values, number in samples:
        if number is not None:
            family.add_metric(values, float(number))
    return family


def registry_of(collector: Collector) -> CollectorRegistry:
    """A registry of these metrics and of the process's own."""
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry
