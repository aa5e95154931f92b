"""The app as a process and a browser that notices what must not happen: errors, and requests off the host."""

import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = Path(os.environ.get("MERGELENS_CHROMIUM", "/usr/bin/chromium"))
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-features=PreloadTopChromeWebUI,WebUIOmniboxPopup,WebUIOmniboxAimPopup",  # parts of a window nobody sees
    "--process-per-site",  # with the next two, a page finds the scripts compiled that another one has loaded
    "--disable-site-isolation-trials",
    "--renderer-process-limit=1",
]
ON_HOST = re.compile(r"^((https?|wss?)://(127\.0\.0\.1|localhost)[:/]|data:|blob:|about:)")
DRAWN = "() => document.querySelector('[data-testid=stApp]')?.dataset.testScriptState === 'notRunning'"
TURN = (
    "(address) => { history.pushState({}, '', address); dispatchEvent(new PopStateEvent('popstate', { state: {} })) }"
)
TURNED = "(before) => ![undefined, before].includes(document.querySelector('h1')?.innerText)"
PATIENCE = 120_000  # ms that a condition is waited for, where many work on few cores
SVG = "{http://www.w3.org/2000/svg}"
WIDE = {"width": 1280, "height": 800}
FAREWELL = 30  # seconds that a server has to end
PAINTED = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
LOOKS = """() => {
  const app = document.querySelector('[data-testid=stApp]')
  const words = (selector) => [...document.querySelectorAll(selector)].map((part) => part.innerText)
  return {
    state: app?.dataset.testScriptState, connection: app?.dataset.testConnectionState,
    headings: words('h1, h2, h3'), alerts: words('[role=alert]'), dialogs: words('[role=dialog]'),
    hidden: [...document.querySelectorAll('[aria-hidden=true], [inert]')].map((part) => part.outerHTML.slice(0, 80)),
    text: document.body.innerText.slice(0, 1500),
  }
}"""
PROBING = re.compile(r"/(health|host-config)$")  # Streamlit asks for these below a page's own path first, and gets 404


