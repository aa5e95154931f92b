"""A test that asks something of another host fails."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

RECORD = Path(os.environ["MERGELENS_OFF_HOST"])
CODE = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=1)"


@pytest.fixture
def forgotten():
    """Forget what the test does on purpose."""
    yield RECORD
    RECORD.unlink()


def test_this_process_reaches_no_other_host(forgotten):
    with pytest.raises(OSError, match="Tests ask nothing of other hosts"):
        socket.create_connection(("192.0.2.1", 80), timeout=1)
    with pytest.raises(OSError, match="Tests ask nothing"):
        socket.getaddrinfo("example.org", 80)
    assert "example.org" in forgotten.read_text()


@pytest.mark.processes
def test_no_process_that_it_starts_does(forgotten):
    process = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert "Tests ask nothing of other hosts" in process.stderr
    assert "192.0.2.1" in forgotten.read_text()


def test_this_host_is_reached():
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
