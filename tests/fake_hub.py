"""A hub on this machine: the few answers of the Hugging Face Hub that a download needs, with ranges and faults."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """Serves ``root/models/OWNER/NAME/FILE`` and ``root/datasets/OWNER/NAME/FILE``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: list[tuple[str, str]] = []  # method and path of every request
        self.ranges: list[str] = []  # range headers of downloads
        self.cut_after: int | None = None  # the next download breaks off after so many bytes
        self.lie = False  # announce another sha256 than the file has
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def downloads(self) -> list[str]:
        return [path for method, path in self.asked if method == "GET" and "/resolve/" in path]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *parts: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(self.path.partition("?")[0])
        self.hub.asked.append((self.command, path))
        listed = re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)/revision/(.+)", path)
        asked = re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if listed and (folder := self.hub.root / listed[1] / listed[2]).is_dir():
            self._listing(folder, listed[2], listed[1])
        elif asked and (file := self.hub.root / (asked[1] or "models/") / asked[2] / asked[4]).is_file():
            self._file(file)
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound" if listed else "EntryNotFound"})

    def _listing(self, folder: Path, name: str, kind: str) -> None:
        siblings = []
        for path in sorted(part for part in folder.rglob("*") if part.is_file()):
            part = {"rfilename": path.relative_to(folder).as_posix(), "size": path.stat().st_size}
            if path.suffix != ".json":
                sha = hashlib.sha256(path.read_bytes()).hexdigest() if not self.hub.lie else "0" * 64
                part["lfs"] = {"sha256": sha, "size": part["size"], "pointerSize": 130}
            siblings.append(part)
        document = {"id": name, "sha": COMMIT, "siblings": siblings, "private": False, "downloads": 0, "tags": []}
        document |= {"modelId": name} if kind == "models" else {}
        self._send(200, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def _file(self, file: Path) -> None:
        body, status = file.read_bytes(), 200
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha256(body).hexdigest()}"', "Accept-Ranges": "bytes"}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if self.command == "GET":
            self.hub.ranges.append(self.headers.get("Range", ""))
        if wanted:
            start = int(wanted[1])
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
            body, status = body[start:], 206
        if self.command == "GET" and self.hub.cut_after is not None:
            cut, self.hub.cut_after = self.hub.cut_after, None
            self._send(status, body, headers, cut)
            return
        self._send(status, body, headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str], cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:cut])
            if cut is not None:
                self.wfile.flush()
                self.close_connection = True
