"""The door of the app's server: nobody listens beyond this machine without a login, no identity without its proxy."""

import hmac
import ipaddress
import json
import os
from collections.abc import Mapping

import streamlit as st
from streamlit import config

from engine.store.people import Settings
from pages.shared.guard import Application, Receive, Scope, Send
from pages.shared.probes import PATHS

INSECURE = "MERGELENS_INSECURE"
SECRET, HEADER = "MERGELENS_PROXY_SECRET", b"x-mergelens-proxy"
LEAST_SECRET = 16  # characters
OPEN = (
    "The app would listen at '{address}', where others reach it, and nobody has to log in. Set MERGELENS_LOGIN to oidc "
    "or headers, or say --insecure if everybody who reaches it may do everything."
)


def fault_of_login(settings: Settings, address: str, environment: Mapping[str, str] = os.environ) -> str:
    """Say why the app must not be served as it is set up; empty when it may.

    Args:
        settings: of the login.
        address: that the server listens at; empty for all.
        environment: of the process.
    """
    if not settings.login:
        return "" if _is_loopback(address) or environment.get(INSECURE) else OPEN.format(address=address or "0.0.0.0")
    if settings.login == "headers":
        if len(environment.get(SECRET, "")) < LEAST_SECRET:
            return f"MERGELENS_LOGIN=headers needs {SECRET}, {LEAST_SECRET} characters or more that the proxy sends."
        if settings.id_claim not in _mapping().values():
            return f"MERGELENS_LOGIN=headers needs server.trustedUserHeaders with a header for '{settings.id_claim}'."
        return ""
    try:
        found = set(st.secrets["auth"])
    except (FileNotFoundError, KeyError):
        found = set()
    needed = {"redirect_uri", "cookie_secret", "client_id", "client_secret", "server_metadata_url"}
    if lacking := sorted(needed - found):
        return f"MERGELENS_LOGIN=oidc needs .streamlit/secrets.toml with [auth]: {', '.join(lacking)}."
    return ""


def _mapping() -> dict[str, str]:
    """Return header → claim; Streamlit may not have read what the environment says of them yet."""
    found = config.get_option("server.trustedUserHeaders")
    try:
        found = json.loads(found) if isinstance(found, str) else found
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class ProxyOnly:
    """ASGI middleware that answers only what comes through the proxy that logs people in; probes are answered to all.

    Whoever reaches the server past the proxy could name themselves in the headers that it sets.
    """

    def __init__(self, app: Application, *, secret: str) -> None:
        """Name what answers, and the secret that the proxy adds to each request."""
        self._app, self._secret = app, secret.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request or refuse it."""
        if scope["type"] not in ("http", "websocket") or scope.get("path") in PATHS or self._is_from_proxy(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "Only the proxy may ask."})
        else:
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"Only the proxy that logs people in may ask."})

    def _is_from_proxy(self, scope: Scope) -> bool:
        found = [value for name, value in scope["headers"] if name == HEADER]
        return len(found) == 1 and hmac.compare_digest(found[0], self._secret)


def _is_loopback(address: str) -> bool:
    try:
        return address == "localhost" or ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
