"""Loaded by every Python process of the tests: nothing is asked of other hosts, and who tries is written down."""

import os
import socket
import sys
from pathlib import Path

RECORD = "MERGELENS_OFF_HOST"
OURS = ("localhost", "ip6-localhost", "", "0.0.0.0", "::", "::1", socket.gethostname())


def _is_ours(host):
    name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
    return name is None or name in OURS or name.startswith("127.")


def _watch(event, arguments):
    if event == "socket.connect":
        connection, address = arguments
        off = connection.type == socket.SOCK_STREAM and isinstance(address, tuple) and not _is_ours(address[0])
        place = address
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        place = arguments[0]
        off = not _is_ours(place)
    else:
        return
    if off:
        with Path(os.environ[RECORD]).open("a") as file:
            file.write(f"{event} {place} by {' '.join(sys.orig_argv)[:300]}\n")
        raise OSError(f"Tests ask nothing of other hosts: {place}")


def install():
    sys.addaudithook(_watch)


if os.environ.get(RECORD):
    install()
