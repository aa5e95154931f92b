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

from engine.store import Store
from engine.store.people import NotAllowed, Person, Settings, person_of
from tests.e2e.conftest import ON_HOST, PATIENCE, ROOT, WIDE, Watch, free_port, serve_app, settle
from tests.e2e.sessions import Session

SECRET = "a secret that signs cookies, long enough"
PROXY = "a secret of the proxy"
ANNA = User(sub="anna", claims={"email": "anna@example.org", "name": "Anna", "groups": ["it"]})
BEN = User(sub="ben", claims={"email": "ben@example.org", "name": "Ben", "groups": ["lab"]})
CARA = User(sub="cara", claims={"email": "cara@example.org", "name": "Cara", "groups": ["lab"]})
NAMELESS = User(sub="nameless")
SMALL = {"zoo": "mini8", "experts": ["digits", "signs"], "probe": {"samples_per_task": 8}}
NOT_HERS = "This run belongs to ben@example.org."


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
        people = (ANNA, BEN, CARA, NAMELESS)
        good = stack.enter_context(run_server_in_thread(user_claims=people))
        late = stack.enter_context(run_server_in_thread(user_claims=people, access_token_max_age=timedelta(hours=-1)))
        imposter = stack.enter_context(run_server_in_thread(user_claims=people))
        imposter.app = Imposter(imposter.app)
        yield {
            name: f"http://localhost:{server.server_port}"
            for name, server in {"default": good, "late": late, "imposter": imposter}.items()
        }


def door(home, providers, port):
    """Write the secrets of an app whose people log in at these providers; returns what its process is told."""
    places = {name: f"{address}/.well-known/openid-configuration" for name, address in providers.items()}
    client = 'client_id = "app"\nclient_secret = "x"\nserver_metadata_url = "{}"\n'
    text = f'[auth]\nredirect_uri = "http://127.0.0.1:{port}/oauth2callback"\ncookie_secret = "{SECRET}"\n'
    text += client.format(places["default"])
    text += "".join(f"[auth.{name}]\n{client.format(places[name])}" for name in ("late", "imposter"))
    (home / "secrets.toml").write_text(text)
    told = {"MERGELENS_LOGIN": "oidc", "MERGELENS_ROLES": "admin=it member=lab"}
    return {**told, "STREAMLIT_SECRETS_FILES": str(home / "secrets.toml")}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("login")


@pytest.fixture(scope="module")
def address(providers, home):
    port = free_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in door(home, providers, port).items():
            patch.setenv(name, value)
        with serve_app(home / "store", port=port) as found:
            yield found


def cookies_of(address, provider, user):
    """Log in as a browser does; returns the cookies that the app has set."""
    config.set_option("server.cookieSecret", SECRET)
    token = auth_util.encode_provider_token(provider)
    with httpx.Client(timeout=60) as browser:
        there = browser.get(f"{address}/auth/login", params={"provider": token}).headers["location"]
        back = urlsplit(browser.post(there, data={"sub": user.sub}).headers["location"])
        assert back.path == "/oauth2callback"
        browser.get(f"{address}{back.path}?{back.query}")
        return {cookie.name: cookie.value for cookie in browser.cookies.jar}


def logged_in(address, provider, user):
    """Return the claims that the app's cookie holds after a login, None without one."""
    cookie = cookies_of(address, provider, user).get("_streamlit_user")
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


class Visitor:
    """Somebody who has logged in, in a browser of their own."""

    def __init__(self, chromium, address, user):
        self.address, self._watch = address, Watch()
        context = chromium.new_context(viewport=WIDE)
        context.route(lambda url: not ON_HOST.match(url), lambda route: route.abort())  # the provider's own page asks
        self.page = context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.page.goto(f"{address}/runs")
        self.page.get_by_role("button", name="Log in").click()
        self.page.get_by_role("button", name=user.sub, exact=True).click()
        self._watch.follow(self.page)
        self.page.get_by_text(f"{user.claims['name']} · ").wait_for()

    def visit(self, place):
        """Open a page."""
        self.page.goto(f"{self.address}/{place}")
        settle(self.page)

    def choose_first_run(self):
        """Choose the first row of the list of runs; its details follow."""
        canvas = self.page.get_by_test_id("stDataFrame").locator("canvas").first
        canvas.scroll_into_view_if_needed()
        place = canvas.bounding_box()  # the grid lies above its canvas and takes the click
        self.page.mouse.click(place["x"] + 20, place["y"] + 52)
        self.page.get_by_role("textbox", name="Name").wait_for()

    def session(self, path):
        """Open a session as whoever is logged in here, which sends what no page would."""
        cookies = self.page.context.cookies(self.address)
        return Session(self.address, path, cookies={cookie["name"]: cookie["value"] for cookie in cookies})

    def leave(self):
        """Close the browser, in which nothing has gone wrong."""
        self.page.goto("about:blank")
        self.page.context.close()
        assert not self._watch.problems


@pytest.mark.browser
@pytest.mark.slow
def test_two_people_look_at_each_others_runs_and_leave_them_alone(chromium, address, home):
    from playwright.sync_api import expect

    runs = Store(home / "store").runs
    ben, cara = (Visitor(chromium, address, user) for user in (BEN, CARA))
    expect(ben.page.get_by_role("heading", level=1)).to_contain_text("experts reach")
    ben.page.get_by_role("button", name="Run", exact=True).click()
    expect(ben.page.get_by_text("These settings are running")).to_be_visible()
    expect(ben.page.get_by_role("button", name="Cancel")).to_be_enabled()
    run, *_ = runs.list(person="ben@example.org", kinds=("run",))  # the newest
    small = runs.submit("run", {"recipe": SMALL, "projection": None}, name="Small", person="ben@example.org")

    cara.visit("runs")
    expect(cara.page.get_by_text("Cara · member")).to_be_attached()
    cancel = cara.page.locator(f"[class*='st-key-runs-cancel-{run.id}'] button").first
    expect(cancel).to_be_disabled()
    cancel.hover(force=True)
    expect(cara.page.get_by_text(NOT_HERS)).to_be_visible()
    with cara.session("runs") as forged:
        assert forged.widget(f"runs.cancel.{run.id}").inner.disabled
        forged.click(f"runs.cancel.{run.id}")
    assert runs.get(run.id).state in ("queued", "running")

    admin = Session(address, "runs", cookies=cookies_of(address, "default", ANNA))
    with admin:
        assert not admin.widget(f"runs.cancel.{run.id}").inner.disabled
        admin.click(f"runs.cancel.{run.id}")
    assert runs.wait(run.id, PATIENCE / 1000).state == "cancelled"

    assert runs.wait(small.id, 600).state == "finished"
    cara.visit(f"?run={small.id}")
    expect(cara.page.get_by_role("heading", level=1)).to_contain_text("Two experts reach")
    cara.page.get_by_role("button", name="Run", exact=True).click()  # a copy, which is hers
    expect(cara.page.get_by_text("Finished in")).to_be_visible()
    copies = runs.list(person="cara@example.org", kinds=("run",))
    assert [row.request["recipe"]["probe"]["samples_per_task"] for row in copies] == [8]
    cara.visit(f"compare?runs={small.id},{copies[0].id}")
    expect(cara.page.get_by_text("the recipes ask for the same")).to_be_visible()

    cara.visit("runs?runs.filter=Failed")
    cara.choose_first_run()
    for name in ("Delete", "Save", "Try again"):
        expect(cara.page.get_by_role("button", name=name).first).to_be_disabled()
    expect(cara.page.get_by_text(NOT_HERS).first).to_be_visible()
    for visitor in (ben, cara):
        visitor.leave()
