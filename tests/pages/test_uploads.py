"""The routes that take files: real requests to them, no page."""

import hashlib
import json

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from pages.shared.uploads import upload_routes, uploads

BYTES = bytes(range(256)) * 1000
SHA = hashlib.sha256(BYTES).hexdigest()
SIZE = len(BYTES)


@pytest.fixture
def client(tmp_path, monkeypatch):
    monkeypatch.setenv("MERGELENS_STORE", str(tmp_path / "store"))
    return TestClient(Starlette(routes=upload_routes()))


@pytest.fixture
def place(client):
    return f"/uploads/{uploads().new_tray()}"


def announce(client, place, name="a.safetensors", size=SIZE, sha256=SHA):
    return client.post(place, content=json.dumps({"name": name, "size": size, "sha256": sha256}))


def send(client, place, data, offset, size=SIZE, sha256=SHA):
    headers = {"Upload-Offset": str(offset), "Upload-Length": str(size)}
    return client.patch(f"{place}/{sha256}", content=data, headers=headers)


def test_a_file_comes_in_parts_and_is_recognised_afterwards(client, place, tmp_path):
    assert announce(client, place).json() == {"offset": 0}
    assert send(client, place, BYTES[:1000], 0).json() == {"offset": 1000}
    assert announce(client, place).json() == {"offset": 1000}
    assert send(client, place, BYTES[1000:], 1000).json() == {"offset": len(BYTES)}
    assert announce(client, place).json() == {"offset": len(BYTES)}
    assert (uploads().folder(place.split("/")[-1]) / "a.safetensors").read_bytes() == BYTES
    assert announce(client, place, "again/model.safetensors").json() == {"offset": len(BYTES)}


@pytest.mark.parametrize("headers", [{}, {"Upload-Offset": "-1"}, {"Upload-Offset": "9" * 40}, {"Upload-Offset": "x"}])
def test_parts_without_a_true_offset_are_refused(client, place, headers):
    announce(client, place)
    answer = client.patch(f"{place}/{SHA}", content=b"x", headers={"Upload-Length": str(len(BYTES)), **headers})
    assert answer.status_code == 422
    assert "0 bytes of this file are here" in answer.json()["error"]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"name": 1, "size": 2, "sha256": "a"}', b"[" * 9000, b"x" * 20_000, b"\xff"]
)
def test_other_announcements_are_refused(client, place, body):
    answer = client.post(place, content=body)
    assert answer.status_code == 422
    assert "announce" in answer.json()["error"]


def test_a_file_that_is_not_what_was_announced_is_removed(client, place, tmp_path):
    announce(client, place)
    answer = send(client, place, b"\0" * len(BYTES), 0)
    assert answer.status_code == 422
    assert "not the file that was announced" in answer.json()["error"]
    assert [path for path in (tmp_path / "store" / "uploads").rglob("*") if path.is_file()] == []


def test_a_folder_that_no_page_made_takes_nothing(client):
    answer = announce(client, "/uploads/" + "a" * 24)
    assert answer.status_code == 422
    assert "Load the page again" in answer.json()["error"]


def test_a_full_disk_is_said_and_nothing_is_begun(client, place, monkeypatch, tmp_path):
    monkeypatch.setenv("MERGELENS_MAX_UPLOAD_GB", "100000000")
    answer = announce(client, place, size=2**50)
    assert answer.status_code == 507
    assert "room for files of" in answer.json()["error"]
    assert not (tmp_path / "store" / "uploads" / "parts").exists()
