"""Machines made of Linux namespaces: a root of their own over this one's, no network but loopback, no project in sight.

They stand for containers and servers where none is at hand. What is copied or mounted into one, and what it runs, is
what a Dockerfile, a compose file, a unit or a document says; only Python's packages are this environment's.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = Path(sysconfig.get_paths()["purelib"])
HIDDEN = (ROOT, Path(sys.prefix).resolve(), Path("/root"))
NETWORK = 0x40000000  # CLONE_NEWNET
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")
T = TypeVar("T")

SET_UP = """
set -e
mount -t overlay overlay -o "lowerdir=/,upperdir=$UPPER,workdir=$WORK" "$MERGED"
for hidden in $HIDDEN; do [ ! -d "$MERGED$hidden" ] || mount -t tmpfs none "$MERGED$hidden"; done
mount -t proc proc "$MERGED/proc"
mount --rbind /sys "$MERGED/sys"
mount -t tmpfs -o mode=755 dev "$MERGED/dev"
for name in null zero full random urandom tty; do
    touch "$MERGED/dev/$name"; mount --bind /dev/$name "$MERGED/dev/$name"
done
mkdir "$MERGED/dev/shm"; mount -t tmpfs -o mode=1777 shm "$MERGED/dev/shm"
ln -s /proc/self/fd "$MERGED/dev/fd"
mount -t tmpfs -o mode=1777 tmp "$MERGED/tmp"
mkdir -p "$MERGED/opt/locked/site-packages"; mount --bind -o ro "$PACKAGES" "$MERGED/opt/locked/site-packages"
while read -r source target; do
    [ -d "$source" ] && mkdir -p "$MERGED$target" || { mkdir -p "$(dirname "$MERGED$target")"; touch "$MERGED$target"; }
    mount --bind "$source" "$MERGED$target"
done < "$BINDS"
for place in $SCRATCH; do mkdir -p "$MERGED$place"; mount -t tmpfs -o mode=1777 none "$MERGED$place"; done
[ -z "$READ_ONLY" ] || mount -o remount,ro "$MERGED"
exec chroot "$MERGED" sh -c "echo ready; exec sleep infinity"
"""


def why_not() -> str:
    """Say why this process can make no machines; empty when it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs Linux and root to make namespaces"
    tools = [name for name in ("unshare", "nsenter", "ip", "setpriv", "chroot", "mount") if not shutil.which(name)]
    if tools:
        return f"needs {', '.join(tools)}"
    tried = subprocess.run(["unshare", "-mpnu", "--fork", "true"], capture_output=True, text=True)
    return tried.stderr.strip()


class Network:
    """A network of loopback alone, which machines share."""

    def __init__(self) -> None:
        command = [*DIES_WITH_US, "unshare", "-n", "sh", "-c", "ip link set lo up && echo ready && exec sleep infinity"]
        self.holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.holder.stdout is not None
        assert self.holder.stdout.readline() == "ready\n"

    def within(self, action: Callable[[], T]) -> T:
        """Do something whose sockets are of this network, in a thread of its own."""
        found: dict[str, Any] = {}

        def enter() -> None:
            try:
                with Path(f"/proc/{self.holder.pid}/ns/net").open() as name:
                    if ctypes.CDLL(None, use_errno=True).setns(name.fileno(), NETWORK):
                        raise OSError(ctypes.get_errno(), "setns")
                found["result"] = action()
            except BaseException as error:
                found["error"] = error

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        if "error" in found:
            raise found["error"]
        return found["result"]

    def close(self) -> None:
        """End."""
        self.holder.kill()
        self.holder.communicate()


