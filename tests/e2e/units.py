"""Units as they stand, started on machines of namespaces as systemd would: who, where, told what, writing where."""

from __future__ import annotations

import configparser
import re
import shlex
import signal
from pathlib import Path

from tests.e2e.machines import PATH, Machine, Process

STRICT = """
for place in $WRITABLE; do mount --bind "$place" "$place"; done
mount -o remount,bind,ro /
exec setpriv --reuid="$SERVE_AS" --regid="$SERVE_AS" --init-groups env -u WRITABLE -u SERVE_AS "$@"
"""


def read_unit(text: str) -> configparser.ConfigParser:
    """Return the sections of a unit."""
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return parser


def read_environment(text: str) -> dict[str, str]:
    """Return what an environment file says, as systemd reads it: quotes around a value are no part of it."""
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    found = dict(line.split("=", 1) for line in lines)
    return {name: "".join(shlex.split(value)) if value[:1] in "\"'" else value for name, value in found.items()}


class Units:
    """The units of a machine: those of the project from their files, others by what stands for them here."""

    def __init__(self, machine: Machine, logs: Path) -> None:
        self._machine, self._logs = machine, logs
        self.running: dict[str, Process] = {}
        self.ends: dict[str, int] = {}  # with which status units ended that were stopped

    def control(self, line: str) -> None:
        """Do what a line with ``systemctl`` asks for."""
        words = [word for word in shlex.split(line)[1:] if word != "--now"]
        for name in words[1:]:
            if words[0] in ("stop", "restart") and name in self.running:
                self.stop(name)
            if words[0] in ("start", "enable", "restart"):
                self._begin_database() if name == "postgresql" else self.start(name)
            if words[0] == "reload":
                assert name == "nginx"
                self._machine.sh("nginx")  # the package would have started it
        assert words[0] in ("start", "stop", "restart", "enable", "reload", "daemon-reload"), line

    def start(self, name: str) -> None:
        """Start a unit of ``/etc/systemd/system``; its environment is read now."""
        kind, _, instance = name.partition("@")
        file = f"/etc/systemd/system/{kind}{'@' if instance else ''}.service"
        service = read_unit(self._machine.sh(f"cat {file}"))["Service"]
        account = service["User"]
        home = self._machine.sh(f"getent passwd {account}").split(":")[5]
        told = {"PATH": PATH, "HOME": home, "USER": account}
        told |= dict([service["Environment"].split("=", 1)]) if "Environment" in service else {}
        told |= read_environment(self._machine.sh(f"cat {service['EnvironmentFile']}"))
        line = service["ExecStart"].replace("%i", instance).replace("%H", "here")
        line = re.sub(r"\$\{(\w+)\}", lambda found: told[found[1]], line)
        assert service["ProtectSystem"] == "strict"
        told |= {"WRITABLE": service["ReadWritePaths"], "SERVE_AS": account}
        command = ["unshare", "-m", "sh", "-c", STRICT, "unit", *shlex.split(line)]
        self.running[name] = self._machine.start(
            command, home=service["WorkingDirectory"], environment=told, log=self._logs / f"{name}.log"
        )

    def stop(self, name: str, seconds: float = 30) -> None:
        """Stop a unit as systemd does."""
        process = self.running.pop(name)
        process.signal(signal.SIGTERM)
        self.ends[name] = process.wait(seconds)

    def _begin_database(self) -> None:
        """Make and start what Debian's package makes and starts: who asks through the socket is who they are."""
        self._machine.sh("install -d -o postgres -g postgres /data-of-postgres /var/run/postgresql")
        told = {"user": "postgres", "environment": {"LANG": "C.UTF-8"}}
        self._machine.sh("initdb -D /data-of-postgres --auth-local=peer", **told)
        self._machine.sh("pg_ctl -D /data-of-postgres -l /data-of-postgres/log -w start", **told)
