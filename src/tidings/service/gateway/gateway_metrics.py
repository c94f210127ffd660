"""The gateway's counters for Prometheus. There are many subscriptions, so only the busiest have their own series."""

from __future__ import annotations

import heapq
from collections import Counter as Counts
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidings.service.gateway.connections import Connections
from tidings.service.gateway.driver_lag import Lag
from tidings.service.gateway.tenant_use import TenantUse

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TOP = 10
_TENANTS = 100  # with series of their own, those with the most refusals first
_DOMAINS = 50  # with series of their own, those furthest behind first
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Busiest:
    """Counts many names in little memory, and finds the largest counts (Metwally et al. 2005, "space saving")."""

    def __init__(self, kept: int = 1000) -> None:
        self._kept = kept
        self._counts: dict[str, int] = {}

    def add(self, name: str, count: int) -> None:
        counts = self._counts
        if name in counts:
            counts[name] += count
        elif len(counts) < self._kept:
            counts[name] = count
        else:  # replaces the smallest, whose count it inherits: counts are too high, never too low
            least = min(counts, key=counts.__getitem__)
            counts[name] = counts.pop(least) + count

    def top(self, count: int) -> list[tuple[str, int]]:
        return heapq.nlargest(count, self._counts.items(), key=lambda item: item[1])