@dataclass
class Watch:
    """Errors of a browser page."""

    problems: list[str] = field(default_factory=list)

    def follow(self, page: Any) -> None:
        """Listen to a page."""
        page.on("pageerror", lambda error: self.problems.append(f"page error: {error}"))
        page.on("console", self._console)
        page.on("request", self._request)

    def _console(self, message: Any) -> None:
        where = (message.location or {}).get("url", "")
        if message.type == "error" and not PROBING.search(where):
            self.problems.append(f"console: {message.text} ({where})")

    def _request(self, request: Any) -> None:
        if not ON_HOST.match(request.url):
            self.problems.append(f"request off the host: {request.url}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
    """Tell what a page looked like when its test failed, and what went wrong in it, also where another try passes."""
    if call.when == "teardown" and call.excinfo is not None:
        warnings.warn(f"{item.nodeid} ended with {call.excinfo.value}", stacklevel=1)
    if call.when == "call" and call.excinfo is not None:
        for page in getattr(item, "funcargs", {}).values():
            if type(page).__name__ == "Page":
                warnings.warn(f"{item.nodeid} failed at {page.url}: {_look(page)}", stacklevel=1)
    return (yield)


def _look(page: Any) -> Any:
    try:
        return page.evaluate(LOOKS)
    except Exception as error:  # a page that is gone must not hide the failure
        return f"nothing to be seen, {error}"


def settle(page: Any) -> None:
    """Wait until a page has a heading and its script has ended."""
    page.get_by_role("heading").first.wait_for(timeout=PATIENCE)
    page.wait_for_function(DRAWN, timeout=PATIENCE)


def turn(page: Any, address: str) -> None:
    """Turn to another page of an app, which has another heading, as the browser's back button does.

    A load would evaluate Streamlit's and Plotly's scripts anew, which takes a browser more than most pages do.
    """
    before = page.locator("h1").inner_text()
    page.evaluate(TURN, address)
    page.wait_for_function(TURNED, arg=before, timeout=PATIENCE)
    settle(page)


def saved(page: Any, form: str) -> bytes:
    """Save the linked feature view in a format and return the file's bytes."""
    with page.expect_download() as download:
        page.get_by_role("button", name=form, exact=True).click()
    assert download.value.suggested_filename == f"features.{form.lower()}"
    return Path(download.value.path()).read_bytes()


def free_port() -> int:
    """Find a port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def serve(
    script: str,
    environment: dict[str, str],
    *,
    alone: bool = False,
    health: str = "/_stcore/health",
    port: int = 0,
) -> Iterator[str]:
    """Serve a Streamlit script with the project's configuration; yields its address.

    ``alone``: the script starts Streamlit itself, and has to end by itself when it is told to. ``health``: the address
    that answers once it serves. ``port``: a free one where it is 0.
    """
    port = port or free_port()
    start = [] if alone else ["-m", "streamlit", "run"]
    command = [sys.executable, *start, script, "--server.port", str(port)]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as server:
        try:
            _wait_until_healthy(f"http://127.0.0.1:{port}{health}", server)
            yield f"http://127.0.0.1:{port}"
        finally:
            _end(server, may_be_killed=not alone)


@contextmanager
def serve_app(
    store: Path, *, alone: bool = False, health: str = "/_stcore/health", port: int = 0, **settings: str
) -> Iterator[str]:
    """Start the app on a store, with settings of its environment; yields its address, ends app and engine service."""
    environment = {**os.environ, "MERGELENS_STORE": str(store), **settings}
    try:
        with serve("app.py", environment, alone=alone, health=health, port=port) as address:
            yield address
    finally:
        stop = [sys.executable, "-m", "engine", "serve", "--stop"]
        subprocess.run(stop, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, timeout=PATIENCE / 1000)


@contextmanager
def open_browser() -> Iterator[Any]:
    """Chromium through Playwright, patient."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE)

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The browser; without Chromium tests are skipped, in CI they fail."""
    if not CHROMIUM.exists():
        reason = f"No Chromium at {CHROMIUM}; install it or set MERGELENS_CHROMIUM."
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="session")
def profile(chromium: Any) -> Callable[..., Any]:
    """A browser profile for every set of options; its pages share what they have loaded."""
    known: dict[str, Any] = {}

    def find(**options: Any) -> Any:
        name = repr(sorted(options.items()))
        if name not in known:
            known[name] = chromium.new_context(**options)
            known[name].new_page()  # keeps the process in which pages are drawn
        return known[name]

    return find


@pytest.fixture(scope="session")
def app_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the store of the app that all journeys visit, empty before them."""
    return tmp_path_factory.mktemp("e2e") / "store"


@pytest.fixture(scope="session")
def engine_probes() -> str:
    """Host and port at which that app's engine tells its numbers."""
    return f"127.0.0.1:{free_port()}"


@pytest.fixture(scope="session")
def app_address(app_store: Path, engine_probes: str) -> Iterator[str]:
    """Address of an app that all journeys visit; it ends by itself."""
    with serve_app(app_store, alone=True, MERGELENS_ENGINE_PROBES=engine_probes) as address:
        yield address


@pytest.fixture
def app_page(profile: Callable[..., Any]) -> Iterator[Any]:
    """A browser page; afterwards nothing has gone wrong in it."""
    page = profile(viewport=WIDE).new_page()
    page.set_default_timeout(PATIENCE)
    watch = Watch()
    watch.follow(page)
    yield page
    settle(page) if page.url.startswith("http") else None  # nothing is cut short that would be told as an error
    page.close()
    assert not watch.problems


def _end(server: subprocess.Popen, *, may_be_killed: bool) -> None:
    server.terminate()
    try:
        server.wait(FAREWELL)
    except subprocess.TimeoutExpired:  # Streamlit alone waits for ever for a connection that is never used
        server.kill()
        if not may_be_killed:
            raise


def _wait_until_healthy(url: str, server: subprocess.Popen, seconds: float = PATIENCE / 1000) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"The app did not answer at {url} within {seconds} s (exit code {server.poll()}).")
