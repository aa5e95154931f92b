"""The app answers under its own name and port, to its own pages, and binds browsers; no browser needed to see it."""

import http.client
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pytest

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
SCRIPT_TAG = "script-src 'self' blob: 'sha256-"


@pytest.fixture(scope="module")
def address(app_address):
    return urlsplit(app_address)


def ask(address, path="/", **headers):
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=30)
    connection.putrequest("GET", path, skip_host=True)
    for name, value in {"Host": address.netloc, **headers}.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    if answer.status != 101:
        answer.read()
    connection.close()
    return answer


def open_stream(address, **headers):
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": "13", "Sec_WebSocket_Key": KEY}
    return ask(address, "/_stcore/stream", **upgrade, **headers).status


@pytest.fixture(params=["page", "health", "websocket"])
def status_of(request, address):
    if request.param == "websocket":
        return lambda **headers: {101: 200}.get(found := open_stream(address, **headers), found)
    path = "/" if request.param == "page" else "/_stcore/health"
    return lambda **headers: ask(address, path, **headers).status


def test_own_names_and_origins_are_answered(status_of, address):
    assert status_of() == 200
    assert status_of(Host=f"localhost:{address.port}") == 200
    assert status_of(Origin=f"http://{address.netloc}") == 200


@pytest.mark.parametrize(
    ("path", "said"),
    [("/healthz", {200: "ok"}), ("/readyz", {200: "ready", 503: "engine: "}), ("/metrics", {200: "# HELP mergelens_"})],
)
def test_probes_are_answered_beside_the_pages(address, path, said):
    try:
        with urllib.request.urlopen(f"http://{address.netloc}{path}", timeout=60) as answer:
            status, text = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    assert text.startswith(said[status])
    assert ask(address, path, Host="evil.example").status == 403


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "OPTIONS"])
def test_streamlits_own_place_for_uploads_is_closed(address, method):
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=30)
    connection.request(method, "/_stcore/upload_file/session/file", body=b"x" * 10, headers={"Host": address.netloc})
    answer = connection.getresponse()
    assert (answer.status, b"Bring your own" in answer.read()) == (403, True)
    connection.close()


@pytest.mark.parametrize("host", ["evil.example", "localhost", "localhost:1", "127.0.0.1.evil.example", "", "[::1"])
def test_foreign_hosts_are_refused(status_of, host):
    assert status_of(Host=host) in (400, 403)


@pytest.mark.parametrize("origin", ["http://localhost:9999", "http://127.0.0.1", "https://evil.example", "null", ""])
def test_foreign_origins_are_refused_at_once(status_of, origin):
    began = time.monotonic()
    assert status_of(Origin=origin) == 403
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("path", ["/", "/_stcore/health", "/static/js/none.js", "/runs"])
def test_browsers_are_bound(address, path):
    headers = ask(address, path).headers
    policy = headers["content-security-policy"]
    assert "frame-ancestors 'none'" in policy
    assert "default-src 'self'" in policy
    assert SCRIPT_TAG in policy
    assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["x-frame-options"] == "DENY"
