"""Metrics: counters of the server, as Prometheus text."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counters of one process; labels never contain text sent by a client."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: Counter[str] = Counter()
        self.open_connections = 0
        self.refused_connections = 0
        self.open_streams = 0
        self.delivered_events = 0

    def count(self, route: str, status: int, seconds: float) -> None:
        """Count a finished request."""
        self._requests[route, status] += 1
        self._seconds[route] += seconds  # type: ignore[assignment]

    def text(self) -> str:
        """Return all metrics in the Prometheus text format."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        yield "# HELP holdfast_requests_total Requests by route and status."
        yield "# TYPE holdfast_requests_total counter"
        for (route, status), number in sorted(self._requests.items()):
            yield f'holdfast_requests_total{{route="{route}",status="{status}"}} {number}'
        yield "# HELP holdfast_request_seconds_total Time spent on requests, by route."
        yield "# TYPE holdfast_request_seconds_total counter"
        for route, seconds in sorted(self._seconds.items()):
            yield f'holdfast_request_seconds_total{{route="{route}"}} {seconds:.6f}'
        yield "# HELP holdfast_open_connections Open connections."
        yield "# TYPE holdfast_open_connections gauge"
        yield f"holdfast_open_connections {self.open_connections}"
        yield "# HELP holdfast_refused_connections_total Connections refused at the limit."
        yield "# TYPE holdfast_refused_connections_total counter"
        yield f"holdfast_refused_connections_total {self.refused_connections}"
        yield "# HELP holdfast_open_streams Open event streams."
        yield "# TYPE holdfast_open_streams gauge"
        yield f"holdfast_open_streams {self.open_streams}"
        yield "# HELP holdfast_delivered_events_total Events sent to readers of streams."
        yield "# TYPE holdfast_delivered_events_total counter"
        yield f"holdfast_delivered_events_total {self.delivered_events}"
