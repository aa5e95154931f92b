"""The service's own address for probes and Prometheus, where one is asked for."""

from __future__ import annotations

import logging
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry

from ..errors import StoreError
from ..store import Store
from .health import CONTENT_TYPE, metrics_text, readiness

ENV = "MERGELENS_ENGINE_PROBES"  # HOST:PORT

logger = logging.getLogger(__name__)


class Endpoint:
    """Answers ``/healthz``, ``/readyz`` and ``/metrics`` from threads of its own."""

    def __init__(self, store: Store, registry: CollectorRegistry, address: str) -> None:
        """Listen.

        Args:
            store: that is served.
            registry: numbers that the service counts itself.
            address: HOST:PORT.

        Raises:
            StoreError: nobody can listen there.
        """
        host, _, port = address.rpartition(":")
        answers = {
            "/healthz": lambda: (200, b"ok\n"),
            "/readyz": lambda: _encoded(*readiness(store)),
            "/metrics": lambda: (200, metrics_text(store, registry)),
        }
        try:
            self._server = ThreadingHTTPServer((host.strip("[]"), int(port)), _handler(answers))
        except (OSError, ValueError, OverflowError) as error:
            raise StoreError(f"The engine cannot listen at '{address}' ({ENV}, HOST:PORT): {error}.") from error
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="endpoint", daemon=True).start()
        logger.info("Probes are answered at %s.", address)

    @classmethod
    def of_environment(cls, store: Store, registry: CollectorRegistry) -> Endpoint | None:
        """Listen where the environment says; None where it says nothing."""
        address = os.environ.get(ENV, "").strip()
        return cls(store, registry, address) if address else None

    @property
    def port(self) -> int:
        """Return the port that is listened on."""
        return self._server.server_address[1]

    def close(self) -> None:
        """End."""
        self._server.shutdown()
        self._server.server_close()


def _encoded(code: int, text: str) -> tuple[int, bytes]:
    return code, text.encode()


def _handler(answers: dict[str, Any]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10
        server_version, sys_version = "mergelens", ""

        def do_GET(self) -> None:
            code, body = answers.get(self.path, lambda: (404, b"not found\n"))()
            self.send_response(code)
            self.send_header("content-type", CONTENT_TYPE)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing of probes in the log."""

    return Handler
