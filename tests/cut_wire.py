"""The wire to a PostgreSQL server, cut at the moment when a transaction is committed."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from pathlib import Path

import sqlalchemy as sa

SOCKET = ".s.PGSQL.5432"


class CutWire:
    """A socket before a server's own; once it is armed, the next commit is passed on or not, and never answered."""

    def __init__(self, url: str, *, heard: bool) -> None:
        self._url, self.heard = sa.make_url(url), heard
        self._server = Path(str(self._url.query["host"])) / SOCKET
        self.armed = threading.Event()

    def __enter__(self) -> CutWire:
        self._folder = tempfile.TemporaryDirectory(prefix="wire-")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{self._folder.name}/{SOCKET}")
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self._folder.cleanup()

    @property
    def url(self) -> str:
        """Return the database's URL behind this wire."""
        return self._url.set(query={"host": self._folder.name}).render_as_string(hide_password=False)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, server = self._listener.accept()[0], socket.socket(socket.AF_UNIX)
                try:
                    server.connect(str(self._server))
                except OSError:  # it is away
                    client.close()
                    continue
                threading.Thread(target=self._answers, args=(server, client), daemon=True).start()
                threading.Thread(target=self._requests, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError), client, server:
            while data := client.recv(65_536):
                if self.armed.is_set() and b"COMMIT\0" in data:
                    self.armed.clear()
                    client.shutdown(socket.SHUT_RDWR)
                    if self.heard:
                        server.sendall(data)
                        server.shutdown(socket.SHUT_WR)
                        while server.recv(65_536):
                            pass  # until the server has carried it out
                    return
                server.sendall(data)

    def _answers(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65_536):
                client.sendall(data)
