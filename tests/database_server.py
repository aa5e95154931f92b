"""A PostgreSQL server for tests: one a session, with a database for every test that asks."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import sqlalchemy as sa

FOLDERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
ACCOUNT = "nobody"  # PostgreSQL refuses to be run by root


def program(name: str) -> str | None:
    """Return where a program of PostgreSQL lies; Debian puts most of them beside the path."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *map(str, FOLDERS)]))


def why_not() -> str:
    """Say why there can be no server; empty when there can."""
    if find_spec("psycopg") is None:
        return "psycopg is not installed"
    return "" if program("initdb") and program("postgres") else "PostgreSQL is not installed"


class Server:
    """A server that listens on a socket in a folder of its own, and waits for no disk."""

    def __init__(self, folder: Path, *, within: Sequence[str] = (), address: str = "") -> None:
        """Make a server and start it.

        Args:
            folder: for its data and its socket.
            within: a command that starts others in a namespace, which it is to run in.
            address: of the network there, where it listens too and trusts everybody.
        """
        self._folder, self._within, self._address = folder, within, address
        self._as = ["setpriv", f"--reuid={ACCOUNT}", "--clear-groups"] if os.geteuid() == 0 else []
        if self._as:
            shutil.chown(folder, ACCOUNT)
        command = [
            *self._as,
            program("initdb"),
            "-D",
            str(folder / "data"),
            "-U",
            "mergelens",
            "-A",
            "trust",
            "-E",
            "UTF8",
        ]
        command += ["--no-sync", "--no-locale"]
        subprocess.run(command, check=True, capture_output=True, cwd=folder)
        if address:
            with (folder / "data" / "pg_hba.conf").open("a") as rules:
                rules.write(f"host all all {address}/24 trust\n")
        self.start()

    def start(self) -> None:
        """Start, and wait until it answers."""
        settings = [
            f"unix_socket_directories={self._folder}",
            f"listen_addresses={self._address}",
            "fsync=off",
            "max_connections=60",
        ]
        options = [word for setting in settings for word in ("-c", setting)]
        command = [*self._within, *self._as, program("postgres"), "-D", str(self._folder / "data"), *options]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)
        deadline = time.monotonic() + 60
        while True:
            try:
                with self._administer() as connection:
                    connection.exec_driver_sql("SELECT 1")
                return
            except sa.exc.OperationalError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.05)

    @property
    def running(self) -> bool:
        """Return whether it has not ended."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End at once, whoever is connected."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(60)

    @contextmanager
    def database(self) -> Iterator[str]:
        """Make an empty database; yields its URL."""
        name = f"test_{uuid.uuid4().hex}"
        with self._administer() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        try:
            yield self._url(name)
        finally:
            with self._administer() as connection:
                connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")

    def _url(self, name: str) -> str:
        return f"postgresql+psycopg://mergelens@/{name}?host={self._folder}"

    @contextmanager
    def _administer(self) -> Iterator[sa.Connection]:
        engine = sa.create_engine(self._url("postgres"), poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            yield connection


@contextmanager
def server() -> Iterator[Server]:
    """Run a server for a while."""
    folder = Path(tempfile.mkdtemp(prefix="mergelens-postgresql-"))
    folder.chmod(0o755)
    found = Server(folder)
    try:
        yield found
    finally:
        found.stop()
        shutil.rmtree(folder)
