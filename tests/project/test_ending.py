"""Processes end with the status, the output and in the order of Python."""

import subprocess
import sys

import pytest

MAIN = """
import atexit, sys, threading, time
from engine.ending import carry_out
def late():
    time.sleep(0.05)
    print("thread")
def main():
    atexit.register(print, "registered")
    threading.Thread(target=late).start()
    print("main")
    {end}
carry_out(main)
"""


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        ("return", 0, ""),
        ("return 3", 3, ""),
        ("sys.exit(2)", 2, ""),
        ("sys.exit('why')", 1, "why\n"),
        ("1 / 0", 1, "Zero"),
    ],
)
def test_a_process_ends_in_order_with_its_status(end, status, said):
    done = subprocess.run([sys.executable, "-c", MAIN.format(end=end)], capture_output=True, text=True, timeout=60)
    assert done.returncode == status
    assert done.stdout.split() == ["main", "thread", "registered"]
    assert said in done.stderr
    assert bool(said) == bool(done.stderr)
