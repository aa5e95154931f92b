"""Large files from the browser: routes beside Streamlit's that write them to disk as they come.

Streamlit's own uploader keeps every file in the memory of the server as long as the visit lasts. Here a file comes in
parts of some MB, each written as it is received, and an upload that broke off goes on where it was. The guard of the
app stands before these routes too; files go only into a folder that a page has made for the visit of somebody who may
start work, and whose tray, a part of the route's address, it told nobody else.
"""

import json
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from streamlit import config

from engine.errors import DiskFull, EngineError
from engine.store import Store
from engine.store.uploads import Uploads

PATH = "/uploads"
FULL, REFUSED = 507, 422
MOST_JSON = 10_000  # bytes of an announcement

Answer = Callable[[Request], Awaitable[JSONResponse]]


def upload_routes() -> list[Route]:
    """Return the routes that take files."""
    place = f"{base_path()}{PATH}/{{tray}}"
    return [
        Route(place, _explained(_announce), methods=["POST"]),
        Route(f"{place}/{{sha256}}", _explained(_append), methods=["PATCH"]),
    ]


def base_path() -> str:
    """Return the path under which the app is served, without a slash at its end."""
    base = (config.get_option("server.baseUrlPath") or "").strip("/")
    return f"/{base}" if base else ""


def uploads() -> Uploads:
    """Return the uploads of this app's store."""
    return _uploads(str(Store().root))


async def _announce(request: Request) -> JSONResponse:
    """Take name, size and digest of a file; answers how many bytes are here already."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_JSON:
            return JSONResponse({"error": "The announcement of a file is too long."}, REFUSED)
    said = _read(body)
    if said is None:
        return JSONResponse({"error": "A file is announced by its name, size and sha256."}, REFUSED)
    came = await run_in_threadpool(uploads().offer, request.path_params["tray"], *said)
    return JSONResponse({"offset": came})


async def _append(request: Request) -> JSONResponse:
    """Take the next part of an announced file; answers how many bytes are here now."""
    tray, sha256 = request.path_params["tray"], request.path_params["sha256"]
    size, offset = (_number(request.headers.get(name, "")) for name in ("upload-length", "upload-offset"))
    try:
        with uploads().append(tray, sha256, size, offset) as write:
            async for piece in request.stream():
                await run_in_threadpool(write, piece)
    except ClientDisconnect:
        return JSONResponse({}, 400)  # what has come is kept; nobody reads this answer
    return JSONResponse({"offset": await run_in_threadpool(uploads().finish, tray, sha256, size)})


def _explained(answer: Answer) -> Answer:
    """Turn what speaks against a file into a sentence that the page shows."""

    async def explained(request: Request) -> JSONResponse:
        try:
            return await answer(request)
        except DiskFull as error:
            return JSONResponse({"error": str(error)}, FULL)
        except EngineError as error:
            return JSONResponse({"error": str(error)}, REFUSED)
        except OSError as error:
            return JSONResponse({"error": f"The server cannot write this file: {error.strerror}."}, FULL)

    return explained


def _read(body: bytes) -> tuple[str, int, str] | None:
    try:
        said: Any = json.loads(body)
        name, size, sha256 = said["name"], said["size"], said["sha256"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    known = isinstance(name, str) and isinstance(size, int) and not isinstance(size, bool) and isinstance(sha256, str)
    return (name, size, sha256) if known else None


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else -1


@cache
def _uploads(root: str) -> Uploads:
    return Uploads(Path(root))