class Metrics:
    """The counters of one gateway."""

    def __init__(self, use: TenantUse, connections: Connections, lag: Lag, log_end: LogEnd) -> None:
        self.registry = CollectorRegistry()
        self._busiest = Busiest()
        for collector in (_Tenants(use), _Open(connections), _Driver(lag, log_end), _Top(self._busiest)):
            self.registry.register(collector)
        counter = self._counter
        self._events = counter("tidings_events_published", "Events appended, those seen before included")
        self._bytes = counter("tidings_published_bytes", "Bytes of published bodies, decompressed")
        self._refused = counter("tidings_publishes_refused", "Publishes refused for now, by what was full", "bound")
        self._requests = counter("tidings_requests", "Requests answered, by class of status", "status")
        self._delivered = counter("tidings_notifications_delivered", "Notifications handed over", "mode")
        self._attempts = counter("tidings_webhook_attempts", "Webhook attempts, by outcome", "outcome")
        self._dead = counter("tidings_dead_letters", "Notifications that became dead letters")
        self._seconds = Histogram(
            "tidings_publish_seconds", "From request to durable answer", registry=self.registry, buckets=_BUCKETS
        )
        self.streams = Gauge("tidings_streams", "Open streams", registry=self.registry)
        self.polls = Gauge("tidings_polls", "Long polls that wait", registry=self.registry)
        self._by_status = {status: self._requests.labels(f"{status}xx") for status in range(1, 6)}

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(name, help, labels, registry=self.registry)

    def published(self, events: int, size: int, seconds: float) -> None:
        self._events.inc(events)
        self._bytes.inc(size)
        self._seconds.observe(seconds)

    def refused(self, bound: str) -> None:
        self._refused.labels(bound).inc()

    def answered(self, status: int) -> None:
        self._by_status[min(max(status // 100, 1), 5)].inc()

    def delivered(self, mode: str, subscription: str, count: int) -> None:
        if count:
            self._delivered.labels(mode).inc(count)
            self._busiest.add(subscription, count)

    def attempted(self, outcome: str) -> None:
        self._attempts.labels(outcome).inc()

    def dead(self, count: int = 1) -> None:
        self._dead.inc(count)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class LogEnd:
    """The ends of the log as they were last read, so that metrics need no store."""

    def __init__(self) -> None:
        self.start = 0
        self.position = 0


class _Collector(Collector):
    """Collects metrics from others when they are asked for."""

    def describe(self) -> list[Metric]:
        return []  # or they would be collected when it is registered


class _Top(_Collector):
    """Notifications of the busiest subscriptions."""

    def __init__(self, busiest: Busiest) -> None:
        self._busiest = busiest

    def collect(self) -> Iterator[Metric]:
        top = GaugeMetricFamily(
            "tidings_top_subscription_notifications",
            f"Notifications handed over since the start, of the {TOP} busiest subscriptions (approximate)",
            labels=["subscription"],
        )
        for name, count in self._busiest.top(TOP):
            top.add_metric([name], count)
        yield top


class _Tenants(_Collector):
    """What tenants use, their quotas, and how often they were refused."""

    def __init__(self, use: TenantUse) -> None:
        self._use = use

    def collect(self) -> Iterator[Metric]:
        labels = ["tenant", "quota"]
        used = GaugeMetricFamily("tidings_tenant_used", "What a tenant uses of a quota", labels=labels)
        limit = GaugeMetricFamily("tidings_tenant_limit", "The quota", labels=labels)
        refused = CounterMetricFamily("tidings_tenant_refusals", "Requests refused for a quota", labels=labels)
        refusals: Counts[str] = Counts()
        for (tenant, _), count in self._use.refusals.items():
            refusals[tenant] += count
        for tenant in sorted(self._use.tenants(), key=lambda name: -refusals[name])[:_TENANTS]:
            for name, counted in self._use.of(tenant).items():
                used.add_metric([tenant, name], counted["used"])
                limit.add_metric([tenant, name], counted["limit"])
                refused.add_metric([tenant, name], self._use.refusals[tenant, name])
        yield from (used, limit, refused)


class _Open(_Collector):
    """Open connections, and those that were refused or closed for others."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def collect(self) -> Iterator[Metric]:
        connections = self._connections
        yield GaugeMetricFamily("tidings_connections", "Open connections", value=len(connections))
        yield CounterMetricFamily(
            "tidings_connections_made_way",
            "Connections without a request, closed for others",
            value=connections.made_way,
        )
        refused = CounterMetricFamily("tidings_connections_refused", "Connections refused, by limit", labels=["limit"])
        for name, count in sorted(connections.refused.items()):
            refused.add_metric([name], count)
        yield refused


class _Driver(_Collector):
    """What the driver reports of its domains."""

    _FIELDS = (
        ("events", "tidings_domain_events_matched", "Events that the driver has matched"),
        ("matches", "tidings_domain_matches", "Notifications that the driver has loaded"),
        ("candidates", "tidings_domain_candidates", "Subscriptions that were tried for them"),
        ("batch_seconds", "tidings_domain_batch_seconds", "How long the last micro-batch took"),
        ("events_per_second", "tidings_domain_events_per_second", "Events that the driver matches a second"),
        ("reached", "tidings_domain_reached_position", "All events before this position are matched"),
        ("version", "tidings_domain_index_version", "The version of the subscriptions in use"),
        ("view_epoch", "tidings_domain_view_epoch", "The View that events are routed by; 0: none"),
        ("view_partitions", "tidings_domain_view_partitions", "Partitions that events are routed to"),
        ("view_changes", "tidings_domain_view_changes", "Views published because they pay, since the driver began"),
        ("view_expected_seconds", "tidings_domain_view_expected_seconds", "What an event takes, as estimated"),
        ("groups", "tidings_domain_mailbox_groups", "Groups of mailboxes that share pages"),
    )

    def __init__(self, lag: Lag, log_end: LogEnd) -> None:
        self._lag = lag
        self._log_end = log_end

    def collect(self) -> Iterator[Metric]:
        up = 1 if self._lag.driver == "running" else 0
        yield GaugeMetricFamily("tidings_driver_up", "Whether the driver has reported recently", value=up)
        yield GaugeMetricFamily("tidings_log_end_position", "The next event's position", value=self._log_end.position)
        yield GaugeMetricFamily("tidings_log_start_position", "The oldest event's position", value=self._log_end.start)
        lags = {key: self._lag.of(key) for key in self._lag.domains()}
        shown = heapq.nlargest(_DOMAINS, lags, key=lambda key: lags[key])
        behind = GaugeMetricFamily(
            "tidings_domain_lag_events", "Events published and not yet matched", labels=["domain"]
        )
        for key in shown:
            behind.add_metric([key], lags[key])
        yield behind
        for field, name, help in self._FIELDS:
            family = GaugeMetricFamily(name, help, labels=["domain"])
            for key in shown:
                value = self._lag.domain(key).get(field)
                if isinstance(value, int | float):
                    family.add_metric([key], value)
            yield family
