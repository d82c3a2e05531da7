"""What is counted, for Prometheus; labels are from closed sets, so that no client can make series without end."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

QUICK = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
QUICKER = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class Meters:
    """The measures of one service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "answered requests", "route", "code")
        self.tokens = self._counter("tokens", "tokens read and said", "kind")
        self.aborted = self._counter("aborted", "requests that ended before their answer was whole", "reason")
        self.preemptions = self._counter("preemptions", "requests that gave way to others and were read anew")
        self.first_token = self._histogram(
            "time_to_first_token_seconds", "from a request to its first token", QUICK
        )
        self.per_token = self._histogram(
            "time_per_output_token_seconds", "between two tokens of an output", QUICKER
        )
        self.request_time = self._histogram(
            "request_seconds", "from a request to the end of its answer", QUICK
        )
        for reason in ("disconnect", "deadline", "shutdown"):
            self.aborted.labels(reason)
        for kind in ("prompt", "completion"):
            self.tokens.labels(kind)

    def gauge(self, name: str, about: str, value: Callable[[], float]) -> None:
        """A figure that is asked for when somebody looks."""
        Gauge(f"polyhead_{name}", about, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        """All of it, in the format of Prometheus."""
        return generate_latest(self.registry)

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(f"polyhead_{name}", about, labels, registry=self.registry)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"polyhead_{name}", about, registry=self.registry, buckets=buckets)