class Machine:
    """A root file system over this machine's, with processes of its own."""

    def __init__(
        self,
        network: Network,
        folder: Path,
        *,
        image: Path | None = None,
        binds: Mapping[Path, str] | None = None,
        hosts: Sequence[str] = (),
        scratch: Sequence[str] = (),
        read_only: bool = False,
    ) -> None:
        """Start.

        Args:
            network: that it is in.
            folder: for what it writes.
            image: what another machine wrote, to begin with.
            binds: what is mounted, and where.
            hosts: names that lead to loopback.
            scratch: folders in memory.
            read_only: nothing else can be written.
        """
        self.upper = folder / "root"
        for path in (self.upper, folder / "work", folder / "merged"):
            path.mkdir(parents=True)
        self.upper.chmod(0o755)
        if image is not None:
            subprocess.run(["cp", "-a", f"{image}/.", str(self.upper)], check=True)
        write(self.upper / "etc/hosts", f"127.0.0.1 localhost {' '.join(hosts)}\n")
        (folder / "binds").write_text("".join(f"{source} {target}\n" for source, target in (binds or {}).items()))
        told = {
            "UPPER": self.upper,
            "WORK": folder / "work",
            "MERGED": folder / "merged",
            "HIDDEN": " ".join(map(str, HIDDEN)),
            "PACKAGES": PACKAGES,
            "BINDS": folder / "binds",
            "SCRATCH": " ".join(scratch),
            "READ_ONLY": "yes" if read_only else "",
            "PATH": PATH,
        }
        command = [
            *DIES_WITH_US,
            "nsenter",
            "-t",
            str(network.holder.pid),
            "-n",
            "unshare",
            "-mpu",
            "--fork",
            "--kill-child",
        ]
        self._holder = subprocess.Popen(
            [*command, "sh", "-c", SET_UP],
            env={name: str(value) for name, value in told.items()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":
            raise RuntimeError(self._holder.communicate()[1])
        self._inner = child_of(self._holder.pid)

    def start(
        self,
        command: Sequence[str],
        *,
        user: str = "root",
        home: str = "/",
        environment: Mapping[str, str] | None = None,
        log: Path,
        alone: bool = False,
    ) -> Process:
        """Start a process; ``alone``: as the first of a session, as a terminal does."""
        with log.open("ab") as output:
            started = subprocess.Popen(
                self._command(command, user, home),
                env=self._told(environment),
                stdout=output,
                stderr=output,
                start_new_session=alone,
            )
        return Process(started, log)

    def run(
        self,
        command: Sequence[str],
        *,
        user: str = "root",
        home: str = "/",
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Carry a command out."""
        return subprocess.run(
            self._command(command, user, home), env=self._told(environment), capture_output=True, text=True, timeout=600
        )

    def sh(self, line: str, **options: Any) -> str:
        """Carry a line of the shell out, which has to succeed."""
        done = self.run(["sh", "-c", line], **options)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def put(self, folder: Path, place: str) -> None:
        """Copy a folder's files into one of the machine, also into one in memory; made where it is missing."""
        for file in folder.iterdir():
            command = self._command(["sh", "-c", f"mkdir -p {place} && cat > {place}/{file.name}"], "root", "/")
            subprocess.run(command, input=file.read_bytes(), env=self._told(None), check=True)

    def close(self) -> None:
        """End it with all that runs in it."""
        self._holder.kill()
        self._holder.communicate()

    def _command(self, command: Sequence[str], user: str, home: str) -> list[str]:
        enter = ["nsenter", "-t", str(self._inner), "-m", "-p", "-n", "-u", "-r"]
        change = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user != "root" else []
        return [*enter, *change, "env", "-C", home, *command]

    def _told(self, environment: Mapping[str, str] | None) -> dict[str, str]:
        return {"PATH": PATH, **(environment or {})}


class Process:
    """Something that runs in a machine."""

    def __init__(self, entered: subprocess.Popen[bytes], log: Path) -> None:
        self._entered, self.log = entered, log

    @property
    def running(self) -> bool:
        """Return whether it has not ended."""
        return self._entered.poll() is None

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(child_of(self._entered.pid), number)

    def signal_all(self, number: int) -> None:
        """Send a signal to all that it started, as a terminal does."""
        os.killpg(self._entered.pid, number)

    def wait(self, seconds: float) -> int:
        """Wait for its end and return its status."""
        return self._entered.wait(seconds)


def child_of(pid: int) -> int:
    """Return the only child of a process, once it is there."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if found := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            return int(found[0])
        time.sleep(0.01)
    raise RuntimeError(f"process {pid} has no child")


def write(file: Path, text: str) -> None:
    """Write a file, with the folders above it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def tracked() -> list[str]:
    """Return the files of the project as a checkout has them, new ones that are to be in it included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def copy_tracked(target: Path, names: Sequence[str]) -> None:
    """Copy files of the project, and what Python has compiled of them, so that machines need not do it again."""
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name)
        (target / name).chmod(0o755 if os.access(ROOT / name, os.X_OK) else 0o644)
        if name.endswith(".py") and (compiled := Path(cache_from_source(ROOT / name))).is_file():
            (target / name).with_name("__pycache__").mkdir(exist_ok=True)
            shutil.copy2(compiled, (target / name).with_name("__pycache__") / compiled.name)


def link_packages(machine: Machine, environment: str) -> None:
    """Do in a machine's virtual environment what installing the locked packages would do, with those of this one."""
    machine.sh(
        f"for lib in {environment}/lib/python*/site-packages; do "
        "echo \"import site; site.addsitedir('/opt/locked/site-packages')\" > $lib/locked.pth; done"
    )
