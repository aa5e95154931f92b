"""The services of the compose file, each on a machine of its own, started as they stand.

The database's and the proxy's images are other people's: in place of the first one's entry point a cluster is made with
the user, name and password that the file gives, and both programs are this machine's.
"""

from __future__ import annotations

import shlex
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.e2e.images import build, composed
from tests.e2e.machines import Machine, Network, Process, copy_tracked, tracked
from tests.e2e.served import HOST, Provider, certificate, fill_in_login, until
from tests.e2e.units import read_environment

DATA = "/data-of-postgres"
POSTGRES = ["postgres", "-D", DATA, "-c", "listen_addresses=127.0.0.1"]
OURS = "mergelens"
PASSWORD = "secret"


class Containers:
    """A host with the project in /opt/mergelens, and what compose would start on it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self.network = Network()
        stack.callback(self.network.close)
        self.provider = Provider(self.network)
        stack.callback(self.provider.close)
        self.host = Machine(self.network, folder / "host")
        stack.callback(self.host.close)
        copy_tracked(self.host.upper / "opt/mergelens", tracked())
        self.certificate = certificate(folder / "tls")
        self.host.put(folder / "tls", "/srv/certificate")
        self._place = self.host.upper / "opt/mergelens/deploy"
        self.processes: dict[str, Process] = {}
        self._machines: dict[str, Machine] = {}

    def write_values(self) -> None:
        """Write what an owner has to: the provider, its secrets, a password of the database."""
        told = self._place / ".env"
        text = told.read_text().replace("https://login.example.org", self.provider.address)
        told.write_text(text.replace("PASSWORD=", f"PASSWORD={PASSWORD}"))
        fill_in_login(self._place / "login.toml", self.provider)

    def up(self) -> None:
        """Build the image and start the services, each when those that it depends on are healthy."""
        self._services = composed(self._place / "compose.yaml", read_environment((self._place / ".env").read_text()))
        self._image = build(self._place / "Dockerfile", self.network, self._folder / "image")
        subprocess.run(["cp", "-a", str(self._image.layer / "data"), str(self._folder / "data")], check=True)
        waiting = dict(self._services["services"])
        while waiting:
            ready = [name for name, one in waiting.items() if not set(one.get("depends_on", ())) & set(waiting)]
            assert ready, f"{sorted(waiting)} wait for each other"
            for name in ready:
                self._start(name, waiting.pop(name))

    def execute(self, name: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Carry a command out in a service's container."""
        service = self._services["services"][name]
        return self._machines[name].run(command, **self._options(service))

    def execute_line(self, line: str) -> None:
        """Carry out what ``docker compose exec`` is given, which has to succeed."""
        _, _, _, name, *command = shlex.split(line)
        if name == "database":
            command = ["env", f"PGPASSWORD={PASSWORD}", *command]  # the image trusts whoever is inside it
        done = self.execute(name, *command)
        assert done.returncode == 0, done.stdout + done.stderr

    def _start(self, name: str, service: dict[str, Any]) -> None:
        ours = service["image"] == OURS
        machine = Machine(
            self.network,
            self._folder / name,
            image=self._image.layer if ours else None,
            binds=dict(self._mounts(service)),
            hosts=[*self._services["services"], HOST],
            scratch=service.get("tmpfs", []),
            read_only=service.get("read_only", False),
        )
        self._stack.callback(machine.close)
        self._machines[name] = machine
        if name == "database":
            self._make_cluster(machine, service["environment"])
        machine.sh("rm -f /etc/nginx/sites-enabled/*") if name == "proxy" else None
        command = service.get("command", POSTGRES)
        log = self._folder / f"{name}.log"
        process = self.processes[name] = machine.start(command, log=log, **self._options(service))
        if name == "database":
            self._make_database(machine, service["environment"], process)
        health = service.get("healthcheck", {}).get("test") or (["CMD", *self._image.health] if ours else None)
        if health is not None:
            assert health[0] == "CMD"
            until(lambda: self.execute(name, *health[1:]).returncode == 0, f"health of {name}", [process])

    def _mounts(self, service: dict[str, Any]) -> list[tuple[Path, str]]:
        found = []
        for volume in service.get("volumes", []):
            source, target = volume.split(":")[:2]
            if source.startswith("."):
                found.append((self._place / source, target))
            elif service["image"] == OURS:
                found.append((self._folder / source, target))
        for secret in service.get("secrets", []):
            file = self._services["secrets"][secret["source"]]["file"]
            found.append((self._place / file, f"/run/secrets/{secret['target']}"))
        return found

    def _options(self, service: dict[str, Any]) -> dict[str, Any]:
        if service["image"] != OURS:
            return {"user": "postgres"} if service["image"].startswith("postgres") else {}
        environment = {**self._image.environment, **service["environment"], "HOME": f"/home/{self._image.user}"}
        return {"user": self._image.user, "home": self._image.folder, "environment": environment}

    def _make_cluster(self, machine: Machine, told: dict[str, str]) -> None:
        machine.sh(f"install -d -o postgres -g postgres -m 0700 {DATA}; install -d -o postgres /var/run/postgresql")
        machine.sh(f"echo {told['POSTGRES_PASSWORD']} > /tmp/password; chmod 644 /tmp/password")
        words = f"-U {told['POSTGRES_USER']} --pwfile=/tmp/password -A scram-sha-256"
        machine.sh(f"initdb -D {DATA} {words}", user="postgres", environment={"LANG": "C.UTF-8"})

    def _make_database(self, machine: Machine, told: dict[str, str], process: Process) -> None:
        reach = f"-h 127.0.0.1 -U {told['POSTGRES_USER']}"
        until(lambda: machine.run(["pg_isready", *reach.split()]).returncode == 0, "the database", [process])
        machine.sh(f"PGPASSWORD={told['POSTGRES_PASSWORD']} createdb {reach} {told['POSTGRES_DB']}")
