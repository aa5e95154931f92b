"""Addresses for probes and Prometheus beside the pages, and the seconds that pages take."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Summary
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from engine.service.health import CONTENT_TYPE, metrics_text, readiness
from engine.store import Store

PATHS = ("/healthz", "/readyz", "/metrics")

_registry = CollectorRegistry()
_seconds = Summary("mergelens_page_seconds", "Pages that were drawn, and their seconds.", ("page",), registry=_registry)


@contextmanager
def page_timed(page: str) -> Iterator[None]:
    """Count a page and the seconds that drawing it takes.

    Args:
        page: its name in the address.
    """
    began = time.monotonic()
    try:
        yield
    finally:
        _seconds.labels(page or "lab").observe(time.monotonic() - began)


def probe_routes() -> list[Route]:
    """Return the routes that answer probes: this process lives; runs are carried out; the numbers."""
    store = Store()

    def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    def readyz(_: Request) -> Response:
        code, text = readiness(store)
        return PlainTextResponse(text, status_code=code)

    def metrics(_: Request) -> Response:
        return Response(metrics_text(store, _registry), headers={"content-type": CONTENT_TYPE})

    return [Route(path, answer) for path, answer in zip(PATHS, (healthz, readyz, metrics), strict=True)]
