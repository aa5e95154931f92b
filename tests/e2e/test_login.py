"""The door: no listening beyond this machine without a login, a real OIDC provider, headers of a proxy only."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from urllib.parse import urlsplit

import httpx
import pytest
from oidc_provider_mock import User, run_server_in_thread
from streamlit import auth_util, config
from streamlit.web.server.starlette.starlette_app_utils import decode_signed_value

from engine.store.people import NotAllowed, Person, Settings, person_of
from tests.e2e.conftest import ROOT, serve_app

SECRET = "a secret that signs cookies, long enough"
PROXY = "a secret of the proxy"
ANNA = User(sub="anna", claims={"email": "anna@example.org", "name": "Anna", "groups": ["it"]})
NAMELESS = User(sub="nameless")


class Imposter:
    """A provider that claims in its metadata to be another one."""

    def __init__(self, app):
        self._app = app

    def __call__(self, environ, start_response):
        body = b"".join(self._app(environ, start_response))
        return [body.replace(b'"issuer": "http://localhost', b'"issuer": "http://elsewhere')]


@pytest.fixture(scope="module")
def providers():
    """Address of a good provider, of one whose tokens are late, and of one that claims to be another."""
    with ExitStack() as stack:
        people = (ANNA, NAMELESS)
        good = stack.enter_context(run_server_in_thread(user_claims=people))
        late = stack.enter_context(run_server_in_thread(user_claims=people, access_token_max_age=timedelta(hours=-1)))
        imposter = stack.enter_context(run_server_in_thread(user_claims=people))
        imposter.app = Imposter(imposter.app)
        yield {
            name: f"http://localhost:{server.server_port}"
            for name, server in {"default": good, "late": late, "imposter": imposter}.items()
        }


def door(home, providers):
    """Write the secrets of an app whose people log in at these providers; returns what its process is told."""
    places = {name: f"{address}/.well-known/openid-configuration" for name, address in providers.items()}
    client = 'client_id = "app"\nclient_secret = "x"\nserver_metadata_url = "{}"\n'
    text = f'[auth]\nredirect_uri = "http://127.0.0.1:1/oauth2callback"\ncookie_secret = "{SECRET}"\n'
    text += client.format(places["default"])
    text += "".join(f"[auth.{name}]\n{client.format(places[name])}" for name in ("late", "imposter"))
    (home / "secrets.toml").write_text(text)
    return {"MERGELENS_LOGIN": "oidc", "STREAMLIT_SECRETS_FILES": str(home / "secrets.toml")}


@pytest.fixture(scope="module")
def address(providers, tmp_path_factory):
    home = tmp_path_factory.mktemp("login")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in door(home, providers).items():
            patch.setenv(name, value)
        with serve_app(home / "store") as found:
            yield found


def logged_in(address, provider, user):
    """Log in as a browser does; returns the claims that the app's cookie holds, None without one."""
    config.set_option("server.cookieSecret", SECRET)
    token = auth_util.encode_provider_token(provider)
    with httpx.Client(timeout=60) as browser:
        there = browser.get(f"{address}/auth/login", params={"provider": token}).headers["location"]
        back = urlsplit(browser.post(there, data={"sub": user.sub}).headers["location"])
        assert back.path == "/oauth2callback"
        browser.get(f"{address}{back.path}?{back.query}")
        cookie = browser.cookies.get("_streamlit_user")
    return json.loads(decode_signed_value(SECRET, "_streamlit_user", cookie.strip('"'))) if cookie else None


def test_people_log_in_at_a_provider(address, providers):
    settings = Settings.of_environment({"MERGELENS_LOGIN": "oidc", "MERGELENS_ROLES": "admin=it"})
    claims = logged_in(address, "default", ANNA)
    assert person_of(claims, settings) == Person("anna@example.org", "Anna", "admin")
    assert person_of(claims, replace(settings, issuer=providers["default"])).role == "admin"
    with pytest.raises(NotAllowed, match="another provider"):
        person_of(claims, replace(settings, issuer=providers["late"]))


def test_a_login_without_the_claim_that_names_people_is_refused(address):
    claims = logged_in(address, "default", NAMELESS)
    with pytest.raises(NotAllowed, match="no 'email'"):
        person_of(claims, Settings(login="oidc"))


@pytest.mark.parametrize("provider", ["late", "imposter"])
def test_tokens_that_are_late_or_of_another_issuer_log_nobody_in(address, provider):
    assert logged_in(address, provider, ANNA) is None


def test_a_forged_cookie_is_nobody(address):
    with httpx.Client(timeout=60, cookies={"_streamlit_user": "eyJlbWFpbCI6Iml0In0.aaaa.bbbb"}) as browser:
        answer = browser.get(f"{address}/auth/logout")
    assert answer.status_code == 302


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({}, "nobody has to log in"),
        ({"MERGELENS_LOGIN": "oidc", "STREAMLIT_SECRETS_FILES": "/nowhere.toml"}, "needs .streamlit/secrets.toml"),
        ({"MERGELENS_LOGIN": "headers"}, "needs MERGELENS_PROXY_SECRET"),
        ({"MERGELENS_LOGIN": "headers", "MERGELENS_PROXY_SECRET": PROXY}, "needs server.trustedUserHeaders"),
    ],
)
def test_an_app_with_an_open_door_is_not_served(tmp_path, environment, reason):
    command = [sys.executable, "app.py", "--server.address", "0.0.0.0", "--server.port", "0"]
    own = ("MERGELENS_LOGIN", "STREAMLIT_")  # of the app that logs people in
    told = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    told |= {"MERGELENS_STORE": str(tmp_path / "store"), **environment}
    ended = subprocess.run(command, cwd=ROOT, env=told, capture_output=True, text=True, timeout=600)
    assert ended.returncode != 0
    assert reason in ended.stderr


def test_only_the_proxy_names_people(tmp_path, monkeypatch):
    mapping = {"X-Forwarded-Email": "email", "X-Forwarded-Groups": "groups"}
    monkeypatch.setenv("MERGELENS_LOGIN", "headers")
    monkeypatch.setenv("MERGELENS_PROXY_SECRET", PROXY)
    monkeypatch.setenv("STREAMLIT_SERVER_TRUSTED_USER_HEADERS", json.dumps(mapping))
    forged = {"X-Forwarded-Email": "admin@example.org", "X-Forwarded-Groups": "it"}
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    upgrade["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
    with serve_app(tmp_path / "store", health="/healthz") as address:
        for path, headers in (("/", {}), ("/_stcore/health", {}), ("/_stcore/stream", upgrade)):
            expected = 101 if headers else 200
            assert _status(address, path, {**headers, **forged}) == 403
            assert _status(address, path, {**headers, **forged, "X-MergeLens-Proxy": "another secret of it"}) == 403
            assert _status(address, path, {**headers, **forged, "X-MergeLens-Proxy": PROXY}) == expected
        assert _status(address, "/healthz", {}) == 200


def _status(address, path, headers):
    where = urlsplit(address)
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=60)
    connection.request("GET", path, headers=headers)
    status = connection.getresponse().status
    connection.close()
    return status
