"""Prometheus metrics. Labels come from closed sets, so that clients cannot create unbounded series."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
TOKEN_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class Metrics:
    """The metrics of one service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._make_counter("requests", "finished requests", "route", "code")
        self.tokens = self._make_counter("tokens", "prompt and output tokens", "kind")
        self.aborted_requests = self._make_counter(
            "aborted", "requests that ended before their answer was complete", "reason"
        )
        self.preemptions = self._make_counter("preemptions", "requests that were preempted and recomputed")
        self.time_to_first_token = self._make_histogram(
            "time_to_first_token_seconds", "time from a request to its first token", REQUEST_BUCKETS
        )
        self.time_per_output_token = self._make_histogram(
            "time_per_output_token_seconds", "time between two tokens of an output", TOKEN_BUCKETS
        )
        self.request_time = self._make_histogram(
            "request_seconds", "time from a request to the end of its answer", REQUEST_BUCKETS
        )
        for reason in ("disconnect", "deadline", "shutdown"):
            self.aborted_requests.labels(reason)
        for kind in ("prompt", "completion"):
            self.tokens.labels(kind)

    def add_gauge(self, name: str, description: str, get_value: Callable[[], float]) -> None:
        """Add a gauge whose value is computed when it is scraped."""
        Gauge(f"polyhead_{name}", description, registry=self.registry).set_function(get_value)

    def to_prometheus(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self.registry)

    def _make_counter(self, name: str, description: str, *labels: str) -> Counter:
        return Counter(f"polyhead_{name}", description, labels, registry=self.registry)

    def _make_histogram(self, name: str, description: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"polyhead_{name}", description, registry=self.registry, buckets=buckets)
