"""Prometheus metrics, read from the engine when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from leakcheck.engine.values import Stats

PREFIX = "leakcheck_engine_"
GAUGES = {
    "running": "Sequences that are being computed.",
    "waiting": "Sequences that wait for a place or for blocks.",
    "blocks_used": "KV blocks with at least one reference.",
    "blocks_free": "KV blocks that hold nothing.",
    "blocks_cached": "KV blocks without a reference that the prefix cache can still share.",
}
COUNTERS = {
    "requests": "Requests accepted.",
    "finished": "Requests answered to their end.",
    "aborted": "Requests ended early: the client went away or the server stopped.",
    "preemptions": "Times a running sequence lost its blocks and had to be computed again.",
    "evictions": "Cached blocks given up to make room.",
    "prefix_queries_tokens": "Prompt tokens looked up in the prefix cache.",
    "prefix_hits_tokens": "Prompt tokens found there.",
    "generated_tokens": "Tokens generated.",
    "steps": "Forward passes.",
}


class EngineCollector:
    """Turns one `Stats` into metric families at every scrape."""

    def __init__(self, stats: Callable[[], Stats]) -> None:
        """`stats` is called at every scrape, on the event loop."""
        self.stats = stats

    def collect(self) -> Iterator[Metric]:
        """Every gauge and counter of this moment."""
        stats = self.stats()
        for name, meaning in GAUGES.items():
            yield GaugeMetricFamily(PREFIX + name, meaning, value=getattr(stats, name))
        for name, meaning in COUNTERS.items():
            yield CounterMetricFamily(PREFIX + name, meaning, value=getattr(stats, name))


def registry(stats: Callable[[], Stats]) -> CollectorRegistry:
    """A registry of its own: two engines in one process do not meet in it."""
    own = CollectorRegistry(auto_describe=False)
    own.register(EngineCollector(stats))
    return own


def exposition(own: CollectorRegistry) -> bytes:
    """The text format, version 0.0.4."""
    return bytes(generate_latest(own))
