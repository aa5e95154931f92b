"""Container file, compose file, units and document that deploy the app, carried out as they stand, line by line."""

from __future__ import annotations

import re
import shutil
import signal
from contextlib import ExitStack

import pytest

from tests.e2e import machines
from tests.e2e.compose import Containers
from tests.e2e.documents import Shell, commands
from tests.e2e.machines import Machine, Network, copy_tracked, link_packages, tracked
from tests.e2e.served import HOST, Browser, Provider, certificate, fill_in_login, until
from tests.e2e.units import Units

RECIPE = {"zoo": "mini8", "experts": ["digits", "signs"], "probe": {"samples_per_task": 8}}
ASK = f"""
from engine.store import Store
row = Store().runs.wait(Store().runs.submit("run", {{"recipe": {RECIPE}, "projection": None}}).id, 280)
print(row.state, row.error)
"""
AS_MERGELENS = "set -a; . /etc/mergelens/environment; exec .venv/bin/python"
ENDED = (0, -signal.SIGTERM, 128 + signal.SIGTERM)  # Streamlit's server passes the signal on to itself at its end
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}

pytestmark = pytest.mark.slow


def needed(*programs):
    """Skip where there is no way to carry it out."""
    if reason := machines.why_not():
        pytest.skip(f"machines cannot be made here: {reason}")
    if lacking := [name for name in programs if not shutil.which(name)]:
        pytest.skip(f"not installed here: {', '.join(lacking)}")


def check_the_door(browser, provider):
    """See that the proxy hands on what it should to whom it should, and that people log in."""
    assert browser.ask("/", port=80)[0].headers["location"] == f"https://{HOST}/"
    answer, text = browser.ask("/")
    assert (answer.status, "<title>" in text) == (200, True)
    assert answer.headers["strict-transport-security"]
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert browser.ask("/metrics")[0].status == 404
    assert browser.ask("/", told_host="elsewhere.example.org")[0].status == 403
    assert browser.log_in(provider)
    assert browser.ask("/_stcore/stream", headers={**UPGRADE, "Origin": f"https://{HOST}"})[0].status == 101
    assert browser.ask("/_stcore/stream", headers={**UPGRADE, "Origin": "https://evil.example"})[0].status == 403


@pytest.fixture(scope="module")
def containers(tmp_path_factory):
    needed("nginx", "initdb", "postgres", "openssl")
    with ExitStack() as stack:
        yield Containers(tmp_path_factory.mktemp("compose"), stack)


def test_containers_carry_out_what_is_asked_for(containers):
    found = Browser(containers.network, containers.certificate)
    otherwise = {
        r"docker compose up --build --detach$": lambda _: containers.up(),
        r"docker compose exec ": containers.execute_line,
    }
    shell = Shell(containers.host, otherwise)
    first, second = commands("deploy.md", "The same in containers")
    shell.carry_out(first)
    containers.write_values()
    shell.carry_out(second)
    until(found.reached, "the proxy", [containers.processes["proxy"]])
    check_the_door(found, containers.provider)
    done = containers.execute("page", "python", "-c", ASK)
    assert done.stdout.strip() == "finished", done.stderr + containers.processes["engine"].log.read_text()[-3000:]
    assert "The engine is ready" in containers.execute("engine", "python", "-m", "engine", "doctor").stdout


def test_containers_end_when_they_are_told_to(containers):
    for name in ("proxy", "page", "engine"):
        process = containers.processes[name]
        process.signal(signal.SIGTERM)
        assert process.wait(30) in ENDED, process.log.read_text()[-3000:]


def test_a_server_is_set_up_line_by_line(tmp_path):
    needed("nginx", "initdb", "postgres", "pg_dump", "openssl", "curl", "runuser")
    with ExitStack() as stack:
        server = Server(tmp_path, stack)
        install, proxy, looks = commands("deploy.md", "A server for a team")
        server.shell.carry_out(install)
        server.write_values()
        server.shell.carry_out(proxy)
        server.until_ready()
        _, numbers, said = server.shell.carry_out(looks)
        assert "mergelens_engine_ready 1.0" in numbers
        assert "The engine is ready" in said
        check_the_door(Browser(server.network, server.certificate), server.provider)
        server.check_units()
        server.ask()

        for block in commands("deploy.md", "PostgreSQL"):
            said = server.shell.carry_out(block)
            assert any("1 runs were in it" in text or "1 came back" in text for text in said)
            server.until_ready()
        server.ask()
        assert "2 runs" in server.engine("doctor")

        for block in commands("deploy.md", "Workers on other machines"):
            server.shell.carry_out(block)
        server.until_ready()
        server.ask()
        assert "2 workers" in (said := server.engine("doctor"))
        assert "tls://scheduler.example.org:8786" in said
        for name in ("mergelens-page", "mergelens-engine", "mergelens-worker@1", "mergelens-scheduler"):
            server.units.stop(name)
        assert set(server.units.ends.values()) <= {*ENDED}, server.units.ends


