"""Ends of processes."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

OUTPUT_LOST = 120  # Python's own status for output that could not be written at the end


def carry_out(main: Callable[[], object]) -> NoReturn:
    """Run a process's main function and end the process with its status.

    The end is Python's own, in its order, without the last part: taking apart object by object what was imported takes
    half a second where PyTorch was, two where all libraries were, and the system takes it back at once.
    """
    status: object = None
    try:
        status = main()
    except SystemExit as end:
        status = end.code
    if not isinstance(status, int | None):
        sys.stderr.write(f"{status}\n")
        status = 1
    leave(int(status or 0))


def leave(status: int) -> NoReturn:
    """End this process: wait for its threads, run what was registered for the end, write what is to be written."""
    threading._shutdown()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        status = status or OUTPUT_LOST
    with suppress(OSError):
        sys.stderr.flush()
    os._exit(status)


def end_early() -> None:
    """Have this process, which somebody else runs, leave out that part too and end with status 0.

    What is registered for the end after this call is still run; what is forked from the process ends as it does.
    """
    process = os.getpid()

    def end() -> None:
        if os.getpid() == process:
            os._exit(0)

    atexit.register(end)
