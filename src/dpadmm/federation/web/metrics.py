"""Metrics for Prometheus, from the samples of ``dpadmm.federation.health``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dpadmm.errors import StudyError
from dpadmm.federation.health import Sample
from dpadmm.federation.web.hosting import Listener, hosted

HELP = {
    "connected": "1 if the process is connected to the broker",
    "server_silent": "1 if the site receives no heartbeat of the server",
    "certificate_days_left": "Days until the certificate of the site expires",
    "clock_difference_seconds": "Seconds by which another machine's clock is ahead of this machine's",
    "study_answering": "1 if the site answers this study",
    "study_last_round": "Last round of the study that the site answered",
    "rounds_done": "Closed rounds of the study",
    "rounds_planned": "Planned rounds of the study",
    "stalled": "1 if the open round lacks answers that it needs",
    "site_rounds_answered": "Rounds of the study that the site answered",
    "site_silent": "1 if the site sends no heartbeat",
    "disk_free_bytes": "Free bytes on the disk of the folder",
    "alarm": "1 for each alarm, with its code and level",
}
"""All metrics. docs/how-to/operations.md has the same list."""


def metrics_text(samples: Iterable[Sample]) -> bytes:
    """Return samples in the text format of Prometheus. All metrics are gauges; the first of equal samples counts.

    Examples
    --------
    >>> print(metrics_text([("rounds_done", {"study": "ab"}, 3.0), ("connected", {}, 1.0)]).decode(), end="")
    # HELP dpadmm_rounds_done Closed rounds of the study
    # TYPE dpadmm_rounds_done gauge
    dpadmm_rounds_done{study="ab"} 3.0
    # HELP dpadmm_connected 1 if the process is connected to the broker
    # TYPE dpadmm_connected gauge
    dpadmm_connected 1.0
    """
    registry = CollectorRegistry()
    registry.register(_Samples(samples))
    return generate_latest(registry)


class _Samples(Collector):
    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples = samples

    def describe(self) -> Iterator[Metric]:
        """Describe nothing, so that registration reads no samples."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        metrics, seen = dict[str, Metric](), set[tuple[str, frozenset[tuple[str, str]]]]()
        for name, labels, value in self._samples:
            if (key := (name, frozenset(labels.items()))) in seen:
                continue
            seen.add(key)
            metric = metrics.setdefault(name, Metric(f"dpadmm_{name}", HELP[name], "gauge"))
            metric.add_sample(metric.name, dict(labels), value)
        yield from metrics.values()


def metrics_response(samples: Iterable[Sample]) -> Response:
    return Response(metrics_text(samples), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


@contextmanager
def served_metrics(listen: str, samples: Callable[[], Iterable[Sample]]) -> Iterator[int]:
    """Serve ``/metrics`` without login on the address that ``--metrics`` names, and yield the port."""

    def metrics(request: Request) -> Response:
        return metrics_response(samples())

    routes = [Route("/metrics", metrics, methods=["GET"])]
    with hosted(routes, Listener(*metrics_address(listen), setting="--metrics")) as (listener,):
        yield listener.port


def metrics_address(text: str) -> tuple[str, int]:
    """Parse ``9100`` (on loopback) or ``192.0.2.7:9100``."""
    host, _, port = text.rpartition(":")
    try:
        address = str(ip_address(host.strip("[]") or "127.0.0.1"))
        if not 0 <= int(port) <= 65535:
            raise ValueError(port)
    except ValueError:
        raise StudyError(f"--metrics: {text!r} is not a port or ADDRESS:PORT, such as 127.0.0.1:9100") from None
    return address, int(port)
