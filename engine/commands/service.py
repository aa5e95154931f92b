"""The command that serves runs."""

from __future__ import annotations

from typing import Annotated

import typer


def serve(
    stop: Annotated[bool, typer.Option("--stop", help="End the service of this store.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Start it in the background, if it is not running.")] = False,
) -> None:
    """Run the engine service: claim queued runs and carry them out on worker processes."""
    from ..service import client
    from ..store import Store

    store = Store()
    if stop:
        typer.echo(client.stop_service(store))
        return
    if detach:
        typer.echo(client.ensure_service(store))
        return
    from ..service.main import serve as serve_forever

    raise typer.Exit(serve_forever(store))
