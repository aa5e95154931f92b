"""Files from browsers: resumed, recognised by content, kept once, and nothing that was not announced."""

import hashlib

import pytest

from engine.errors import DiskFull, UploadError
from engine.store import uploads as module
from engine.store.uploads import PART_HOURS, TRAY_DAYS, Uploads, safe_path

BYTES = bytes(range(256)) * 300
SHA = hashlib.sha256(BYTES).hexdigest()


@pytest.fixture
def uploads(tmp_path):
    return Uploads(tmp_path)


@pytest.fixture
def tray(uploads):
    return uploads.new_tray()


def send(uploads, tray, data, start=0, stop=None, name=None):
    sha = hashlib.sha256(data).hexdigest()
    if name:
        assert uploads.offer(tray, name, len(data), sha) == start
    with uploads.append(tray, sha, len(data), start) as write:
        write(data[start:stop])
    came = uploads.finish(tray, sha, len(data))
    if name and came == len(data):
        uploads.offer(tray, name, len(data), sha)
    return came


def files(uploads, tray):
    folder = uploads.folder(tray)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_interrupted_upload_goes_on_where_it_was(uploads, tray, tmp_path):
    assert send(uploads, tray, BYTES, 0, 1000, name="a.pt") == 1000
    assert files(uploads, tray) == {}
    later = Uploads(tmp_path)  # the server was started again
    assert later.offer(tray, "a.pt", len(BYTES), SHA) == 1000
    assert send(later, tray, BYTES, 1000) == len(BYTES)
    assert later.offer(tray, "a.pt", len(BYTES), SHA) == len(BYTES)
    assert files(later, tray) == {"a.pt": BYTES}


def test_a_known_content_is_kept_once_and_not_sent_again(uploads, tray, tmp_path):
    send(uploads, tray, BYTES, name="a.pt")
    other = uploads.new_tray()
    assert uploads.offer(other, "folder/b.bin", len(BYTES), SHA) == len(BYTES)
    assert files(uploads, other) == {"folder/b.bin": BYTES}
    stored = {path.stat().st_ino for path in (tmp_path / "uploads").rglob("*") if path.is_file()}
    assert len(stored) == 1


def test_loose_files_of_one_name_are_all_kept_and_those_of_a_folder_replaced(uploads, tray):
    for data in (b"one", b"two", b"one"):
        if uploads.offer(tray, "finetuned.pt", 3, hashlib.sha256(data).hexdigest()) < 3:
            send(uploads, tray, data)
            uploads.offer(tray, "finetuned.pt", 3, hashlib.sha256(data).hexdigest())
    assert files(uploads, tray) == {"finetuned.pt": b"one", "finetuned-2.pt": b"two"}
    for data in (b"old", b"new"):
        send(uploads, tray, data, name="m/model.safetensors")
    assert files(uploads, tray)["m/model.safetensors"] == b"new"


def test_another_offset_another_content_and_more_bytes_are_refused(uploads, tray):
    uploads.offer(tray, "a.pt", len(BYTES), SHA)
    with pytest.raises(UploadError, match="0 bytes of this file are here"), uploads.append(tray, SHA, len(BYTES), 10):
        pytest.fail("it was opened")
    with pytest.raises(UploadError, match="More bytes"), uploads.append(tray, SHA, len(BYTES), 0) as write:
        write(BYTES + b"x")
    with uploads.append(tray, SHA, len(BYTES), 0) as write:
        write(b"\0" * len(BYTES))
        with pytest.raises(UploadError, match="another window"), uploads.append(tray, SHA, len(BYTES), 0):
            pytest.fail("two write to one file")
    with pytest.raises(UploadError, match="not the file that was announced"):
        uploads.finish(tray, SHA, len(BYTES))
    assert uploads.offer(tray, "a.pt", len(BYTES), SHA) == 0  # it was removed


def test_only_announced_files_into_folders_that_were_made(uploads, tray):
    with pytest.raises(UploadError, match="no longer kept"):
        uploads.offer("0" * 24, "a.pt", 3, SHA)
    with pytest.raises(UploadError, match="no longer kept"):
        uploads.offer("../../etc", "a.pt", 3, SHA)
    with pytest.raises(UploadError, match="bytes of this file"), uploads.append(tray, SHA, 3, 0):
        pytest.fail("it was never announced")
    with pytest.raises(UploadError, match="digest"):
        uploads.offer(tray, "a.pt", 3, "../../x")


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("model.safetensors", "model.safetensors"),
        ("A b/ü ñ/mo del.PT", "A_b/u_n/mo_del.pt"),
        ("C:\\models\\x.bin", "C/models/x.bin"),
        ("/etc/x.json", "etc/x.json"),
        (".hidden/.x.npz", "hidden/x.npz"),
        ("a\0\n\x1b[31m.zip", "a_31m.zip"),
        ("猫.zip", "file.zip"),
        ("w" * 300 + ".pt", "w" * 100 + ".pt"),
    ],
)
def test_names_are_made_safe(name, path):
    assert safe_path(name).as_posix() == path
    assert ".." not in safe_path(name).parts
    assert not safe_path(name).is_absolute()


@pytest.mark.parametrize(
    "name", ["", "..", "../x.pt", "a/../../x.pt", "x.py", "x", ".pt", "a/b/c/d/e/f/g.pt", "x.pt/..", "x.pt.exe"]
)
def test_other_names_are_refused(name):
    with pytest.raises(UploadError):
        safe_path(name)


