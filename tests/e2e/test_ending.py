"""The app ends when it is told to, whatever browsers do at that moment."""

import socket
import threading
import time
from urllib.parse import urlsplit

from tests.e2e.conftest import serve_app


def _connect_until_refused(address: str, opened: list[socket.socket]) -> None:
    where = urlsplit(address)
    try:
        while True:
            opened.append(socket.create_connection((where.hostname, where.port)))
            time.sleep(0.001)
    except OSError:
        return


def test_connections_that_are_never_used_do_not_keep_the_app(tmp_path):
    opened: list[socket.socket] = []
    with serve_app(tmp_path / "store", alone=True) as address:
        browser = threading.Thread(target=_connect_until_refused, args=(address, opened))
        browser.start()
        while not opened:
            time.sleep(0.01)
    browser.join()
    for connection in opened:
        connection.close()
    assert opened
