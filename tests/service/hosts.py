"""Hosts made of Linux namespaces: each with a name, processes and a network of its own, joined by a switch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")
NETWORK = "10.77.0"
AGAIN = 'while :; do "$@"; sleep 1; done'  # as a unit with Restart=always


def why_not() -> str:
    """Say why this process can make no hosts; empty when it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs Linux and root to make namespaces"
    if missing := [name for name in ("unshare", "nsenter", "ip", "setpriv", "openssl") if not shutil.which(name)]:
        return f"needs {', '.join(missing)}"
    tried = "ip link add br0 type bridge && ip link add here type veth peer name there"
    return subprocess.run(["unshare", "-mpnu", "--fork", "sh", "-c", tried], capture_output=True, text=True).stderr


def hold(*spaces: str, script: str) -> subprocess.Popen[str]:
    """Start a process that keeps new namespaces, and wait until its script is done."""
    command = [*DIES_WITH_US, "unshare", *spaces, "sh", "-ec", f"{script}; echo ready; exec sleep infinity"]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    return holder


class Switch:
    """A switch that hosts are plugged into."""

    def __init__(self) -> None:
        self.holder = hold("-n", script="ip link set lo up; ip link add br0 type bridge; ip link set br0 up")

    def ip(self, line: str) -> None:
        """Carry a command of ``ip`` out at the switch."""
        subprocess.run(["nsenter", "-t", str(self.holder.pid), "-n", "ip", *line.split()], check=True)

    def close(self) -> None:
        """End."""
        self.holder.kill()
        self.holder.wait()


class Host:
    """A host at a switch. The file system is everybody's, as a shared folder would be."""

    def __init__(self, switch: Switch, number: int, log: Path) -> None:
        self.address, self.log = f"{NETWORK}.{number}", log
        self._switch, self._cable = switch, f"v{number}"
        script = f"hostname host-{number}; ip link set lo up"
        self._holder = hold("-nump", "--fork", "--kill-child", "--mount-proc", script=script)
        self.inner = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text().split()[0]
        switch.ip(f"link add {self._cable} type veth peer name eth0 netns {self.inner}")
        switch.ip(f"link set {self._cable} master br0 up")
        for line in (f"addr add {self.address}/24 dev eth0", "link set eth0 up"):
            subprocess.run(["nsenter", "-t", self.inner, "-n", "ip", *line.split()], check=True)

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a program; when it ends, it is started again."""
        enter = ["nsenter", "-t", self.inner, "-m", "-u", "-n", "-p", "sh", "-c", AGAIN, "sh", *command]
        with self.log.open("ab") as output:
            subprocess.Popen(enter, env=dict(environment), stdout=output, stderr=output, cwd=ROOT)

    def cut(self) -> None:
        """Unplug it."""
        self._switch.ip(f"link set {self._cable} down")

    def mend(self) -> None:
        """Plug it in again."""
        self._switch.ip(f"link set {self._cable} up")

    def vanish(self) -> None:
        """End it without a word to anybody."""
        self.cut()
        self.close()
        self._switch.ip(f"link delete {self._cable}")

    def close(self) -> None:
        """End it with all that runs in it."""
        self._holder.kill()
        self._holder.wait()


def certificates(folder: Path) -> dict[str, str]:
    """Make an authority and a node's certificate, and return how dask is told of them."""
    folder.mkdir()
    for line in (
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout authority.key -out authority.pem",
        "req -newkey rsa:2048 -nodes -subj /CN=node -keyout node.key -out node.csr",
        "x509 -req -in node.csr -CA authority.pem -CAkey authority.key -CAcreateserial -days 2 -out node.pem",
    ):
        subprocess.run(["openssl", *line.split()], cwd=folder, check=True, capture_output=True)
    told = {"CA_FILE": "authority.pem"}
    told |= {f"{who}__{what}": f"node.{end}" for who in ("SCHEDULER", "WORKER", "CLIENT") for what, end in ENDS.items()}
    found = {f"DASK_DISTRIBUTED__COMM__TLS__{name}": str(folder / file) for name, file in told.items()}
    return {**found, "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "true"}


ENDS = {"CERT": "pem", "KEY": "key"}