def test_sizes_are_limited(uploads, tray, monkeypatch):
    monkeypatch.setenv("MERGELENS_MAX_UPLOAD_GB", "0.001")
    with pytest.raises(UploadError, match=r"1.0 GiB; up to 0.001"):
        uploads.offer(tray, "a.pt", 2**30, SHA)
    monkeypatch.setenv("MERGELENS_MAX_UPLOAD_GB", "0")
    with pytest.raises(UploadError, match="takes no uploads"):
        uploads.offer(tray, "a.pt", 3, SHA)
    monkeypatch.setenv("MERGELENS_MAX_UPLOAD_GB", "100000000")
    with pytest.raises(DiskFull, match="has room for"):
        uploads.offer(tray, "a.pt", 2**50, SHA)
    monkeypatch.setattr(module, "MOST_FILES", 1)
    send(uploads, tray, BYTES, name="a.pt")
    with pytest.raises(UploadError, match="1 files have come"):
        uploads.offer(tray, "b.pt", len(BYTES), SHA)


def test_what_was_broken_off_and_what_is_old_is_removed(uploads, tray, tmp_path):
    send(uploads, tray, BYTES, 0, 1000, name="a.pt")
    send(uploads, tray, b"whole", name="b.pt")
    now = uploads.folder(tray).stat().st_mtime
    uploads.sweep(now + 3600 * (PART_HOURS - 1))
    assert uploads.offer(tray, "a.pt", len(BYTES), SHA) == 1000
    uploads.sweep(now + 3600 * (PART_HOURS + 1))
    assert list((tmp_path / "uploads" / "parts").iterdir()) == []
    assert files(uploads, tray) == {"b.pt": b"whole"}
    uploads.sweep(now + 86_400 * (TRAY_DAYS + 1))
    assert uploads.folder(tray) is None
    assert list((tmp_path / "uploads" / "whole").iterdir()) == []


def test_removing_a_file_removes_nothing_else(uploads, tray, tmp_path):
    send(uploads, tray, b"one", name="a.pt")
    folder = uploads.folder(tray)
    with pytest.raises(UploadError):
        uploads.remove(folder.name, tmp_path)
    with pytest.raises(UploadError):
        uploads.remove(folder.name, folder)
    send(uploads, tray, b"two", name="b.pt")
    other = uploads.new_tray()
    assert uploads.offer(other, "two.pt", 3, hashlib.sha256(b"two").hexdigest()) == 3
    for name in ("a.pt", "b.pt"):
        uploads.remove(folder.name, folder / name)
    assert list(folder.iterdir()) == []
    assert [path.read_bytes() for path in (tmp_path / "uploads" / "whole").iterdir()] == [b"two"]


def test_the_name_of_a_folder_is_no_right_to_put_files_into_it(uploads, tray):
    """Paths are read by many: in requests, logs and messages."""
    name = uploads.folder(tray).name
    assert name != tray
    assert uploads.folder(name) is None
    with pytest.raises(UploadError, match="no longer kept"):
        uploads.offer(name, "a.pt", len(BYTES), SHA)
    with pytest.raises(UploadError, match="no longer kept"), uploads.append(name, SHA, len(BYTES), 0):
        pytest.fail("it was opened")


def test_where_people_log_in_nobody_gets_files_or_folders_of_others(uploads, tmp_path):
    anna, ben = uploads.new_tray("a@x.org"), uploads.new_tray("b@x.org")
    send(uploads, anna, BYTES, name="a.pt")
    assert uploads.folder(anna, "a@x.org") == uploads.folder(anna)
    assert uploads.folder(anna, "b@x.org") is None
    assert uploads.folder(anna, "") is None
    assert uploads.folder(uploads.new_tray(), "b@x.org") is None
    assert uploads.offer(ben, "b.pt", len(BYTES), SHA) == 0  # who knows a digest has not got the file
    assert uploads.offer(uploads.new_tray("a@x.org"), "again.pt", len(BYTES), SHA) == len(BYTES)
    send(uploads, ben, BYTES, name="b.pt")
    assert [uploads.bytes_of(person) for person in ("a@x.org", "b@x.org", "c@x.org", "")] == [len(BYTES)] * 2 + [0] * 2
    uploads.sweep(uploads.folder(anna).stat().st_mtime + 86_400 * (TRAY_DAYS + 1))
    assert list((tmp_path / "uploads" / "owners").iterdir()) == []


def test_the_files_of_a_person_are_bounded(uploads, monkeypatch):
    monkeypatch.setenv("MERGELENS_QUOTA_GB", str(1.5 * len(BYTES) / 1e9))
    tray, nobodys = uploads.new_tray("a@x.org"), uploads.new_tray()
    other = bytes(reversed(BYTES))
    sha = hashlib.sha256(other).hexdigest()
    for data, name in ((BYTES, "a.pt"), (other, "b.pt")):
        assert uploads.offer(tray, name, len(BYTES), hashlib.sha256(data).hexdigest()) == 0
        send(uploads, nobodys, data, name=name)
    send(uploads, tray, BYTES)
    with (
        pytest.raises(UploadError, match="the most that a person's may take"),
        uploads.append(tray, sha, len(other), 0),
    ):
        pytest.fail("it was opened")
    with pytest.raises(UploadError, match="the most that a person's may take"):
        uploads.offer(uploads.new_tray("a@x.org"), "b.pt", len(other), sha)
    assert uploads.offer(tray, "a.pt", len(BYTES), SHA) == len(BYTES)
    uploads.remove(uploads.folder(tray).name, uploads.folder(tray) / "a.pt")
    send(uploads, tray, other, name="b.pt")


def test_what_would_fill_the_disk_is_not_taken_when_it_comes(uploads, tray, monkeypatch):
    uploads.offer(tray, "a.pt", len(BYTES), SHA)
    monkeypatch.setattr(module, "SPARE", 2**60)
    with pytest.raises(DiskFull, match="has room for"), uploads.append(tray, SHA, len(BYTES), 0):
        pytest.fail("it was opened")
