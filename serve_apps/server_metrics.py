"""The metrics of a server for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from driftlab.serve_apps.hosting import HostedSession
    from driftlab.serve_apps.sessions import SessionRegistry

ROUND_S = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)
PREDICTION_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5)
LABELS = ("session", "system", "workload")


class ServerMetrics:
    """Counters and histograms of the server's process, and the states of its sessions."""

    def __init__(self, hub: SessionRegistry) -> None:
        self.registry = CollectorRegistry()
        self.replies = Counter("driftlab_replies", "Replies by status.", ("status",), registry=self.registry)
        self.round_s = Histogram(
            "driftlab_round_seconds", "Duration of a training round.", registry=self.registry, buckets=ROUND_S
        )
        self.wait_s = Histogram(
            "driftlab_upload_wait_seconds",
            "Time from an upload to its result.",
            registry=self.registry,
            buckets=ROUND_S,
        )
        self.prediction_s = Histogram(
            "driftlab_prediction_seconds",
            "Time from a request to its prediction.",
            registry=self.registry,
            buckets=PREDICTION_S,
        )
        self._by_status: dict[int, Counter] = {}
        self.registry.register(_Sessions(hub))

    def count_reply(self, status: int) -> None:
        if status not in self._by_status:
            self._by_status[status] = self.replies.labels(str(status))
        self._by_status[status].inc()

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)


class _Sessions(Collector):
    """Reads the states of the sessions at each scrape."""

    def __init__(self, hub: SessionRegistry) -> None:
        self._hub = hub

    def describe(self) -> Iterable[Metric]:
        return ()  # registration must not read the hub, which is not complete yet

    def collect(self) -> Iterator[Metric]:
        sessions = dict(self._hub.sessions)
        limit = GaugeMetricFamily("driftlab_sessions_limit", "Maximum number of sessions.")
        limit.add_metric((), self._hub.max_sessions)
        total = GaugeMetricFamily("driftlab_sessions", "Number of sessions.")
        total.add_metric((), len(sessions))
        failed = GaugeMetricFamily("driftlab_sessions_failed", "Sessions that have failed.")
        failed.add_metric((), sum(bool(one.fault) for one in sessions.values()))
        yield from (limit, total, failed)
        yield from _by_session(sessions)


def _by_session(sessions: dict[str, HostedSession]) -> Iterator[Metric]:
    gauges: dict[str, Any] = {
        name: GaugeMetricFamily(f"driftlab_session_{name}", text, labels=LABELS)
        for name, text in (
            ("version", "Newest version of the network."),
            ("waiting", "Uploads that are waiting for a round."),
            ("score", "Score of the network on its newest sample."),
        )
    }
    counters: dict[str, Any] = {
        name: CounterMetricFamily(f"driftlab_session_{name}", text, labels=LABELS)
        for name, text in (
            ("uploads", "Uploads."),
            ("up_bytes", "Bytes of uploads."),
            ("down_bytes", "Bytes of results."),
        )
    }
    for name, session in sessions.items():
        status = session.status()
        labels = (name, status["system"], status["workload"])
        for key, family in {**gauges, **counters}.items():
            if status[key] is not None:
                family.add_metric(labels, status[key])
    yield from gauges.values()
    yield from counters.values()