def test_a_laptop_needs_no_more(tmp_path):
    needed("make")
    with ExitStack() as stack:
        network = Network()
        stack.callback(network.close)
        machine = Machine(network, tmp_path / "laptop")
        stack.callback(machine.close)
        machine.sh("useradd --create-home somebody")
        copy_tracked(machine.upper / "home/somebody/mergelens", tracked())
        machine.sh("chown -R somebody: /home/somebody/mergelens")
        (make_app,), without = commands("deploy.md", "Laptop")
        for line in (*without, make_app):
            _as_somebody(machine, line, tmp_path)


def _as_somebody(machine, line, folder):
    """Carry a line of the laptop out: what serves is left to serve for a while, then ended by Ctrl-C."""
    home = "/home/somebody/mergelens"
    told = {"HOME": "/home/somebody", "PATH": machines.PATH}
    if "pip install" in line:
        link_packages(machine, f"{home}/.venv")
        machine.sh("touch .venv/.runtime", home=home, user="somebody")  # make would install otherwise
    elif line == "make app" or "app.py" in line:
        serving = machine.start(
            line.split(), user="somebody", home=home, environment=told, log=folder / "log", alone=True
        )
        path = "/readyz" if line == "make app" else "/healthz"
        ask = ["curl", "--fail", "--silent", f"http://localhost:8501{path}"]
        until(lambda: machine.run(ask).returncode == 0, line, [serving])
        serving.signal_all(signal.SIGINT)
        serving.wait(30)
    else:
        machine.sh(line, home=home, user="somebody", environment=told)


class Server:
    """A server on which nothing is yet but the project in /opt/mergelens."""

    def __init__(self, folder, stack):
        self.network = Network()
        stack.callback(self.network.close)
        self.provider = Provider(self.network)
        stack.callback(self.provider.close)
        self.machine = Machine(self.network, folder / "server", hosts=[HOST, "scheduler.example.org"])
        stack.callback(self.machine.close)
        copy_tracked(self.machine.upper / "opt/mergelens", tracked())
        self.certificate = certificate(folder / "tls")
        self.machine.put(folder / "tls", "/srv/certificate")
        self.units = Units(self.machine, folder)
        otherwise = {
            "apt-get install": lambda _: None,  # what this test needs was looked for at its beginning
            r"\.venv/bin/pip install": lambda _: link_packages(self.machine, "/opt/mergelens/.venv"),
            "systemctl": self.units.control,
        }
        self.shell = Shell(self.machine, otherwise)

    def write_values(self):
        """Write what an owner has to: the provider and its secrets."""
        told = self.machine.upper / "etc/mergelens/environment"
        told.write_text(told.read_text().replace("https://login.example.org", self.provider.address))
        fill_in_login(self.machine.upper / "etc/mergelens/login.toml", self.provider)

    def until_ready(self):
        """Wait for the engine and the page."""
        ask = ["curl", "--fail", "--silent", "http://127.0.0.1:8501/readyz"]
        until(lambda: self.machine.run(ask).returncode == 0, "the server", self.units.running.values())

    def ask(self):
        """Submit a run as a page does, and wait for it."""
        done = self._as_mergelens("-c", ASK)
        logs = self.units.running["mergelens-engine"].log.read_text()
        assert done.stdout.strip() == "finished", done.stdout + done.stderr + logs[-3000:]

    def engine(self, command):
        """Return what a command of the engine prints."""
        return self._as_mergelens("-m", "engine", command).stdout

    def check_units(self):
        """Have systemd look at the units, where it is installed."""
        if shutil.which("systemd-analyze"):
            found = self.machine.run(
                ["sh", "-c", "systemd-analyze verify --man=no /etc/systemd/system/mergelens-*.service"]
            )
            assert "mergelens" not in re.sub(r"^Unit .* not found.*$", "", found.stderr, flags=re.M), found.stderr

    def _as_mergelens(self, *words):
        command = ["sh", "-c", AS_MERGELENS + ' "$@"', "sh", *words]
        return self.machine.run(
            command, user="mergelens", home="/opt/mergelens", environment={"HOME": "/var/lib/mergelens"}
        )
