"""The command that serves runs."""

from __future__ import annotations

import math
import os
from typing import Annotated

import typer

from .printing import say


def serve(
    stop: Annotated[bool, typer.Option("--stop", help="End the service of this store.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Start it in the background, if it is not running.")] = False,
    log_format: Annotated[str, typer.Option(help="text, or json with the ids of runs.")] = "",
    probes: Annotated[str, typer.Option(help="HOST:PORT to answer /healthz, /readyz and /metrics at.")] = "",
) -> None:
    """Run the engine service: claim queued runs and carry them out on worker processes."""
    from ..service import client, journal
    from ..service.endpoint import ENV as PROBES
    from ..store import Store

    for name, value in ((journal.ENV, log_format), (PROBES, probes)):
        if value:
            os.environ[name] = value  # a service that is started in the background reads it too
    store = Store()
    if stop:
        say(client.stop_service(store))
        return
    if detach:
        say(client.ensure_service(store))
        return
    from ..service.main import IDLE_MINUTES
    from ..service.main import serve as serve_forever

    raise typer.Exit(serve_forever(store, idle_minutes=math.inf if client.is_apart() else IDLE_MINUTES))
