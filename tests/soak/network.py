"""A network of one's own, of loopback alone, which is cut off and comes back."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

NETWORK = 0x4000_0000  # CLONE_NEWNET


class Loopback:
    """The only cable of a network; while it is out, nothing arrives and nobody is told."""

    whole = True

    def cut(self) -> None:
        """Take it out."""
        self.whole = False
        subprocess.run(["ip", "link", "set", "lo", "down"], check=True)

    def mend(self) -> None:
        """Put it back; connections that nobody gave up go on."""
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        self.whole = True


@contextmanager
def own_network() -> Iterator[Loopback | None]:
    """Have this thread, and every process that it starts, in a network of its own; None where this user may not."""
    if sys.platform != "linux":
        yield None
        return
    system = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if system.unshare(NETWORK):
            yield None
            return
        loopback = Loopback()
        loopback.mend()
        try:
            yield loopback
        finally:
            if system.setns(before, NETWORK):
                raise OSError(ctypes.get_errno(), "The thread cannot go back into the network that it came from")
    finally:
        os.close(before)
