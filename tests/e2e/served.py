"""A served app behind its proxy: a provider at which people log in, and somebody who asks over TLS."""

from __future__ import annotations

import http.client
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from oidc_provider_mock import User, app
from werkzeug.serving import make_server

from tests.e2e.machines import Network, Process

HOST = "merge.example.org"
PATIENCE = 400  # seconds that a service has to become ready, where many work on few cores
COOKIES = "a secret that signs cookies, long enough"
ANNA = User(sub="anna", claims={"email": "anna@example.org", "name": "Anna", "groups": ["lab"]})


def until(ready: Callable[[], bool], what: str, processes: Iterable[Process] = ()) -> None:
    """Wait for something; logs of those that it depends on say why it does not come."""
    deadline, processes = time.monotonic() + PATIENCE, list(processes)
    while time.monotonic() < deadline and all(process.running for process in processes):
        if ready():
            return
        time.sleep(0.3)
    logs = "\n".join(f"{process.log}:\n{process.log.read_text()[-3000:]}" for process in processes)
    raise AssertionError(f"{what} did not come about\n{logs}")


def certificate(folder: Path) -> Path:
    """Make a key and a certificate of the app's name; returns the certificate."""
    folder.mkdir(parents=True, exist_ok=True)
    subject = ["-subj", f"/CN={HOST}", "-addext", f"subjectAltName=DNS:{HOST}"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "cert.pem"


def fill_in_login(file: Path, provider: Provider) -> None:
    """Write into a copy of the example what the provider gave."""
    text = file.read_text().replace("https://login.example.org", provider.address)
    text = text.replace('cookie_secret = ""', f'cookie_secret = "{COOKIES}"')
    file.write_text(text.replace('client_secret = ""', 'client_secret = "x"'))


class Provider:
    """An OIDC provider on a network's loopback."""

    def __init__(self, network: Network) -> None:
        self._server = network.within(lambda: make_server("127.0.0.1", 0, app(user_claims=[ANNA]), threaded=True))
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.address = f"http://localhost:{self._server.server_port}"

    def close(self) -> None:
        """End."""
        self._server.shutdown()


class Browser:
    """Asks the proxy of a network under the app's name, trusts one certificate, keeps cookies."""

    def __init__(self, network: Network, trusted: Path) -> None:
        self._network, self._trust = network, ssl.create_default_context(cafile=str(trusted))
        self.cookies: dict[str, str] = {}

    def ask(
        self,
        path: str,
        *,
        port: int = 443,
        told_host: str = HOST,
        headers: Mapping[str, str] | None = None,
        body: str | None = None,
    ) -> tuple[http.client.HTTPResponse, str]:
        """Send a request, with POST where it has a body; returns the answer and its text."""
        return self._network.within(lambda: self._ask(path, port, told_host, headers or {}, body))

    def reached(self) -> bool:
        """Return whether the page answers behind the proxy."""
        try:
            return self.ask("/healthz")[0].status == 200
        except OSError:
            return False

    def log_in(self, provider: Provider) -> bool:
        """Go the way of a login as Anna; returns whether it ended with a cookie."""
        from streamlit import auth_util, config

        config.set_option("server.cookieSecret", COOKIES)
        answer, _ = self.ask(f"/auth/login?provider={auth_util.encode_provider_token('default')}")
        there = urlsplit(answer.headers["location"])
        assert f"http://{there.netloc}" == provider.address
        form = {"content-type": "application/x-www-form-urlencoded"}
        path = f"{there.path}?{there.query}"
        answer, _ = self.ask(path, port=there.port or 0, told_host=there.netloc, headers=form, body="sub=anna")
        back = urlsplit(answer.headers["location"])
        assert (back.scheme, back.netloc) == ("https", HOST)
        self.ask(f"{back.path}?{back.query}")
        return "_streamlit_user" in self.cookies

    def _ask(
        self, path: str, port: int, told_host: str, headers: Mapping[str, str], body: str | None
    ) -> tuple[http.client.HTTPResponse, str]:
        plain = socket.create_connection(("127.0.0.1", port), timeout=60)
        connection = http.client.HTTPConnection(told_host, port)
        connection.sock = self._trust.wrap_socket(plain, server_hostname=HOST) if port == 443 else plain
        kept = "; ".join(f"{name}={value}" for name, value in self.cookies.items()) if port == 443 else ""
        told = {"Host": told_host, **({"Cookie": kept} if kept else {}), **headers}
        connection.request("GET" if body is None else "POST", path, body=body, headers=told)
        answer = connection.getresponse()
        content = b"" if answer.status == 101 else answer.read()
        connection.close()
        for line in (answer.headers.get_all("set-cookie") or []) if port == 443 else ():
            name, _, value = line.split(";")[0].partition("=")
            self.cookies[name] = value
        return answer, content.decode(errors="replace")
