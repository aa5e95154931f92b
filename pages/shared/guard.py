"""Requests that the app answers: asked for under its own name and port, from its own pages; and what browsers may do.

Any page that a browser shows can send requests to this machine. A foreign page's requests name another origin, a
name that somebody lets point here names another host, and a frame around the app lets its clicks be stolen.
"""

import base64
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

INLINE = re.compile(r"<script>(.*?)</script>", re.DOTALL)
STANDARD_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}
REFUSED_HOST = "This app is not served under that name. Names that it answers to are set by server.allowedHosts."
REFUSED_ORIGIN = "Another site's page may not use this app."
UPLOADS = "/_stcore/upload_file"  # Streamlit's, which keeps files in memory; this app has its own
REFUSED_UPLOAD = "Files are uploaded on the page Bring your own; this place takes none."


class Guard:
    """ASGI middleware that refuses foreign hosts and origins, and sets the headers that bind browsers.

    Streamlit's own place for uploads is closed: nothing here uses it, and what it takes stays in memory.
    """

    def __init__(self, app: Application, *, hosts: Iterable[str], port: int | None = None, page: Path) -> None:
        """Say what is answered.

        Args:
            app: what answers.
            hosts: names that the app is served under; ``*.example.org`` stands for all names below it.
            port: the port that browsers see where a proxy stands in front of the server.
            page: the HTML file that loads the app, whose inline scripts may run.
        """
        self._app, self._port = app, port
        self._hosts = [host.strip().lower().rstrip(".") for host in hosts]
        self._headers = [(name.encode(), value.encode()) for name, value in browser_rules(page).items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        if reason := self._refusal(scope):
            await _refuse(scope, send, reason)
            return

        async def send_with_rules(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                ours = {name for name, _ in self._headers}
                kept = [(name, value) for name, value in message.get("headers", ()) if name.lower() not in ours]
                message = {**message, "headers": [*kept, *self._headers]}
            await send(message)

        await self._app(scope, receive, send_with_rules)

    def _refusal(self, scope: Scope) -> str:
        """Say why a request is not answered; empty when it is."""
        hosts, origins = (
            [v.decode("latin-1") for n, v in scope["headers"] if n == name] for name in (b"host", b"origin")
        )
        if len(hosts) != 1 or not self._serves(hosts[0], scope):
            return REFUSED_HOST
        if any(origin.lower() not in _origins_of(hosts[0]) for origin in origins):
            return REFUSED_ORIGIN
        return REFUSED_UPLOAD if UPLOADS in scope["path"] else ""

    def _serves(self, host: str, scope: Scope) -> bool:
        """Return whether a Host header names this app, with the port at which it is reached."""
        try:
            parts = urlsplit(f"//{host}")
            name, port = parts.hostname, parts.port
        except ValueError:
            return False
        if name is None or parts.netloc != host or parts.username is not None:
            return False
        listening = (scope.get("server") or ("", None))[1]
        known = {listening, self._port} - {None}
        port = STANDARD_PORTS[scope.get("scheme", "http")] if port is None else port
        standard = set(STANDARD_PORTS.values()) if self._port in STANDARD_PORTS.values() else set()
        return port in known | standard and any(_matches(name.rstrip("."), pattern) for pattern in self._hosts)


def browser_rules(page: Path) -> dict[str, str]:
    """Return the headers that tell browsers what the app's pages may do.

    Cross-Origin-Opener-Policy is not among them: browsers start a process for such a page, which takes 0.3 seconds, and
    what opened the app can read nothing of it either way.

    Args:
        page: the HTML file that loads the app.
    """
    scripts = " ".join(_digest(text) for text in INLINE.findall(page.read_text("utf-8")))
    policy = {
        "default-src": "'self'",
        "script-src": f"'self' blob: {scripts}",  # Streamlit loads components of an app's own as blobs
        "style-src": "'self' 'unsafe-inline'",
        "img-src": "'self' data: blob:",
        "font-src": "'self' data:",
        "worker-src": "'self' blob:",
        "object-src": "'none'",
        "base-uri": "'self'",
        "form-action": "'self'",
        "frame-ancestors": "'none'",
    }
    return {
        "content-security-policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "x-frame-options": "DENY",
        "x-content-type-options": "nosniff",
        "referrer-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
    }


def _matches(name: str, pattern: str) -> bool:
    return pattern == "*" or name == pattern or (pattern.startswith("*.") and name.endswith(pattern[1:]))


def _origins_of(host: str) -> set[str]:
    return {f"{scheme}://{host.lower()}" for scheme in ("http", "https")}


def _digest(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


async def _refuse(scope: Scope, send: Send, reason: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": reason})
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"x-content-type-options", b"nosniff")]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": reason.encode()})
